//! Claims about how faults are named, where they strike and when they end.

use super::*;

#[test]
fn every_fault_reads_back_as_it_prints() {
    for (name, _) in LIST {
        let text = name.replace("=N", "=3").replace("=MS", "=20");
        assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
    }
    for text in ["", "drop-events", "drop-events=x", "no-replay=1", "unplug"] {
        let refusal = text.parse::<Fault>().unwrap_err();
        assert_eq!(refusal, UnknownFault(text.to_owned()));
        assert!(
            refusal.to_string().contains("\n  drop-events=N "),
            "{refusal}"
        );
    }
}

#[test]
fn a_fault_may_name_its_rank_unless_it_is_the_servers() {
    for text in ["drop-events=3@1", "no-replay@0", "no-replay", "hang-http"] {
        assert_eq!(text.parse::<RankFault>().unwrap().to_string(), text);
    }
    let refused = |text: &str| text.parse::<RankFault>().unwrap_err();
    assert_eq!(refused("no-replay@x"), RankFaultError::Rank("x".to_owned()));
    assert_eq!(
        refused("hang-http@1"),
        RankFaultError::OfServer(Fault::HangHttp)
    );
    assert_eq!(
        refused("unplug@1"),
        RankFaultError::Unknown(UnknownFault("unplug".to_owned()))
    );
    let initial: Vec<RankFault> = vec![Fault::NoReplay.into(), "restart-seq@5".parse().unwrap()];
    let [first, second] =
        [(4, true), (5, false)].map(|(rank, first)| Faults::of_rank(rank, first, &initial));
    assert_eq!(first.active(), [Fault::NoReplay]);
    assert_eq!(second.active(), [Fault::RestartSeq]);
}

#[test]
fn a_counted_fault_is_used_up_and_a_single_one_happens_once() {
    let initial = ["drop-events=2", "restart-seq", "refuse=0"].map(|text| text.parse().unwrap());
    let faults = Faults::of_rank(0, true, &initial);
    assert_eq!(
        [(); 3].map(|()| faults.take_one(Fault::DropEvents)),
        [true, true, false]
    );
    assert_eq!(
        [(); 2].map(|()| faults.take_once(Fault::RestartSeq)),
        [true, false]
    );
    assert!(!faults.take_one(Fault::Refuse));
    assert!(faults.active().is_empty());
}
