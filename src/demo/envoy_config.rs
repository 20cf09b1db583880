//! What does the demo's Envoy run? The file we ship, with the addresses of this run.
//!
//! The file is read as data and changed by path. Where a path is not in it (any more), that is an error and never a
//! demo of some other configuration.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::yaml::{self, Located};

const SHIPPED: &str = include_str!("../../deploy/static/envoy.yaml");
const LISTENERS: &str = "/static_resources/listeners";
const CLUSTERS: &str = "/static_resources/clusters";
const ENDPOINTS: &str = "/load_assignment/endpoints/0/lb_endpoints";
const PORT: &str = "/address/socket_address/port_value";
/// The listener whose requests go where the picker says.
pub(super) const PICKED: &str = "picked";
/// The listener whose requests go to the engines in turn.
pub(super) const ROUND_ROBIN: &str = "round-robin";

/// Why the shipped file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConfigError {
    /// Not YAML.
    #[error("deploy/static/envoy.yaml:{}:{}: {}", .0.line, .0.column, .0.problem)]
    NotYaml(Located),
    /// Something that is changed here is not there.
    #[error("deploy/static/envoy.yaml has no {0}, so it cannot be run with other addresses")]
    Absent(String),
}

/// The shipped configuration for these addresses, on ports of Envoy's own choice.
///
/// # Errors
/// When the shipped file lacks what has to be changed.
pub(super) fn render(engines: &[SocketAddr], picker: SocketAddr) -> Result<Value, ConfigError> {
    render_from(SHIPPED, engines, picker)
}

fn render_from(
    text: &str,
    engines: &[SocketAddr],
    picker: SocketAddr,
) -> Result<Value, ConfigError> {
    let mut config: Value = yaml::read(text).map_err(ConfigError::NotYaml)?;
    set(
        &mut config,
        "/admin/address/socket_address/port_value",
        json!(0),
    )?;
    for name in [PICKED, ROUND_ROBIN] {
        set(named(&mut config, LISTENERS, name)?, PORT, json!(0))?;
    }
    for name in ["engines", "engines-round-robin"] {
        let cluster = named(&mut config, CLUSTERS, name)?;
        set(cluster, ENDPOINTS, endpoints(engines))?;
    }
    let cluster = named(&mut config, CLUSTERS, "picker")?;
    set(cluster, ENDPOINTS, endpoints(&[picker]))?;
    Ok(config)
}

fn endpoints(addresses: &[SocketAddr]) -> Value {
    let endpoint = |address: &SocketAddr| {
        let socket = json!({ "address": address.ip(), "port_value": address.port() });
        json!({ "endpoint": { "address": { "socket_address": socket } } })
    };
    addresses.iter().map(endpoint).collect()
}

/// Replaces what is there.
fn set(value: &mut Value, pointer: &str, new: Value) -> Result<(), ConfigError> {
    let old = value.pointer_mut(pointer);
    *old.ok_or_else(|| ConfigError::Absent(pointer.to_owned()))? = new;
    Ok(())
}

/// The member of the list at `pointer` that has this name.
fn named<'a>(
    value: &'a mut Value,
    pointer: &str,
    name: &str,
) -> Result<&'a mut Value, ConfigError> {
    value
        .pointer_mut(pointer)
        .and_then(Value::as_array_mut)
        .and_then(|members| members.iter_mut().find(|member| member["name"] == name))
        .ok_or_else(|| ConfigError::Absent(format!("`{name}` in {pointer}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses() -> (Vec<SocketAddr>, SocketAddr) {
        let local = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        (vec![local(1), local(2)], local(3))
    }

    #[test]
    fn no_port_of_the_shipped_file_is_left() {
        let (engines, picker) = addresses();
        let config = render(&engines, picker).unwrap().to_string();
        for port in ["8000", "8001", "8002", "9002", "9901", "10000", "10001"] {
            assert!(
                !config.contains(&format!("\"port_value\":{port}")),
                "{port}"
            );
        }
        // Two listeners and the admin page; two clusters with both engines; the picker.
        for (port, times) in [(0, 3), (1, 2), (2, 2), (3, 1)] {
            let written = config.matches(&format!("\"port_value\":{port}}}")).count();
            assert_eq!(written, times, "port {port} in {config}");
        }
    }

    #[test]
    fn a_file_without_what_is_changed_is_an_error_that_names_it() {
        let (engines, picker) = addresses();
        let told = |text: &str| render_from(text, &engines, picker).unwrap_err().to_string();
        let renamed = SHIPPED.replace("name: round-robin", "name: in-turn");
        assert!(told(&renamed).contains("`round-robin` in /static_resources/listeners"));
        assert!(told("{}").contains("/admin/address"));
        assert!(told("a: [").starts_with("deploy/static/envoy.yaml:1:"));
    }
}
