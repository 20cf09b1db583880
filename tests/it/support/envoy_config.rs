//! Which configuration does a test's Envoy run? The one we ship, with the differences the test asks for.
//!
//! The shipped file is read as data and changed by path, so that a test can only ask for a difference
//! to something that is really there.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};

/// How Envoy hands bodies to the picker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyMode {
    /// Not at all.
    None,
    /// Chunk by chunk, each waiting for its answer.
    Streamed,
    /// In one message.
    Buffered,
    /// In one message, cut off at Envoy's buffer limit.
    BufferedPartial,
    /// Chunk by chunk, answers come when they come. What we ship.
    FullDuplexStreamed,
}

impl BodyMode {
    fn name(self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::Streamed => "STREAMED",
            Self::Buffered => "BUFFERED",
            Self::BufferedPartial => "BUFFERED_PARTIAL",
            Self::FullDuplexStreamed => "FULL_DUPLEX_STREAMED",
        }
    }

    /// Envoy demands trailers with full duplex; elsewhere they would be one more round trip.
    fn trailers(self) -> &'static str {
        if self == Self::FullDuplexStreamed {
            "SEND"
        } else {
            "SKIP"
        }
    }
}

/// What makes Envoy go where the picker says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obeys {
    /// The dynamic metadata, as Istio does. What we ship.
    Metadata,
    /// The request header alone, with any address (a cluster of type ORIGINAL_DST).
    Header,
}

/// Where the endpoints come from that the picker must stay within.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Subset {
    /// Nobody says: every endpoint may be chosen. What we ship.
    Unset,
    /// A list, the same for every request.
    List(Vec<String>),
    /// Each request's own header `x-gateway-destination-endpoint-subset`, handed on as one string.
    FromHeader,
}

/// One Envoy for a test: the shipped configuration and its differences.
#[derive(Clone, Debug)]
pub(crate) struct EnvoyConfig {
    /// Where the picker listens for ext-proc.
    pub(crate) picker: SocketAddr,
    /// Where further pickers listen, to be asked as well. Shipped: none.
    pub(crate) other_pickers: Vec<SocketAddr>,
    /// Whether the picker is spoken to over TLS. Shipped: yes.
    pub(crate) picker_tls: bool,
    /// Whether the picker's gRPC health is asked, and obeyed. Shipped: yes.
    pub(crate) picker_health_checked: bool,
    /// The engines that Envoy knows.
    pub(crate) engines: Vec<SocketAddr>,
    /// How request bodies are handed over.
    pub(crate) request_body: BodyMode,
    /// How response bodies are handed over.
    pub(crate) response_body: BodyMode,
    /// Whether the picker sees responses at all: with `false` there is no response phase. Shipped: yes.
    pub(crate) response_phase: bool,
    /// What makes Envoy go where the picker says.
    pub(crate) obeys: Obeys,
    /// The endpoints that the picker must stay within.
    pub(crate) subset: Subset,
    /// Whether requests go on without a picker. Shipped: no.
    pub(crate) failure_mode_allow: bool,
    /// Bytes that Envoy holds of one body (or sends in one piece). Shipped: Envoy's own 1 MiB.
    pub(crate) buffer_limit_bytes: Option<u32>,
    /// Whether HTTP/1.1 trailers are passed through instead of dropped. Shipped: no, as Envoy does.
    pub(crate) http1_trailers: bool,
    /// Whether a refused connection is tried again elsewhere. Shipped: yes.
    ///
    /// Envoy 1.40 sends the body twice to the engine when this is on and a full-duplex request ends
    /// with trailers (seen here; compare envoy#36119), so tests of request trailers turn it off.
    pub(crate) retries: bool,
}

impl EnvoyConfig {
    /// What we ship, with these addresses.
    pub(crate) fn new(picker: SocketAddr, engines: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self {
            picker,
            other_pickers: Vec::new(),
            picker_tls: true,
            picker_health_checked: true,
            engines: engines.into_iter().collect(),
            request_body: BodyMode::FullDuplexStreamed,
            response_body: BodyMode::FullDuplexStreamed,
            response_phase: true,
            obeys: Obeys::Metadata,
            subset: Subset::Unset,
            failure_mode_allow: false,
            buffer_limit_bytes: None,
            http1_trailers: false,
            retries: true,
        }
    }

    /// Envoy's configuration, with ports of Envoy's own choice.
    pub(crate) fn render(&self) -> Value {
        let mut config = shipped("envoy.yaml");
        set(
            &mut config,
            "/admin/address/socket_address/port_value",
            json!(0),
        );
        self.change_listeners(&mut config);
        self.change_engines(&mut config);
        self.change_picker(&mut config);
        config
    }

    fn change_listeners(&self, config: &mut Value) {
        for name in ["picked", "round-robin"] {
            let listener = named(config, "/static_resources/listeners", name);
            set(listener, "/address/socket_address/port_value", json!(0));
            if let Some(bytes) = self.buffer_limit_bytes {
                add(
                    listener,
                    "",
                    "per_connection_buffer_limit_bytes",
                    json!(bytes),
                );
            }
            if self.http1_trailers {
                let manager = "/filter_chains/0/filters/0/typed_config";
                add(
                    listener,
                    manager,
                    "http_protocol_options",
                    json!({ "enable_trailers": true }),
                );
            }
        }
        let picked = named(config, "/static_resources/listeners", "picked");
        let filters = at(
            picked,
            "/filter_chains/0/filters/0/typed_config/http_filters",
        );
        self.change_ext_proc(at(filters, "/0/typed_config"));
        if let (Some(filter), Some(filters)) = (self.subset_filter(), filters.as_array_mut()) {
            filters.insert(0, filter);
        }
        // A cluster that takes any address knows no other host to try.
        if !self.retries || self.obeys == Obeys::Header {
            let route = "/filter_chains/0/filters/0/typed_config/route_config/virtual_hosts/0/routes/0/route";
            remove(picked, route, "retry_policy");
        }
    }

    fn change_ext_proc(&self, ext_proc: &mut Value) {
        let (response_header_mode, response_body) = if self.response_phase {
            ("SEND", self.response_body)
        } else {
            ("SKIP", BodyMode::None)
        };
        let modes = json!({
            "request_header_mode": "SEND",
            "request_body_mode": self.request_body.name(),
            "request_trailer_mode": self.request_body.trailers(),
            "response_header_mode": response_header_mode,
            "response_body_mode": response_body.name(),
            "response_trailer_mode": response_body.trailers(),
        });
        set(ext_proc, "/processing_mode", modes);
        set(
            ext_proc,
            "/failure_mode_allow",
            json!(self.failure_mode_allow),
        );
    }

    /// A filter before ours that plays the gateway's part of saying which endpoints are allowed.
    fn subset_filter(&self) -> Option<Value> {
        let (namespace, key) = (
            "envoy.lb.subset_hint",
            "x-gateway-destination-endpoint-subset",
        );
        let (name, message, fields) = match &self.subset {
            Subset::Unset => return None,
            Subset::List(endpoints) => (
                "set_metadata",
                "set_metadata.v3.Config",
                json!({ "metadata": [{ "metadata_namespace": namespace, "value": { key: endpoints } }] }),
            ),
            Subset::FromHeader => (
                "header_to_metadata",
                "header_to_metadata.v3.Config",
                json!({ "request_rules": [{
                    "header": key,
                    "on_header_present": { "metadata_namespace": namespace, "key": key, "type": "STRING" },
                    "remove": true,
                }]}),
            ),
        };
        let mut filter =
            json!({ "name": format!("envoy.filters.http.{name}"), "typed_config": fields });
        let type_url = format!("type.googleapis.com/envoy.extensions.filters.http.{message}");
        add(&mut filter, "/typed_config", "@type", json!(type_url));
        Some(filter)
    }

    fn change_engines(&self, config: &mut Value) {
        for name in ["engines", "engines-round-robin"] {
            let cluster = named(config, "/static_resources/clusters", name);
            set(
                cluster,
                "/load_assignment/endpoints/0/lb_endpoints",
                endpoints(&self.engines),
            );
            if let Some(bytes) = self.buffer_limit_bytes {
                add(
                    cluster,
                    "",
                    "per_connection_buffer_limit_bytes",
                    json!(bytes),
                );
            }
            if self.http1_trailers {
                add(
                    cluster,
                    "",
                    "typed_extension_protocol_options",
                    http1_with_trailers(),
                );
            }
        }
        if self.obeys == Obeys::Header {
            let cluster = named(config, "/static_resources/clusters", "engines");
            remove(cluster, "", "load_balancing_policy");
            remove(cluster, "", "load_assignment");
            set(cluster, "/type", json!("ORIGINAL_DST"));
            add(cluster, "", "lb_policy", json!("CLUSTER_PROVIDED"));
            let by_header = json!({ "use_http_header": true, "http_header_name": "x-gateway-destination-endpoint" });
            add(cluster, "", "original_dst_lb_config", by_header);
        }
    }

    fn change_picker(&self, config: &mut Value) {
        let picker = named(config, "/static_resources/clusters", "picker");
        set(
            picker,
            "/load_assignment/endpoints/0/lb_endpoints",
            endpoints(&[&[self.picker], self.other_pickers.as_slice()].concat()),
        );
        if !self.picker_tls {
            remove(picker, "", "transport_socket");
        }
        if !self.picker_health_checked {
            remove(picker, "", "health_checks");
        }
    }
}

/// A file of `deploy/static`, as data.
pub(crate) fn shipped(name: &str) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/static");
    let text = std::fs::read_to_string(folder.join(name)).expect("a shipped file");
    serde_yaml::from_str(&text).expect("a shipped file is YAML")
}

fn endpoints(addresses: &[SocketAddr]) -> Value {
    let endpoint = |address: &SocketAddr| {
        let socket = json!({ "address": address.ip(), "port_value": address.port() });
        json!({ "endpoint": { "address": { "socket_address": socket } } })
    };
    addresses.iter().map(endpoint).collect()
}

fn http1_with_trailers() -> Value {
    json!({ "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": { "http_protocol_options": { "enable_trailers": true } },
    }})
}

/// The part of `value` that `pointer` names.
fn at<'a>(value: &'a mut Value, pointer: &str) -> &'a mut Value {
    value
        .pointer_mut(pointer)
        .unwrap_or_else(|| panic!("the shipped Envoy configuration has no {pointer}"))
}

/// The member of the list at `pointer` that has this name.
fn named<'a>(value: &'a mut Value, pointer: &str, name: &str) -> &'a mut Value {
    let members = at(value, pointer).as_array_mut().into_iter().flatten();
    members
        .into_iter()
        .find(|member| member["name"] == name)
        .unwrap_or_else(|| panic!("the shipped Envoy configuration has no {name} in {pointer}"))
}

/// Replaces what is there.
fn set(value: &mut Value, pointer: &str, new: Value) {
    *at(value, pointer) = new;
}

/// Adds a key that is not there yet to the object at `pointer`.
fn add(value: &mut Value, pointer: &str, key: &str, new: Value) {
    let object = at(value, pointer).as_object_mut().expect("an object");
    assert!(
        object.insert(key.to_owned(), new).is_none(),
        "the shipped Envoy configuration has {key} in {pointer} already"
    );
}

/// Removes a key that is there.
fn remove(value: &mut Value, pointer: &str, key: &str) {
    let object = at(value, pointer).as_object_mut().expect("an object");
    assert!(
        object.remove(key).is_some(),
        "the shipped Envoy configuration has no {key} in {pointer}"
    );
}
