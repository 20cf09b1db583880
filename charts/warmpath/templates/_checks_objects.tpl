{{/* What is refused because of the objects that it would make: names, ports, labels, an InferencePool that would vanish. */}}

{{/* A Service's name is a label of DNS; a release's may be more than that. */}}
{{- define "warmpath.checkNames" -}}
{{- if not (regexMatch "^[a-z][-a-z0-9]*$" (include "warmpath.fullname" .)) -}}
{{- fail (printf "\n\nrelease %q: no Service can be called %q: a Service's name begins with a letter and has no dots. Set fullnameOverride, for example --set fullnameOverride=warmpath-epp, or name the release otherwise.\n" .Release.Name (include "warmpath.fullname" .)) -}}
{{- end -}}
{{- end -}}

{{/*
An upgrade must not take away a pool that traffic goes to: because inferencePool.create, inferencePool.name or
standalone.enabled changed, helm would delete it. It spares one that is annotated in the cluster. Without a cluster (`helm
template`) there is nothing to look at. `helm uninstall` renders nothing and is not held up.
*/}}
{{- define "warmpath.checkVanishingPool" -}}
{{- $version := "inference.networking.k8s.io/v1" -}}
{{- if and .Release.IsUpgrade (.Capabilities.APIVersions.Has (printf "%s/InferencePool" $version)) -}}
{{- $stays := include "warmpath.createsPool" . | empty | ternary "" (include "warmpath.poolName" .) -}}
{{- range (lookup $version "InferencePool" .Release.Namespace "").items -}}
{{- $annotations := .metadata.annotations | default dict -}}
{{- $owner := printf "%s/%s" (get $annotations "meta.helm.sh/release-namespace") (get $annotations "meta.helm.sh/release-name") -}}
{{- $ours := eq $owner (printf "%s/%s" $.Release.Namespace $.Release.Name) -}}
{{- if and $ours (ne .metadata.name $stays) (ne (get $annotations "helm.sh/resource-policy") "keep") -}}
{{- $command := printf "kubectl -n %s %%s inferencepool %s" $.Release.Namespace .metadata.name -}}
{{- fail (printf "\n\nThis upgrade would delete InferencePool %q, and requests that are routed to it would fail: with these values (inferencePool.create, inferencePool.name, standalone.enabled) it is no longer part of the release.\nTo leave it in the cluster, also when it was handed over before and lost the annotation:   %s helm.sh/resource-policy=keep\nTo be rid of it:              %s\nThen upgrade again. charts/warmpath/README.md, \"The pool\", says more.\n" .metadata.name (printf $command "annotate") (printf $command "delete")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "warmpath.checkPool" -}}
{{- include "warmpath.checkVanishingPool" . -}}
{{- $wanted := .Values.inferencePool.modelServers.matchLabels -}}
{{- range $labels := list (include "warmpath.podLabels" .) (include "warmpath.envoySelectorLabels" .) -}}
{{- $labels = fromYaml $labels -}}
{{- $misses := not $wanted -}}
{{- range $key, $value := $wanted -}}
{{- if not (and (hasKey $labels $key) (eq (get $labels $key) (include "warmpath.text" $value))) -}}{{- $misses = true -}}{{- end -}}
{{- end -}}
{{- if not $misses -}}
{{- fail (printf "\n\ninferencePool.modelServers.matchLabels: %s also selects this release's own Pods (inferenceExtension.podLabels counts), which serve no model. Select a label that only model servers have.\n" (toJson $wanted)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "warmpath.checkPicker" -}}
{{- $picker := .Values.inferenceExtension -}}
{{- $ports := dict "9003" "grpc-health, which is fixed" -}}
{{- $named := list (list "inferenceExtension.extProcPort" $picker.extProcPort) (list "inferenceExtension.metricsPort" $picker.metricsPort) -}}
{{- range $picker.extraServicePorts -}}
{{- if eq (.protocol | default "TCP") "TCP" -}}
{{- $named = append $named (list "inferenceExtension.extraServicePorts" .port) -}}
{{- end -}}
{{- end -}}
{{- range $pair := $named -}}
{{- $port := include "warmpath.text" (index $pair 1) -}}
{{- with get $ports $port -}}
{{- fail (printf "\n\n%s: the Service has port %s already: %s.\n" (index $pair 0) $port .) -}}
{{- end -}}
{{- $_ := set $ports $port (index $pair 0) -}}
{{- end -}}
{{- range $key, $value := include "warmpath.selectorLabels" . | fromYaml -}}
{{- if hasKey ($picker.podLabels | default dict) $key -}}
{{- fail (printf "\n\ninferenceExtension.podLabels: %s is the chart's own; the Deployment selects by it.\n" $key) -}}
{{- end -}}
{{- end -}}
{{- $own := dict "NAMESPACE" "the release's namespace" "POD_NAME" "the Pod's name" -}}
{{- if .Values.tokenizer.hub.tokenSecret.name -}}{{- $_ := set $own "HF_TOKEN" "tokenizer.hub.tokenSecret" -}}{{- end -}}
{{- if .Values.tokenizer.hub.endpoint -}}{{- $_ := set $own "HF_ENDPOINT" "tokenizer.hub.endpoint" -}}{{- end -}}
{{- range $variable := $picker.env -}}
{{- with get $own $variable.name -}}
{{- fail (printf "\n\ninferenceExtension.env: %s is set by the chart: %s.\n" $variable.name .) -}}
{{- end -}}
{{- end -}}
{{- if not (regexMatch "[1-9]" $picker.drain.timeout) -}}
{{- fail (printf "\n\ninferenceExtension.drain.timeout: %q is no time at all, and every stream would be cut. Name one above zero, such as 120s.\n" $picker.drain.timeout) -}}
{{- end -}}
{{- end -}}
