{{/* "refused" fails for values that would be expected to have an effect which this chart does not have. All are named at once. */}}
{{- define "refused" -}}
{{- $faults := list -}}
{{- $v := .Values -}}
{{- range list "bucketweb" "compactor" "ruler" "receive" "receiveDistributor" "minio" }}
{{- if (get $v . | default dict).enabled }}
{{- $faults = append $faults (printf "%s.enabled: this chart has query, queryFrontend and storegateway only; deploy it on its own and set it to false" .) -}}
{{- end }}
{{- end }}
{{- if or ($v.https | default dict).enabled ($v.auth | default dict).basicAuthUsers $v.httpConfig $v.existingHttpConfigSecret }}
{{- $faults = append $faults "https, auth, httpConfig: mount the files with extraVolumes, set --http.config in extraFlags, and probes with customLivenessProbe and customReadinessProbe" -}}
{{- end }}
{{- if ((($v.metrics | default dict).prometheusRule) | default dict).enabled }}
{{- $faults = append $faults "metrics.prometheusRule.enabled: alerts are in the release's directory mixin" -}}
{{- end }}
{{- range $key := list "query" "queryFrontend" "storegateway" }}
{{- $c := get $v $key }}
{{- range $side := list "server" "client" }}
{{- if (((($c.grpc | default dict) | dig $side dict) | default dict).tls | default dict).enabled }}
{{- $faults = append $faults (printf "%s.grpc.%s.tls.enabled: mount the files with extraVolumes and set --grpc-%s-tls-… in extraFlags" $key $side $side) -}}
{{- end }}
{{- end }}
{{- $pdb := $c.pdb | default dict }}
{{- if and $pdb.create (not (or (has $pdb.minAvailable (list nil "")) (has $pdb.maxUnavailable (list nil "")))) }}
{{- $faults = append $faults (printf "%s.pdb: minAvailable and maxUnavailable exclude each other; set one to \"\"" $key) -}}
{{- end }}
{{- if ($c.podAffinityPreset | default "") }}
{{- $faults = append $faults (printf "%s.podAffinityPreset: use %s.affinity" $key $key) -}}
{{- end }}
{{- if ($c.nodeAffinityPreset | default dict).type }}
{{- $faults = append $faults (printf "%s.nodeAffinityPreset: use %s.affinity" $key $key) -}}
{{- end }}
{{- range list $c.ingress (($c.ingress | default dict).grpc) }}
{{- if or (. | default dict).selfSigned (. | default dict).secrets }}
{{- $faults = append $faults (printf "%s.ingress: selfSigned and secrets make no objects here; use extraDeploy" $key) -}}
{{- end }}
{{- end }}
{{- if (($c.ingress | default dict).grpc | default dict).enabled | and (eq $key "queryFrontend") }}
{{- $faults = append $faults "queryFrontend.ingress.grpc.enabled: the frontend has no gRPC" -}}
{{- end }}
{{- end }}
{{- if ($v.storegateway.sharded | default dict).enabled }}
{{- $faults = append $faults "storegateway.sharded.enabled: install a release per shard, with --selector.relabel-config or --min-time and --max-time in storegateway.extraFlags" -}}
{{- end }}
{{- if and $v.queryFrontend.enabled (not $v.query.enabled) (not (contains "--query-frontend.downstream-url" (toJson $v.queryFrontend.args))) }}
{{- $faults = append $faults "queryFrontend.enabled without query.enabled: nothing to ask; set queryFrontend.args with --query-frontend.downstream-url" -}}
{{- end }}
{{- if and $v.bucketCacheConfig (include "isFerula" (dict "root" . "c" $v.storegateway)) }}
{{- $faults = append $faults "bucketCacheConfig: ferula refuses --store.caching-bucket.config; set --index-cache-size in storegateway.extraFlags" -}}
{{- end }}
{{- with $faults }}
{{- fail (printf "these values have no effect in this chart:\n  - %s" (join "\n  - " .)) }}
{{- end }}
{{- end -}}

{{/* Keys of Bitnami's chart that are accepted and have no effect. */}}
{{- define "ignored" -}}
{{- $v := .Values -}}
{{- $found := list -}}
{{- range list "usePasswordFiles" "volumePermissions" "kubeVersion" "diagnosticMode" "bucketweb" "compactor" "ruler" "receive" "receiveDistributor" "minio" }}
{{- if hasKey $v . }}{{ $found = append $found . }}{{ end }}
{{- end }}
{{- range $key := list "query" "queryFrontend" "storegateway" }}
{{- range list "resourcesPreset" "rbac" "pspEnabled" }}
{{- if hasKey (get $v $key) . }}{{ $found = append $found (printf "%s.%s" $key .) }}{{ end }}
{{- end }}
{{- end }}
{{- join ", " $found }}
{{- end -}}
