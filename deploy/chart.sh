#!/usr/bin/env bash
# Called by `make chart`: renders the chart with each cmd/ferula/testdata/chart/NAME.values.yaml into NAME.golden.yaml, which
# tests of cmd/ferula check without Helm, and checks that values have their effect or are refused. HELM is the program.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export LC_ALL=C
helm=${HELM:-bin/tools/helm}
data=cmd/ferula/testdata/chart
for values in "$data"/*.values.yaml; do
	golden=${values/.values./.golden.}
	"$helm" lint --strict --quiet -f "$values" deploy/chart
	# The test compares this digest, so a change of the chart cannot be forgotten here.
	rendered=$("$helm" template thanos deploy/chart --namespace monitoring -f "$values")
	{
		echo "# $(cat deploy/chart/*.* deploy/chart/templates/* "$values" | sha256sum | cut -d' ' -f1)"
		sed 's/[[:space:]]*$//' <<<"$rendered" | cat -s
	} >"$golden"
done

refused() { # VALUES TEXT: VALUES are refused with TEXT
	local out
	if out=$("$helm" template thanos deploy/chart -f - <<<"$1" 2>&1) || [[ $out != *"$2"* ]]; then
		echo "$1: not refused with \"$2\": $out" >&2
		return 1
	fi
}
refused 'query: {replicas: 2}' "additional properties 'replicas' not allowed"
refused 'queryFrontend: {stores: [a]}' "stores"
refused 'querier: {enabled: true}' "additional properties 'querier' not allowed"
refused 'storegateway: {persistence: {storageClassName: a}}' "additional properties 'storageClassName' not allowed"
refused 'storegateway: {enabled: true}' "set objstoreConfig or existingObjstoreSecret"
refused 'query: {dnsDiscovery: {sidecarsService: a}}' "sidecarsNamespace is needed"
refused 'query: {enabled: false}' "queryFrontend.enabled without query.enabled"
refused '{bucketCacheConfig: {type: IN-MEMORY}}' "bucketCacheConfig: ferula refuses"
refused '{compactor: {enabled: true}, storegateway: {sharded: {enabled: true}}}' "compactor.enabled: this chart has"
refused '{compactor: {enabled: true}, storegateway: {sharded: {enabled: true}}}' "storegateway.sharded.enabled: install" # all faults at once
refused 'query: {grpc: {client: {tls: {enabled: true}}}}' "query.grpc.client.tls.enabled: mount"
refused 'query: {nodeAffinityPreset: {type: hard}}' "query.nodeAffinityPreset: use query.affinity"
refused 'auth: {basicAuthUsers: {a: b}}' "https, auth, httpConfig: mount"
refused 'metrics: {prometheusRule: {enabled: true}}' "alerts are in"
refused 'queryFrontend: {ingress: {selfSigned: true}}' "queryFrontend.ingress: selfSigned"
refused 'queryFrontend: {ingress: {grpc: {enabled: true}}}' "the frontend has no gRPC"
refused 'query: {pdb: {create: true, minAvailable: 1, maxUnavailable: 1}}' "query.pdb: minAvailable and maxUnavailable exclude"

renders() { # VALUES TEXT: VALUES are rendered into TEXT
	local out
	out=$("$helm" template thanos deploy/chart -f - <<<"$1")
	if [[ $out != *"$2"* ]]; then
		echo "$1: not rendered into \"$2\"" >&2
		return 1
	fi
}
renders 'query: {pdb: {create: true}}' "maxUnavailable: 1"
renders 'query: {pdb: {create: true, maxUnavailable: 0}}' "maxUnavailable: 0"
renders 'query: {pdb: {create: true, minAvailable: 0}}' "minAvailable: 0"
renders 'query: {revisionHistoryLimit: 0}' "revisionHistoryLimit: 0"
renders 'query: {terminationGracePeriodSeconds: 0}' "terminationGracePeriodSeconds: 0"
renders '{image: {digest: "sha256:a"}, query: {image: {tag: v1}}}' "image: ghcr.io/ferula-io/ferula:v1"
# Ignored keys are named.
notes=$("$helm" install thanos deploy/chart --dry-run=client -f - <<<'{compactor: {enabled: false}, query: {resourcesPreset: small}}')
[[ $notes == *"These values have no effect: compactor, query.resourcesPreset"* ]] || { echo "$notes" >&2; exit 1; }
