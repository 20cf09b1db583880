{{/* The picker's command line. */}}

{{/* The flags that the chart sets, each with the value that decides it. */}}
{{- define "warmpath.ownFlags" -}}
{{- $tls := .Values.inferenceExtension.tls -}}
{{- if eq (include "warmpath.discovery" .) "pool" }}
- {name: pool-name, value: {{ include "warmpath.poolName" . | quote }}, key: inferencePool.name}
- {name: pool-group, value: inference.networking.k8s.io, key: inferencePool.apiVersion}
{{- else }}
- {name: endpoint-selector, value: {{ include "warmpath.endpointSelector" . | quote }}, key: inferencePool.modelServers.matchLabels}
- {name: endpoint-target-ports, value: {{ include "warmpath.targetPorts" . | quote }}, key: inferencePool.targetPorts}
{{- end }}
- {name: pool-namespace, value: {{ .Release.Namespace | quote }}, key: the release's namespace}
- {name: grpc-port, value: "9002", key: inferenceExtension.extProcPort}
- {name: grpc-health-port, value: "9003", key: nothing (the probes ask there)}
- {name: metrics-port, value: "9090", key: inferenceExtension.metricsPort}
- {name: secure-serving, value: {{ $tls.enabled | quote }}, key: inferenceExtension.tls.enabled}
{{- if and $tls.enabled (include "warmpath.tlsSecretName" .) }}
- {name: cert-path, value: /tls, key: inferenceExtension.tls.secretName}
{{- end }}
- {name: config, value: /etc/warmpath/warmpath.yaml, key: settings}
- {name: drain-delay, value: {{ .Values.inferenceExtension.drain.delay | quote }}, key: inferenceExtension.drain.delay}
- {name: drain-timeout, value: {{ .Values.inferenceExtension.drain.timeout | quote }}, key: inferenceExtension.drain.timeout}
- {name: log-format, value: {{ .Values.inferenceExtension.logging.format | quote }}, key: inferenceExtension.logging.format}
{{- with .Values.inferenceExtension.logging.level }}
- {name: log-level, value: {{ . | quote }}, key: inferenceExtension.logging.level}
{{- end }}
{{- if .Values.inferenceExtension.monitoring.prometheus.auth.enabled }}
- {name: metrics-endpoint-auth, value: "true", key: inferenceExtension.monitoring.prometheus.auth.enabled}
{{- end }}
{{- end -}}

{{/* Flags that would contradict the rest of what is rendered, with the value that decides them. */}}
{{- define "warmpath.reservedFlags" -}}
pool-name: inferencePool.name
endpoint-selector: inferencePool.modelServers.matchLabels with standalone.enabled
endpoint-target-ports: inferencePool.targetPorts with standalone.enabled
endpoints-file: nothing (the Pods of the pool are the endpoints)
cert-path: inferenceExtension.tls.secretName
metrics-endpoint-auth: inferenceExtension.monitoring.prometheus.auth.enabled
bind: nothing (the Service and the probes reach the Pod's address)
{{- end -}}

{{/* All arguments. A flag of the user's that says what the chart says anyway is passed over. */}}
{{- define "warmpath.args" -}}
{{- $own := dict -}}
{{- $reserved := include "warmpath.reservedFlags" . | fromYaml -}}
{{- range include "warmpath.ownFlags" . | fromYamlArray }}
{{- $_ := set $own .name .value }}
{{- $_ := set $reserved .name .key }}
- {{ printf "--%s=%s" .name .value | quote }}
{{- end }}
{{- range $given, $value := .Values.inferenceExtension.flags }}
{{- $text := include "warmpath.text" $value }}
{{- if hasPrefix "-" $given }}
{{- fail (printf "\n\ninferenceExtension.flags: write names without dashes: %s instead of %s.\n" (regexFind "[^-].*$" $given) $given) }}
{{- end }}
{{- /* GIE's chart made two arguments of name and value, so switches were written "name=false": "". */}}
{{- $name := regexFind "^[^=]+" $given }}
{{- if contains "=" $given }}{{- $text = trimPrefix (printf "%s=" $name) $given }}{{- end }}
{{- if not (hasKey $reserved $name) }}
- {{ (eq $text "") | ternary (printf "--%s" $name) (printf "--%s=%s" $name $text) | quote }}
{{- else if ne (get $own $name) $text }}
{{- fail (printf "\n\ninferenceExtension.flags.%s: this flag is decided by %s.\n" $name (get $reserved $name)) }}
{{- end }}
{{- end }}
{{- end -}}
