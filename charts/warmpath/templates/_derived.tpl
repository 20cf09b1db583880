{{/* What follows from the values: modes, ports, times, the settings file. */}}

{{/* Numbers of a values file may be floating point, whose text would be 1e+06. */}}
{{- define "warmpath.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{/* A duration as Go writes it, such as 500ms, 5s or 1m30s, in whole seconds, rounded up. */}}
{{- define "warmpath.seconds" -}}
{{- $milliseconds := 0 -}}
{{- range regexFindAll "[0-9.]+[a-z]+" . -1 -}}
{{- $each := get (dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000) (regexFind "[a-z]+$" .) -}}
{{- $milliseconds = addf $milliseconds (mulf (regexFind "^[0-9.]+" .) $each) -}}
{{- end -}}
{{- divf $milliseconds 1000 | ceil | int64 -}}
{{- end -}}

{{/* The kubelet must not kill a picker that is still letting its streams end; 10 s are for the end itself. */}}
{{- define "warmpath.graceSeconds" -}}
{{- $drain := .Values.inferenceExtension.drain -}}
{{- add (include "warmpath.seconds" $drain.delay) (include "warmpath.seconds" $drain.timeout) 10 -}}
{{- end -}}

{{/* "pool" or "selector": whether an InferencePool says which Pods there are. */}}
{{- define "warmpath.discovery" -}}
{{- if and .Values.standalone.enabled (not .Values.inferencePool.name) -}}selector{{- else -}}pool{{- end -}}
{{- end -}}

{{- define "warmpath.createsPool" -}}
{{- if and .Values.inferencePool.create (not .Values.standalone.enabled) -}}true{{- end -}}
{{- end -}}

{{/* Target ports as a comma list. Bare numbers are taken besides {number: N}. */}}
{{- define "warmpath.targetPorts" -}}
{{- $ports := list -}}
{{- range .Values.inferencePool.targetPorts -}}
{{- $number := . -}}
{{- if kindIs "map" . -}}{{- $number = .number -}}{{- end -}}
{{- $ports = append $ports (include "warmpath.text" $number) -}}
{{- end -}}
{{- $standalone := .Values.inferenceExtension.endpointsServer | default dict -}}
{{- if and (eq (include "warmpath.discovery" .) "selector") $standalone.targetPorts -}}
{{- include "warmpath.text" $standalone.targetPorts -}}
{{- else -}}
{{- join "," $ports -}}
{{- end -}}
{{- end -}}

{{/* Labels of the model servers as a selector. */}}
{{- define "warmpath.endpointSelector" -}}
{{- $pairs := list -}}
{{- range $key, $value := .Values.inferencePool.modelServers.matchLabels -}}
{{- $pairs = append $pairs (printf "%s=%s" $key (include "warmpath.text" $value)) -}}
{{- end -}}
{{- (.Values.inferenceExtension.endpointsServer | default dict).endpointSelector | default (join "," $pairs) -}}
{{- end -}}

{{/* Whether a volume brings the tokenizers. */}}
{{- define "warmpath.tokenizerVolume" -}}
{{- if .Values.tokenizer.persistentVolumeClaim.claimName -}}claim{{- else if .Values.tokenizer.image.reference -}}image{{- end -}}
{{- end -}}

{{/*
The settings file: what other values imply, under what the user says. Key by key, since the merging
functions take `false` for "not set".
*/}}
{{- define "warmpath.settings" -}}
{{- $settings := deepCopy (.Values.settings | default dict) -}}
{{- $tokenizers := $settings.tokenizers | default dict -}}
{{- $reports := $settings.reports | default dict -}}
{{- if not (hasKey $tokenizers "hub") -}}{{- $_ := set $tokenizers "hub" .Values.tokenizer.hub.enabled -}}{{- end -}}
{{- if not (hasKey $tokenizers "cache_directory") -}}{{- $_ := set $tokenizers "cache_directory" "/cache/hub" -}}{{- end -}}
{{- if and (include "warmpath.tokenizerVolume" .) (not (hasKey $tokenizers "directory")) -}}{{- $_ := set $tokenizers "directory" "/models" -}}{{- end -}}
{{- if not (hasKey $reports "path") -}}
{{- $source := .Values.inferenceExtension.metricsDataSource | default dict -}}
{{- if and $source.path (ne $source.path "/metrics") -}}{{- $_ := set $reports "path" $source.path -}}
{{- else if eq .Values.inferencePool.modelServerType "trtllm-serve" -}}{{- $_ := set $reports "path" "/prometheus/metrics" -}}
{{- end -}}
{{- end -}}
{{- $_ := set $settings "tokenizers" $tokenizers -}}
{{- if $reports -}}{{- $_ := set $settings "reports" $reports -}}{{- end -}}
{{- toYaml $settings -}}
{{- end -}}

{{/* Takes [an image of the values, the tag where it names none]. */}}
{{- define "warmpath.imageName" -}}
{{- $image := index . 0 -}}
{{- $name := $image.registry | empty | ternary $image.repository (printf "%s/%s" $image.registry $image.repository) -}}
{{- if $image.digest -}}{{ $name }}@{{ $image.digest }}{{- else -}}{{ $name }}:{{ $image.tag | default (index . 1) }}{{- end -}}
{{- end -}}

{{- define "warmpath.image" -}}
{{- include "warmpath.imageName" (list .Values.inferenceExtension.image .Chart.AppVersion) -}}
{{- end -}}
