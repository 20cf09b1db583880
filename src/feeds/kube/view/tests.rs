//! What the view shows while objects come and go.

use super::*;
use crate::feeds::kube::members::TargetPorts;
use crate::feeds::kube::object::{self, Object as _};

fn spec(app: &str, ports: &[u16]) -> Spec {
    Spec {
        selector: LabelSelector::parse(&format!("app={app}")).unwrap(),
        ports: TargetPorts::new(ports.to_vec()).unwrap(),
    }
}

fn json(name: &str, uid: &str, ip: &str) -> String {
    serde_json::json!({
        "metadata": {"name": name, "uid": uid, "resourceVersion": "5"},
        "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": "True"}]},
    })
    .to_string()
}

fn pod(name: &str, ip: &str) -> Pod {
    Pod::read(&json(name, name, ip)).unwrap()
}

fn refusal(name: &str, uid: &str) -> Refusal {
    object::read::<Pod>(&json(name, uid, "nowhere")).unwrap_err()
}

/// Addresses of the pool; `None`: no pool.
fn shown(view: &mut View) -> Option<Vec<String>> {
    let (pool, _) = view.pool();
    let addresses = |pool: Arc<Pool>| {
        pool.members()
            .map(|m| m.endpoint.address.to_string())
            .collect()
    };
    pool.map(addresses)
}

fn addresses(addresses: &[&str]) -> Option<Vec<String>> {
    Some(addresses.iter().map(|&a| a.to_owned()).collect())
}

fn view_of(pods: Vec<Pod>) -> View {
    let mut view = View::new("prod".to_owned());
    view.set_spec(spec("a", &[80]));
    view.set_pods(pods, &[]);
    view
}

#[test]
fn there_is_no_pool_before_its_pods_are_listed() {
    let mut view = View::new("prod".to_owned());
    assert_eq!(shown(&mut view), None);
    assert!(matches!(
        view.set_spec(spec("a", &[80])),
        PodWatch::Start(_)
    ));
    assert_eq!(shown(&mut view), None);
    view.set_pods(Vec::new(), &[]);
    assert_eq!(shown(&mut view), addresses(&[]));
}

#[test]
fn another_selector_keeps_the_old_pool_until_its_pods_are_listed() {
    let mut view = view_of(vec![pod("x", "10.0.0.1"), pod("y", "10.0.0.2")]);
    assert_eq!(shown(&mut view), addresses(&["10.0.0.1:80", "10.0.0.2:80"]));
    assert!(matches!(
        view.set_spec(spec("b", &[81])),
        PodWatch::Start(_)
    ));
    assert_eq!(shown(&mut view), addresses(&["10.0.0.1:80", "10.0.0.2:80"]));
    view.remove_pod("x");
    assert_eq!(shown(&mut view), addresses(&["10.0.0.2:80"]));
    assert_eq!(view.set_spec(spec("b", &[82])), PodWatch::Keep);
    view.switch();
    view.set_pods(vec![pod("x", "10.0.0.1")], &[]);
    assert_eq!(shown(&mut view), addresses(&["10.0.0.1:82"]));
}

#[test]
fn a_selector_that_is_taken_back_is_listed_anew() {
    let mut view = view_of(vec![pod("x", "10.0.0.1")]);
    view.set_spec(spec("b", &[81]));
    assert!(matches!(
        view.set_spec(spec("a", &[82])),
        PodWatch::Start(_)
    ));
    assert_eq!(shown(&mut view), addresses(&["10.0.0.1:80"]));
    view.switch();
    view.set_pods(vec![pod("y", "10.0.0.2")], &[]);
    assert_eq!(shown(&mut view), addresses(&["10.0.0.2:82"]));
}

#[test]
fn of_two_selectors_before_the_first_list_the_last_one_counts() {
    let mut view = View::new("prod".to_owned());
    view.set_spec(spec("a", &[80]));
    assert!(matches!(
        view.set_spec(spec("b", &[81])),
        PodWatch::Start(_)
    ));
    view.switch();
    view.set_pods(vec![pod("x", "10.0.0.1")], &[]);
    assert_eq!(shown(&mut view), addresses(&["10.0.0.1:81"]));
}

#[test]
fn other_ports_count_at_once_and_need_no_new_watch() {
    let mut view = view_of(vec![pod("x", "10.0.0.1")]);
    assert_eq!(view.set_spec(spec("a", &[81])), PodWatch::Keep);
    assert_eq!(shown(&mut view), addresses(&["10.0.0.1:81"]));
}

#[test]
fn a_pool_that_went_and_came_back_is_listed_anew() {
    let mut view = view_of(vec![pod("x", "10.0.0.1")]);
    assert!(shown(&mut view).is_some());
    assert_eq!(view.clear(), PodWatch::Stop);
    assert_eq!(shown(&mut view), None);
    assert!(matches!(
        view.set_spec(spec("a", &[80])),
        PodWatch::Start(_)
    ));
    assert_eq!(shown(&mut view), None);
}

#[test]
fn a_version_that_cannot_be_read_leaves_the_pod_as_it_was() {
    let mut view = view_of(vec![pod("x", "10.0.0.1"), pod("y", "10.0.0.2")]);
    view.refuse_pod(&refusal("x", "x"));
    assert_eq!(shown(&mut view), addresses(&["10.0.0.1:80", "10.0.0.2:80"]));
    view.set_pods(
        vec![pod("y", "10.0.0.2")],
        &[refusal("x", "x"), refusal("z", "z")],
    );
    assert_eq!(shown(&mut view), addresses(&["10.0.0.1:80", "10.0.0.2:80"]));
}

#[test]
fn a_version_that_cannot_be_read_of_another_pod_ends_the_one_of_that_name() {
    let mut view = view_of(vec![pod("x", "10.0.0.1"), pod("y", "10.0.0.2")]);
    view.refuse_pod(&refusal("x", "another"));
    assert_eq!(shown(&mut view), addresses(&["10.0.0.2:80"]));
    view.set_pods(Vec::new(), &[refusal("y", "another")]);
    assert_eq!(shown(&mut view), addresses(&[]));
}

#[test]
fn changes_that_are_none_of_ours_are_the_same_version() {
    let mut view = view_of(vec![pod("x", "10.0.0.1")]);
    let (before, _) = view.pool();
    let mut same = pod("x", "10.0.0.1");
    same.identity.version = "6".to_owned();
    assert!(!view.set_pod(same.clone()), "nothing that is used");
    same.finished = true;
    same.address = None;
    assert!(view.set_pod(same.clone()));
    same.finished = false;
    assert!(view.set_pod(same), "used, but no other pool");
    let (between, _) = view.pool();
    view.set_pod(pod("x", "10.0.0.1"));
    let (after, _) = view.pool();
    assert_eq!(after, before);
    view.set_pods(vec![pod("x", "10.0.0.1")], &[]);
    let (listed, _) = view.pool();
    assert_eq!(between.unwrap().members().len(), 0);
    assert!(Arc::ptr_eq(&after.unwrap(), &listed.unwrap()));
}

#[test]
fn what_is_odd_of_a_pod_is_told_once() {
    let mut odd = pod("x", "10.0.0.1");
    odd.oddities = vec!["odd".to_owned()];
    let mut view = view_of(vec![odd.clone()]);
    assert_eq!(view.pool().1.len(), 1);
    view.set_pods(vec![odd.clone(), pod("y", "10.0.0.2")], &[]);
    assert_eq!(view.pool().1, []);
    odd.oddities = vec!["otherwise".to_owned()];
    view.set_pod(odd);
    assert_eq!(view.pool().1.len(), 1);
}
