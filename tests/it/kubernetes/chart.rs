//! The chart by a real helm in a real API server: installed, upgraded, and gone without a trace.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use futures_util::stream::{self, StreamExt as _};
use serde_json::{Value, json};

use crate::support::cluster::Cluster;
use crate::support::cluster::namespace::Namespace;
use crate::support::tools::tool;

/// The release's name in every test.
const RELEASE: &str = "warm";

/// A file of this repository.
fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The real helm, at work in one namespace.
pub(super) struct Helm<'a> {
    program: PathBuf,
    namespace: &'a Namespace,
}

impl<'a> Helm<'a> {
    /// `None` (with a printed line) where helm is missing.
    pub(super) fn of(namespace: &'a Namespace) -> Option<Self> {
        let program = tool("helm")?;
        Some(Self { program, namespace })
    }

    async fn run(&self, args: &[&str]) -> String {
        let said = self.try_run(args).await;
        said.unwrap_or_else(|refusal| panic!("helm {args:?}: {refusal}"))
    }

    /// What helm prints, or why it refuses.
    async fn try_run(&self, args: &[&str]) -> Result<String, String> {
        let args = [args, &["--namespace", &self.namespace.name]].concat();
        let output = self.namespace.cluster.run(&self.program, &args, "").await;
        let text = |bytes| String::from_utf8(bytes).expect("helm prints text");
        if output.status.success() {
            Ok(text(output.stdout))
        } else {
            Err(text(output.stderr))
        }
    }

    /// `helm install` or `upgrade` of the chart with a values file and further flags.
    pub(super) async fn chart(&self, verb: &str, values: &str, more: &[&str]) -> String {
        let said = self.try_chart(verb, values, more).await;
        said.unwrap_or_else(|refusal| panic!("helm {verb} {values} {more:?}: {refusal}"))
    }

    /// Why the same is refused.
    pub(super) async fn refuses(&self, verb: &str, values: &str, more: &[&str]) -> String {
        let said = self.try_chart(verb, values, more).await;
        said.expect_err("helm refuses")
    }

    async fn try_chart(&self, verb: &str, values: &str, more: &[&str]) -> Result<String, String> {
        let (chart, values) = (file("charts/warmpath"), file(values));
        let chart = chart.to_str().expect("a path in UTF-8");
        let values = values.to_str().expect("a path in UTF-8");
        let args = [verb, RELEASE, chart, "--values", values];
        self.try_run(&[&args[..], more].concat()).await
    }

    pub(super) async fn rollback(&self, revision: &str) {
        self.run(&["rollback", RELEASE, revision]).await;
    }

    pub(super) async fn uninstall(&self) {
        self.run(&["uninstall", RELEASE]).await;
    }
}

/// The values files of the chart's tests.
fn values_files() -> Vec<String> {
    let folder = std::fs::read_dir(file("tests/data/chart")).expect("the folder of values files");
    let names = folder.map(|entry| entry.expect("an entry").file_name());
    let names = names.map(|name| name.into_string().expect("a name in UTF-8"));
    let yaml = names.filter(|name| name.ends_with(".yaml"));
    let mut files: Vec<_> = yaml
        .map(|name| format!("tests/data/chart/{name}"))
        .collect();
    files.sort();
    files
}

/// Every kind that can be listed: those in a namespace, or those of the whole cluster that a chart may make.
async fn kinds(cluster: &Cluster) -> String {
    let args = [
        "api-resources",
        "--verbs=list",
        "--namespaced",
        "--output=name",
    ];
    let kinds = cluster.kubectl(&args).await;
    // Events tell of what was; they go by themselves.
    let kinds = kinds.lines().filter(|kind| !kind.starts_with("events"));
    kinds.collect::<Vec<_>>().join(",")
}

/// What is in the namespace, and what the whole cluster has of this release.
async fn everything(namespace: &Namespace, kinds: &str) -> BTreeSet<String> {
    let here = namespace.kubectl(&["get", kinds, "--output=name"]).await;
    let everywhere = "clusterroles,clusterrolebindings,customresourcedefinitions,namespaces";
    let theirs = namespace
        .kubectl(&["get", everywhere, "--output=name"])
        .await;
    let ours = theirs.lines().filter(|name| name.contains(&namespace.name));
    here.lines().chain(ours).map(str::to_owned).collect()
}

/// Lets the API server take objects of kinds whose definitions are not at hand (those of Prometheus, Istio, GKE,
/// cert-manager), whatever is in them.
async fn define_missing_kinds(namespace: &Namespace, manifests: &[Value]) {
    let served = namespace.kubectl(&["api-resources", "--no-headers"]).await;
    let served: BTreeSet<(&str, &str)> = served
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().rev();
            let (kind, _namespaced, version) = (words.next()?, words.next()?, words.next()?);
            Some((version, kind))
        })
        .collect();
    let kinds: BTreeSet<(&str, &str)> = manifests
        .iter()
        .filter_map(|manifest| Some((manifest["apiVersion"].as_str()?, manifest["kind"].as_str()?)))
        .filter(|kind| !served.contains(kind))
        .collect();
    let definitions: Vec<_> = kinds.into_iter().map(definition).collect();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": definitions });
    namespace.cluster.apply(&list.to_string()).await;
    let wait = [
        "wait",
        "--for=condition=Established",
        "--timeout=60s",
        "crd",
        "--all",
    ];
    namespace.kubectl(&wait).await;
}

fn definition((version, kind): (&str, &str)) -> Value {
    let (group, version) = version.split_once('/').expect("a kind that is no core one");
    let plural = format!("{}s", kind.to_lowercase());
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": {
            "group": group,
            "names": { "kind": kind, "plural": plural },
            "scope": "Namespaced",
            "versions": [{ "name": version, "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }],
        },
    })
}

/// The values files that between them make every object that the chart can make.
const INSTALLED: [&str; 3] = ["default", "locked-down", "standalone"];

#[tokio::test]
async fn every_values_file_is_taken_and_what_is_installed_goes_without_a_trace() {
    let Some(cluster) = Cluster::shared().await else {
        return;
    };
    let first = cluster.namespace("chart").await;
    let Some(helm) = Helm::of(&first) else {
        return;
    };
    let files = values_files();
    // That these are what the files render is a test of its own.
    let manifests = files.iter().flat_map(|values| {
        let golden = values.replace("/chart/", "/chart/golden/");
        let text = std::fs::read_to_string(file(&golden)).expect("a golden file");
        let documents: Vec<Value> = serde_yaml::from_multiple(&text).expect("YAML documents");
        documents
    });
    define_missing_kinds(&first, &manifests.collect::<Vec<_>>()).await;
    let kinds = kinds(&cluster).await;
    let tried = files.iter().map(async |values| {
        helm.chart("install", values, &["--dry-run=server"]).await;
        if !INSTALLED
            .iter()
            .any(|name| values.ends_with(&format!("/{name}.yaml")))
        {
            return;
        }
        let namespace = cluster.namespace("chart").await;
        let helm = Helm::of(&namespace).expect("it was there");
        helm.chart("install", values, &[]).await;
        namespace
            .kubectl(&["get", "deployment/warm-epp", "service/warm-epp"])
            .await;
        helm.uninstall().await;
        let alone = BTreeSet::from([format!("namespace/{}", namespace.name)]);
        assert_eq!(everything(&namespace, &kinds).await, alone, "{values}");
    });
    let tried: Vec<()> = stream::iter(tried).buffer_unordered(2).collect().await;
    assert!(tried.len() > INSTALLED.len());
}

#[tokio::test]
async fn changed_settings_roll_the_pickers_and_an_upgrade_to_the_same_does_not() {
    let Some(cluster) = Cluster::shared().await else {
        return;
    };
    let namespace = cluster.namespace("upgrade").await;
    let Some(helm) = Helm::of(&namespace) else {
        return;
    };
    let template = async || {
        let deployment = namespace
            .kubectl(&["get", "deployment", "warm-epp", "--output=json"])
            .await;
        let deployment: Value = serde_json::from_str(&deployment).unwrap();
        (
            deployment["metadata"]["generation"].clone(),
            deployment["spec"]["template"].clone(),
        )
    };
    let values = "tests/data/chart/default.yaml";
    helm.chart("install", values, &[]).await;
    let first = template().await;
    helm.chart("upgrade", values, &[]).await;
    assert_eq!(template().await, first);
    helm.chart(
        "upgrade",
        values,
        &["--set", "settings.guards.report_age_limit=1s"],
    )
    .await;
    let second = template().await;
    assert_ne!(second.1, first.1);
    helm.chart(
        "upgrade",
        values,
        &["--set", "inferenceExtension.drain.delay=9s"],
    )
    .await;
    assert_ne!(template().await.1, second.1);
}
