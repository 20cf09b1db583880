{{/* What is refused, beyond what values.schema.json can say. */}}
{{- define "warmpath.checks" -}}
{{- if hasKey .Values "router" -}}
{{- fail "\n\nrouter: this is a value of llm-d's charts. docs/migrating.md (\"Values of the chart\") says what its keys are called here, for example inferenceExtension.flags for router.epp.flags.\n" -}}
{{- end -}}
{{- include "warmpath.checkNames" . -}}
{{- include "warmpath.checkPool" . -}}
{{- include "warmpath.checkPicker" . -}}
{{- $image := .Values.inferenceExtension.image -}}
{{- $name := printf "%s/%s" $image.registry $image.repository -}}
{{- /* Another picker would not know our flags, and its crash loop would not say why. */ -}}
{{- if and (not (contains "warmpath" $image.repository)) (regexMatch "(llm-d-|endpoint-picker|gateway-api-inference-extension/|(^|[/_.-])(lw)?epp([/_.-]|$))" $name) -}}
{{- fail (printf "\n\ninferenceExtension.image.repository: %q is another endpoint picker's image. Leave inferenceExtension.image out of the copied values, or name your Warmpath image.\n" $image.repository) -}}
{{- end -}}
{{- if eq .Values.inferencePool.modelServerProtocol "grpc" -}}
{{- fail "\n\ninferencePool.modelServerProtocol: \"grpc\" is not supported: prompts and metrics are read over HTTP. Use \"http\".\n" -}}
{{- end -}}
{{- if eq .Values.inferencePool.modelServerType "triton-tensorrt-llm" -}}
{{- fail "\n\ninferencePool.modelServerType: \"triton-tensorrt-llm\" is not supported: its metrics page tells nothing that Warmpath reads. Use vllm, sglang or trtllm-serve.\n" -}}
{{- end -}}
{{- if and (include "warmpath.createsPool" .) (not .Values.inferencePool.modelServers.matchLabels) -}}
{{- fail "\n\ninferencePool.modelServers.matchLabels is required: the labels of your model server Pods, for example --set inferencePool.modelServers.matchLabels.app=vllm. To attach to an existing pool: --set inferencePool.create=false --set inferencePool.name=NAME.\n" -}}
{{- end -}}
{{- if and (eq (include "warmpath.discovery" .) "selector") (not (include "warmpath.endpointSelector" .)) -}}
{{- fail "\n\nstandalone.enabled needs inferencePool.modelServers.matchLabels: the labels of your model server Pods, for example --set inferencePool.modelServers.matchLabels.app=vllm.\n" -}}
{{- end -}}
{{- if and (not .Values.inferencePool.create) (not .Values.standalone.enabled) (not .Values.inferencePool.name) -}}
{{- fail "\n\ninferencePool.create=false needs inferencePool.name: the existing InferencePool, in the release's namespace.\n" -}}
{{- end -}}
{{- if and .Values.tokenizer.persistentVolumeClaim.claimName .Values.tokenizer.image.reference -}}
{{- fail "\n\ntokenizer: persistentVolumeClaim.claimName and image.reference exclude each other; both would be mounted at /models.\n" -}}
{{- end -}}
{{- $tls := .Values.inferenceExtension.tls -}}
{{- if and $tls.secretName $tls.certManager.enabled -}}
{{- fail "\n\ninferenceExtension.tls: secretName and certManager.enabled exclude each other.\n" -}}
{{- end -}}
{{- if and $tls.certManager.enabled (not $tls.certManager.issuerRef) -}}
{{- fail "\n\ninferenceExtension.tls.certManager.issuerRef is required, for example {kind: ClusterIssuer, name: internal}.\n" -}}
{{- end -}}
{{- if and (not $tls.enabled) (or $tls.secretName $tls.certManager.enabled) -}}
{{- fail "\n\ninferenceExtension.tls.enabled is false, yet a certificate is given.\n" -}}
{{- end -}}
{{- if and .Values.experimentalHttpRoute.enabled .Values.standalone.enabled -}}
{{- fail "\n\nexperimentalHttpRoute.enabled needs a Gateway and its InferencePool; standalone.enabled has neither.\n" -}}
{{- end -}}
{{- end -}}
