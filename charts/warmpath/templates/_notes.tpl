{{/* What the user set that has no meaning here, and what is better known. One line each. */}}

{{- define "warmpath.withoutMeaning" -}}
{{- $picker := .Values.inferenceExtension -}}
{{- range $key, $why := dict
    "pluginsConfigFile" "the pick has one rule; see settings"
    "pluginsCustomConfig" "the pick has one rule; see settings"
    "tracing" "there are no traces; see /debug/decisions"
    "latencyPredictor" "costs are tokens, not times"
    "sidecar" "standalone.enabled runs an Envoy"
    "endpointsServer" "only endpointSelector and targetPorts are used, with standalone.enabled" }}
{{- if hasKey $picker $key }}
  inferenceExtension.{{ $key }}: {{ $why }}
{{- end }}
{{- end }}
{{- $source := $picker.metricsDataSource | default dict }}
{{- range $key := list "scheme" "insecureSkipVerify" }}
{{- if hasKey $source $key }}
  inferenceExtension.metricsDataSource.{{ $key }}: engines are asked over HTTP
{{- end }}
{{- end }}
{{- if hasKey $picker.monitoring "gke" }}
  inferenceExtension.monitoring.gke: provider.name decides
{{- end }}
{{- range $key, $why := dict
    "parser" "the request's path decides"
    "targetPortNumber" "use inferencePool.targetPorts" }}
{{- if hasKey $.Values.inferencePool $key }}
  inferencePool.{{ $key }}: {{ $why }}
{{- end }}
{{- end }}
{{- if hasKey .Values "inferenceObjectives" }}
  inferenceObjectives: there are no priorities
{{- end }}
{{- end -}}

{{- define "warmpath.warnings" -}}
{{- $picker := .Values.inferenceExtension -}}
{{- $claim := .Values.tokenizer.hub.cache.claimName -}}
{{- if not $picker.image.registry }}
  No image is published: {{ include "warmpath.image" . }} must be known to the nodes. Set inferenceExtension.image.registry.
{{- end }}
{{- if lt (int $picker.replicas) 2 }}
  One replica: while it restarts, the gateway fails requests or sends them anywhere, and there is no PodDisruptionBudget.
{{- else if not .Values.podDisruptionBudget.enabled }}
  No PodDisruptionBudget: a drained node may take all pickers at once.
{{- end }}
{{- if and (gt (int $picker.replicas) 1) $claim }}
  The claim {{ $claim }} is written by {{ $picker.replicas }} replicas and has to be ReadWriteMany.
{{- end }}
{{- if ne .Values.inferencePool.modelServerType "vllm" }}
  {{ .Values.inferencePool.modelServerType }}: caches are known exactly only where the engine publishes KV events; see /debug/state.
{{- end }}
{{- if and (not .Values.tokenizer.hub.enabled) (not (include "warmpath.tokenizerVolume" .)) (not (dig "tokenizers" "models" nil (.Values.settings | default dict))) }}
  No tokenizer source: token ids are asked of the engines, which takes longer.
{{- end }}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.scrapers) $picker.monitoring.prometheus.enabled }}
  networkPolicy.scrapers is empty: nobody can scrape the metrics.
{{- end }}
{{- if and $picker.monitoring.prometheus.rules.enabled (eq .Values.provider.name "gke") }}
  No PrometheusRule with provider.name=gke: Managed Prometheus has a kind of its own. files/alerts.yaml has the alerts.
{{- end }}
{{- if not (or $picker.monitoring.prometheus.auth.enabled .Values.networkPolicy.enabled) }}
  The metrics and debug pages (port {{ $picker.metricsPort }}) are open within the cluster; see networkPolicy and monitoring.prometheus.auth.
{{- end }}
{{- end -}}
