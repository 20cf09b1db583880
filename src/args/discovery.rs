//! Where the endpoints come from: an `InferencePool`, a selector of Pods, or a file.

use std::path::PathBuf;

use clap::ArgGroup;

/// Exactly one source has to be named.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(group = ArgGroup::new("source").required(true).args(["pool_name", "endpoint_selector", "endpoints_file"]))]
pub struct Discovery {
    /// Name of the InferencePool whose endpoints are picked
    #[arg(long, value_name = "NAME")]
    pub pool_name: Option<String>,
    /// Select Pods by these labels instead of by an InferencePool: app=vllm, or tier in (a, b)
    #[arg(long, value_name = "SELECTOR", requires = "endpoint_target_ports")]
    pub endpoint_selector: Option<String>,
    /// File that lists the endpoints, read again when it changes (docs/configuration.md)
    #[arg(long, value_name = "FILE")]
    pub endpoints_file: Option<PathBuf>,
    /// Namespace of the InferencePool and the Pods [default: that of the kubeconfig or of the picker's own Pod, else "default"]
    #[arg(long, value_name = "NAMESPACE", env = "NAMESPACE")]
    pub pool_namespace: Option<String>,
    /// API group of the InferencePool
    #[arg(
        long,
        value_name = "GROUP",
        default_value = "inference.networking.k8s.io"
    )]
    pub pool_group: String,
    /// Ports of each selected Pod, one endpoint each: 8000 or 8000,8001
    #[arg(long, value_name = "PORTS", value_delimiter = ',', requires = "endpoint_selector", value_parser = clap::value_parser!(u16).range(1..))]
    pub endpoint_target_ports: Vec<u16>,
}
