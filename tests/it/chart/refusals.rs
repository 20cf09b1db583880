//! Which values are refused, and with which words.

use super::Helm;

/// Values, and a part of what helm must say about them.
const REFUSED: [(&str, &str); 51] = [
    ("{}", "matchLabels is required"),
    (
        "inferencePool: {modelServers: {matchLabels: {app: vllm}}, targetPort: 8000}",
        "'targetPort' not allowed",
    ),
    (
        "inferencePool: {modelServers: {matchLabels: {app: vllm}}, targetPorts: []}",
        "'/inferencePool/targetPorts': minItems",
    ),
    (
        "inferencePool: {modelServers: {matchLabels: {app: vllm}}, targetPorts: [{number: 70000}]}",
        "targetPorts/0/number': maximum: got 70,000",
    ),
    (
        "inferencePool: {modelServers: {matchLabels: {app: vllm}}, targetPorts: [{numbr: 80}]}",
        "'numbr' not allowed",
    ),
    (
        "inferencePool: {modelServers: {matchLabels: {app: vllm}}, apiVersion: inference.networking.x-k8s.io/v1alpha2}",
        "value must be 'inference.networking.k8s.io/v1'",
    ),
    (
        "inferencePool: {modelServers: {matchLabels: {app: vllm}}, modelServerProtocol: grpc}",
        "\"grpc\" is not supported",
    ),
    (
        "inferencePool: {modelServers: {matchLabels: {app: vllm}}, modelServerType: triton-tensorrt-llm}",
        "\"triton-tensorrt-llm\" is not supported",
    ),
    (
        "inferencePool: {modelServers: {matchLabels: {app: vllm}}, modelServerType: tgi}",
        "value must be one of 'vllm', 'sglang'",
    ),
    (
        "inferencePool: {create: false}",
        "inferencePool.create=false needs inferencePool.name",
    ),
    (
        "inferencePool: {name: Pool}",
        "/inferencePool/name': 'Pool' does not match pattern",
    ),
    (
        "inferenceExtension: {replicas: 0}",
        "replicas': minimum: got 0, want 1",
    ),
    ("inferenceExtension: {replica: 2}", "'replica' not allowed"),
    (
        "inferenceExtension: {failureMode: FailClosed}",
        "value must be one of 'FailOpen', 'FailClose'",
    ),
    (
        "inferenceExtension: {env: {A: b}}",
        "env': got object, want array",
    ),
    (
        "inferenceExtension: {drain: {timeout: 30}}",
        "drain/timeout': got number, want string",
    ),
    (
        "{inferencePool: {name: p, create: false}, inferenceExtension: {drain: {timeout: 0m0s}}}",
        "\"0m0s\" is no time at all",
    ),
    (
        "inferenceExtension: {drain: {delay: 5}}",
        "drain/delay': got number, want string",
    ),
    (
        "{inferencePool: {name: p, create: false}, inferenceExtension: {flags: {grpc-port: 9005}}}",
        "flags.grpc-port: this flag is decided by inferenceExtension.extProcPort",
    ),
    (
        "{inferencePool: {name: p, create: false}, inferenceExtension: {flags: {secure-serving=false: ''}}}",
        "flags.secure-serving: this flag is decided by inferenceExtension.tls.enabled",
    ),
    (
        "{inferencePool: {name: p, create: false}, inferenceExtension: {flags: {endpoints-file: /x}}}",
        "flags.endpoints-file: this flag is decided by nothing",
    ),
    (
        "inferenceExtension: {image: {repository: gateway-api-inference-extension/epp}}",
        "another endpoint picker's image",
    ),
    (
        "inferenceExtension: {image: {repository: mirror/lwepp}}",
        "another endpoint picker's image",
    ),
    (
        "inferenceExtension: {image: {registry: ghcr.io, repository: llm-d/llm-d-router-endpoint-picker}}",
        "another endpoint picker's image",
    ),
    (
        "{inferencePool: {name: p, create: false}, inferenceExtension: {tls: {certManager: {enabled: true}}}}",
        "issuerRef is required",
    ),
    (
        "{inferencePool: {name: p, create: false}, inferenceExtension: {tls: {enabled: false, secretName: s}}}",
        "enabled is false, yet a certificate is given",
    ),
    (
        "settings: {guards: {kv_usage_limit: 95}}",
        "kv_usage_limit': maximum: got 95, want 1",
    ),
    (
        "settings: {limits: {max_body: 32MB}}",
        "'32MB' does not match pattern",
    ),
    (
        "{inferencePool: {name: p, create: false}, tokenizer: {persistentVolumeClaim: {claimName: a}, image: {reference: b}}}",
        "exclude each other",
    ),
    (
        "provider: {name: nginx}",
        "value must be one of 'none', 'gke', 'istio'",
    ),
    (
        "{inferencePool: {modelServers: {matchLabels: {a: b}}}, standalone: {enabled: true}, experimentalHttpRoute: {enabled: true}}",
        "experimentalHttpRoute.enabled needs a Gateway",
    ),
    (
        "inferencePool: {modelServers: {matchLabels: {app: vllm}}, targetPorts: null}",
        "'/inferencePool': missing property 'targetPorts'",
    ),
    ("provider: null", "missing property 'provider'"),
    (
        "{inferenceExtension: null, standalone: null}",
        "missing properties 'inferenceExtension', 'standalone'",
    ),
    (
        "inferenceExtension: {monitoring: null}",
        "'/inferenceExtension': missing property 'monitoring'",
    ),
    (
        "tokenizer: {hub: null}",
        "'/tokenizer': missing property 'hub'",
    ),
    (
        "{inferencePool: {name: p, create: false}, inferenceExtension: {flags: {--v: 1}}}",
        "flags: write names without dashes: v instead of --v",
    ),
    (
        "router: {epp: {flags: {v: 1}}}",
        "router: this is a value of llm-d's charts. docs/migrating.md",
    ),
    (
        "{inferencePool: {name: p, create: false}, inferenceExtension: {extProcPort: 9003}}",
        "extProcPort: the Service has port 9003 already: grpc-health",
    ),
    (
        "{inferencePool: {name: p, create: false}, inferenceExtension: {extProcPort: 9090}}",
        "metricsPort: the Service has port 9090 already: inferenceExtension.extProcPort",
    ),
    (
        "{inferencePool: {name: p, create: false}, inferenceExtension: {extraServicePorts: [{name: x, port: 9002}]}}",
        "extraServicePorts: the Service has port 9002 already",
    ),
    (
        "podDisruptionBudget: {maxUnavailable: 0}",
        "podDisruptionBudget/maxUnavailable': minimum: got 0, want 1",
    ),
    (
        "podDisruptionBudget: {maxUnavailable: 0%}",
        "podDisruptionBudget/maxUnavailable': '0%' does not match pattern",
    ),
    (
        "inferencePool: {modelServers: {matchLabels: {app.kubernetes.io/name: warmpath}}}",
        "also selects this release's own Pods",
    ),
    (
        "{inferencePool: {modelServers: {matchLabels: {app: vllm}}}, inferenceExtension: {podLabels: {app: vllm}}}",
        "also selects this release's own Pods",
    ),
    (
        "{inferencePool: {modelServers: {matchLabels: {app: vllm}}}, inferenceExtension: {podLabels: {app.kubernetes.io/name: x}}}",
        "podLabels: app.kubernetes.io/name is the chart's own",
    ),
    (
        "{inferencePool: {name: p, create: false}, inferenceExtension: {env: [{name: A, value: b}, {name: POD_NAME, value: x}]}}",
        "env: POD_NAME is set by the chart",
    ),
    (
        "{inferencePool: {name: p, create: false}, inferenceExtension: {env: [{name: HF_TOKEN, value: x}]}, tokenizer: {hub: {tokenSecret: {name: s}}}}",
        "env: HF_TOKEN is set by the chart: tokenizer.hub.tokenSecret",
    ),
    (
        "inferenceExtension: {logging: {level: verbose}}",
        "logging/level': 'verbose' does not match pattern",
    ),
    (
        "inferenceExtension: {logging: {level: 'info,warmpath::feeds=loud'}}",
        "logging/level': 'info,warmpath::feeds=loud' does not match pattern",
    ),
    (
        "inferenceExtension: {drain: {timeout: 1m30}}",
        "drain/timeout': '1m30' does not match pattern",
    ),
];

#[test]
fn wrong_values_are_refused_with_their_path_and_what_was_expected() {
    let Some(helm) = Helm::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let values = folder.path().join("values.yaml");
    for (text, message) in REFUSED {
        std::fs::write(&values, text).unwrap();
        let refusal = helm.template(&values).expect_err(text);
        assert!(refusal.contains(message), "{text}: {refusal}");
    }
}

#[test]
fn an_image_of_our_own_is_taken_whatever_the_registry_is_called() {
    let Some(helm) = Helm::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let values = folder.path().join("values.yaml");
    for image in [
        "{registry: epp.example, repository: warmpath}",
        "{registry: '', repository: mirror/warmpath-epp, tag: v9}",
        "{registry: registry.example, repository: llm/picker}",
    ] {
        std::fs::write(
            &values,
            format!("{{inferencePool: {{create: false, name: p}}, inferenceExtension: {{image: {image}}}}}"),
        )
        .unwrap();
        helm.template(&values).expect(image);
    }
}

#[test]
fn levels_of_the_log_are_taken_as_the_program_takes_them() {
    let Some(helm) = Helm::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let values = folder.path().join("values.yaml");
    for level in ["", "debug", "off", "info,warmpath::feeds=debug,h2=warn"] {
        let text = format!(
            "{{inferencePool: {{create: false, name: p}}, inferenceExtension: {{logging: {{level: '{level}'}}}}}}"
        );
        std::fs::write(&values, text).unwrap();
        helm.template(&values).expect(level);
    }
}
