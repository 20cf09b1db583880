//! The examples that users apply: the API server takes each of them as it stands.

use std::path::Path;

use crate::support::cluster::Cluster;

#[tokio::test]
async fn the_api_server_takes_every_example() {
    let Some(cluster) = Cluster::shared().await else {
        return;
    };
    let namespace = cluster.namespace("examples").await;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/kubernetes");
    let mut objects = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let documents: Vec<serde_json::Value> = serde_yaml::from_multiple(&text).unwrap();
        objects += documents.len();
    }
    let folder = folder.to_str().unwrap();
    let apply = [
        "--namespace",
        &namespace.name,
        "apply",
        "--dry-run=server",
        "--validate=strict",
    ];
    let args = [&apply[..], &["--filename", folder]].concat();
    let output = cluster.try_kubectl(&args).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    // A field that is deprecated or will be dropped is told of there.
    assert_eq!(said, "");
    let taken = String::from_utf8_lossy(&output.stdout);
    assert_eq!(taken.lines().count(), objects, "{taken}");
    assert!(objects > 10, "{taken}");
}
