{{/* What things are called. */}}

{{/* Name of the Deployment and of all that belongs to it. As in GIE's chart, so that rules that name it still fit. */}}
{{- define "warmpath.fullname" -}}
{{- .Values.fullnameOverride | default (printf "%s-epp" (include "warmpath.shortRelease" .)) -}}
{{- end -}}

{{/* The release's name in at most 40 characters; a hash keeps long ones apart that begin alike. */}}
{{- define "warmpath.shortRelease" -}}
{{- if le (len .Release.Name) 40 -}}
{{- .Release.Name -}}
{{- else -}}
{{- printf "%s-%s" (.Release.Name | trunc 31 | trimSuffix "-") (.Release.Name | sha256sum | trunc 8) -}}
{{- end -}}
{{- end -}}

{{- define "warmpath.envoyName" -}}
{{- printf "%s-envoy" (include "warmpath.fullname" .) -}}
{{- end -}}

{{- define "warmpath.poolName" -}}
{{- .Values.inferencePool.name | default .Release.Name -}}
{{- end -}}

{{- define "warmpath.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "warmpath.fullname" .) "default") -}}
{{- end -}}

{{/* Cluster-wide names carry the namespace: another one may have a release of the same name. */}}
{{- define "warmpath.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "warmpath.fullname" .) -}}
{{- end -}}

{{- define "warmpath.tlsSecretName" -}}
{{- $tls := .Values.inferenceExtension.tls -}}
{{- if $tls.secretName -}}
{{- $tls.secretName -}}
{{- else if $tls.certManager.enabled -}}
{{- printf "%s-tls" (include "warmpath.fullname" .) -}}
{{- end -}}
{{- end -}}

{{- define "warmpath.metricsReaderName" -}}
{{- printf "%s-metrics-reader" (include "warmpath.fullname" .) -}}
{{- end -}}

{{- define "warmpath.metricsSecretName" -}}
{{- .Values.inferenceExtension.monitoring.prometheus.auth.secretName | default (include "warmpath.metricsReaderName" .) -}}
{{- end -}}

{{/* Takes [context, component]. These never change for a release: a Deployment's selector cannot. */}}
{{- define "warmpath.selector" -}}
app.kubernetes.io/name: warmpath
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "warmpath.selectorLabels" -}}
{{- include "warmpath.selector" (list . "endpoint-picker") -}}
{{- end -}}

{{/* Labels of the pickers' Pods. */}}
{{- define "warmpath.podLabels" -}}
{{ include "warmpath.selectorLabels" . }}
{{- with .Values.inferenceExtension.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "warmpath.envoySelectorLabels" -}}
{{- include "warmpath.selector" (list . "envoy") -}}
{{- end -}}

{{- define "warmpath.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "warmpath.labels" -}}
{{ include "warmpath.selectorLabels" . }}
{{ include "warmpath.commonLabels" . }}
{{- end -}}

{{- define "warmpath.envoyLabels" -}}
{{ include "warmpath.envoySelectorLabels" . }}
{{ include "warmpath.commonLabels" . }}
{{- end -}}

{{- define "warmpath.headlessName" -}}
{{- printf "%s-headless" (include "warmpath.fullname" .) -}}
{{- end -}}
