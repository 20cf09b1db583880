// Carries the definitions of the resources that the tests load into the API server.
module warmpath/scripts/go/crds

go 1.26.0

require (
	sigs.k8s.io/gateway-api v1.6.3
	sigs.k8s.io/gateway-api-inference-extension v1.5.0
)
