//! The API server of the tests does what theirs stand on: addresses, rights, the audit log.

use crate::support::cluster::Cluster;
use crate::support::cluster::accounts::reader;
use crate::support::ports::own_loopback;

#[tokio::test]
async fn a_pod_may_have_a_loopback_address_and_stays_until_its_kubelet_lets_it_go() {
    let Some(cluster) = Cluster::shared().await else {
        return;
    };
    let namespace = cluster.namespace("server").await;
    let ip = own_loopback();
    namespace.create_pod("vllm-0").await;
    namespace.pod_runs("vllm-0", ip.into(), true, 0).await;
    let pod = namespace.pods().get("vllm-0").await.unwrap();
    assert_eq!(pod.status.unwrap().pod_ip, Some(ip.to_string()));
    namespace.terminate_pod("vllm-0").await;
    let pod = namespace.pods().get("vllm-0").await.unwrap();
    assert!(pod.metadata.deletion_timestamp.is_some());
    namespace.delete_pod("vllm-0").await;
    let gone = namespace.pods().get_opt("vllm-0").await.unwrap();
    assert_eq!(gone, None);
}

#[tokio::test]
async fn an_account_may_do_what_its_role_says_and_the_audit_log_tells_of_it() {
    let Some(cluster) = Cluster::shared().await else {
        return;
    };
    let namespace = cluster.namespace("server").await;
    let kubeconfig = namespace.account("reader", &reader()).await;
    let kubeconfig = kubeconfig.to_str().unwrap();
    let may = ["--kubeconfig", kubeconfig, "get", "pods"];
    namespace.kubectl(&may).await;
    let may_not = [
        "--kubeconfig",
        kubeconfig,
        "--namespace",
        &namespace.name,
        "delete",
        "pod",
        "x",
    ];
    let refused = cluster.try_kubectl(&may_not).await;
    assert!(!refused.status.success());
    let audited: Vec<_> = cluster
        .audited(&namespace.user("reader"))
        .into_iter()
        .collect();
    let seen: Vec<_> = audited
        .iter()
        .filter(|request| request.resource == "pods")
        .map(|request| {
            (
                request.verb.as_str(),
                request.namespace.as_str(),
                request.code,
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("delete", &*namespace.name, 403),
            ("list", &*namespace.name, 200)
        ]
    );
}
