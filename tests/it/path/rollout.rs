//! Pickers are replaced and die while clients ask: Envoy knows two places for them, asks their health, and never retries.

use std::time::{Duration, Instant};

use crate::support::envoy::Envoy;
use crate::support::fleet::load::{Done, Kind, Load};
use crate::support::fleet::process::PickerProcess;
use crate::support::fleet::{Fleet, Setup, until};

const IN_FLIGHT: &str = "warmpath_streams_in_flight";
const ENDED: &str = r#"warmpath_streams_total{outcome="completed"}"#;
const HEALTHY: &str = "cluster.picker.membership_healthy";

/// Ten milliseconds a token: a stream is as long as its number of tokens says.
fn setup() -> Setup {
    Setup::engines(2).engine_options(&["--decode-ms-per-step", "10"])
}

/// Two places for pickers, and an Envoy that knows both and retries nothing.
struct Gateway {
    envoy: Envoy,
    pickers: [PickerProcess; 2],
}

impl Gateway {
    /// A picker runs in the first place.
    async fn start(fleet: &Fleet, flags: &[&str]) -> Self {
        let mut pickers = [(); 2].map(|()| PickerProcess::place(&fleet.files, flags));
        pickers[0].start().await;
        let places = pickers.each_ref().map(|picker| picker.grpc);
        let envoy = fleet
            .another_envoy(move |config| {
                config.picker = places[0];
                config.other_pickers = vec![places[1]];
                config.retries = false;
            })
            .await;
        Self { envoy, pickers }
    }

    /// Waits until Envoy asks so many pickers.
    async fn asks(&self, pickers: u64) {
        until(&format!("Envoy asks {pickers} pickers"), async || {
            (self.envoy.stat(HEALTHY).await == pickers).then_some(())
        })
        .await;
    }

    /// Every kind of client at once.
    fn load(&self) -> Load {
        let mut load = Load::new(self.envoy.picked());
        load.keep_asking(2, Kind::Small);
        load.keep_asking(1, Kind::Large);
        load.keep_asking(2, Kind::Stream(50));
        load
    }
}

fn failures(done: &[Done]) -> Vec<&Done> {
    done.iter().filter(|done| done.outcome.is_err()).collect()
}

#[tokio::test]
async fn pickers_are_replaced_one_by_the_other_without_a_lost_request() {
    setup()
        .run(async |fleet| {
            // As shipped: five seconds of accepting while not ready.
            let mut gateway = Gateway::start(fleet, &[]).await;
            let mut load = gateway.load();
            for (old, new) in [(0, 1), (1, 0)] {
                gateway.pickers[old].metric_reaches(ENDED, 20.0).await;
                gateway.pickers[new].start().await;
                gateway.asks(2).await;
                gateway.pickers[new].metric_reaches(ENDED, 20.0).await;
                // These are under way when the old one accepts no more.
                load.ask_once(6, Kind::Stream(800));
                gateway.pickers[old].metric_reaches(IN_FLIGHT, 1.0).await;
                let told = Instant::now();
                gateway.pickers[old].signal("-TERM").await;
                gateway.asks(1).await;
                let noticed = told.elapsed();
                gateway.pickers[old].logs("accepting no more").await;
                let accepted = told.elapsed();
                let draining = gateway.pickers[old].metric(IN_FLIGHT).await;
                assert!(draining > 0.0, "nothing was to be drained");
                assert!(gateway.pickers[old].ended().await.success());
                println!(
                    "{old} to {new}: Envoy stopped asking after {noticed:?}, accepting ended after {accepted:?} with \
                     {draining} streams in flight, all ended after {:?}",
                    told.elapsed(),
                );
            }
            let done = load.stop().await;
            assert!(failures(&done).is_empty(), "{:#?}", failures(&done));
            let count = |is: fn(Kind) -> bool| done.iter().filter(|done| is(done.kind)).count();
            let counts = [
                count(|kind| kind == Kind::Small),
                count(|kind| kind == Kind::Large),
                count(|kind| matches!(kind, Kind::Stream(_))),
            ];
            println!("small, large, streams: {counts:?}");
            assert!(counts.iter().all(|&count| count >= 20), "{counts:?}");
        })
        .await;
}

#[tokio::test]
async fn a_second_signal_while_draining_ends_the_picker_at_once_and_costs_only_its_own_streams() {
    setup()
        .run(async |fleet| {
            let mut gateway = Gateway::start(fleet, &["--drain-delay", "3s"]).await;
            gateway.pickers[1].start().await;
            gateway.asks(2).await;
            let mut load = gateway.load();
            load.ask_once(6, Kind::Stream(1500));
            for picker in &gateway.pickers {
                picker.metric_reaches(IN_FLIGHT, 2.0).await;
            }
            gateway.pickers[0].signal("-TERM").await;
            // Nobody is sent there any more; what is in flight there is long.
            gateway.asks(1).await;
            gateway.pickers[0].logs("accepting no more").await;
            let open = gateway.pickers[0].metric(IN_FLIGHT).await;
            assert!(open > 0.0);
            let told = Instant::now();
            gateway.pickers[0].signal("-TERM").await;
            let status = gateway.pickers[0].ended().await;
            println!("ended {:?} after the second signal", told.elapsed());
            assert_eq!(status.code(), Some(1));
            assert!(
                told.elapsed() < Duration::from_secs(5),
                "{:?}",
                told.elapsed()
            );
            let done = load.stop().await;
            let cut = failures(&done);
            assert!(
                cut.len() as f64 <= open && !cut.is_empty(),
                "{open}: {cut:#?}"
            );
            assert!(cut.iter().all(|done| done.begun < told), "{cut:#?}");
        })
        .await;
}

#[tokio::test]
async fn a_picker_that_dies_costs_what_is_open_on_it_and_what_is_sent_there_until_envoy_notices() {
    setup()
        .run(async |fleet| {
            let mut gateway = Gateway::start(fleet, &[]).await;
            gateway.pickers[1].start().await;
            gateway.asks(2).await;
            let mut load = gateway.load();
            load.ask_once(6, Kind::Stream(800));
            for picker in &gateway.pickers {
                picker.metric_reaches(ENDED, 20.0).await;
            }
            let open = gateway.pickers[0].metric(IN_FLIGHT).await;
            gateway.pickers[0].signal("-KILL").await;
            let killed = Instant::now();
            gateway.pickers[0].ended().await;
            gateway.asks(1).await;
            let noticed = Instant::now();
            gateway.pickers[1].metric_reaches(ENDED, 200.0).await;
            let done = load.stop().await;
            let failed = failures(&done);
            let later = failed.iter().filter(|done| done.begun > killed).count();
            let between = done.iter().filter(|done| done.begun > killed && done.begun < noticed).count();
            println!(
                "{open} streams open; {} failed, {later} of {between} begun in the {:?} until Envoy noticed",
                failed.len(),
                noticed - killed,
            );
            println!("{failed:#?}");
            assert!(failed.iter().all(|done| done.begun < noticed), "{failed:#?}");
        })
        .await;
}
