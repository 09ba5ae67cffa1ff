{{/* A Service. "spec" are the values of Bitnami's service sections, "open" a dict of names and ports, "headless" makes it one. */}}
{{- define "service" -}}
{{- $s := .spec | default dict -}}
---
apiVersion: v1
kind: Service
metadata:
  {{- $labels := empty .headless | ternary dict (dict "ferula.io/headless" "true") }}
  {{- include "metadata" (merge (dict "annotations" $s.annotations "labels" $labels) .) | nindent 2 }}
spec:
  {{- if .headless }}
  clusterIP: None
  {{- else }}
  type: {{ $s.type | default "ClusterIP" }}
  {{- range list "clusterIP" "loadBalancerIP" "loadBalancerSourceRanges" "loadBalancerClass" "sessionAffinity" "sessionAffinityConfig" }}
  {{- if get $s . }}
  {{ . }}: {{ get $s . | toJson }}
  {{- end }}
  {{- end }}
  {{- if and $s.externalTrafficPolicy (has $s.type (list "LoadBalancer" "NodePort")) }}
  externalTrafficPolicy: {{ $s.externalTrafficPolicy }}
  {{- end }}
  {{- end }}
  selector:
    {{- with $s.labelSelectorsOverride }}
    {{- include "rendered" (dict "root" $.root "v" .) | nindent 4 }}
    {{- else }}
    {{- include "selector" . | nindent 4 }}
    {{- end }}
  ports:
    {{- range $name, $port := .open }}
    {{- $node := get ($s.nodePorts | default dict) $name }}
    - {name: {{ $name }}, port: {{ $port }}, targetPort: {{ $name }}
      {{- if and $node (not $.headless) }}, nodePort: {{ $node }}{{ end }}}
    {{- end }}
    {{- if not .headless }}{{ with $s.extraPorts }}
    {{- include "rendered" (dict "root" $.root "v" .) | nindent 4 }}
    {{- end }}{{ end }}
{{ end -}}

{{/* What belongs to each component beside its pods. "workload" is the kind of the workload. */}}
{{- define "objects" -}}
{{- $c := .c -}}
{{- $account := $c.serviceAccount | default dict -}}
{{- if and (ne (get $account "create" | toString) "false") (not (or $account.name $account.existingServiceAccount)) }}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "metadata" (merge (dict "annotations" $account.annotations) .) | nindent 2 }}
automountServiceAccountToken: {{ $account.automountServiceAccountToken | default false }}
{{ end -}}
{{- with $c.pdb }}{{ if .create }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "metadata" $ | nindent 2 }}
spec:
  {{- /* 0 is a value. With neither, a node with the only pod can be drained. */}}
  {{- if has .minAvailable (list nil "") }}
  maxUnavailable: {{ has .maxUnavailable (list nil "") | ternary 1 .maxUnavailable }}
  {{- else }}
  minAvailable: {{ .minAvailable }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "selector" $ | nindent 6 }}
{{ end }}{{ end -}}
{{- with $c.autoscaling }}{{ if .enabled }}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  {{- include "metadata" $ | nindent 2 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: {{ $.workload }}, name: {{ include "fullname" $ }}}
  minReplicas: {{ .minReplicas | default 1 }}
  maxReplicas: {{ .maxReplicas | default 5 }}
  metrics:
    {{- range $name, $target := dict "cpu" .targetCPU "memory" .targetMemory }}
    {{- if $target }}
    - type: Resource
      resource: {name: {{ $name }}, target: {type: Utilization, averageUtilization: {{ $target }}}}
    {{- end }}
    {{- end }}
{{ end }}{{ end -}}
{{- with $c.networkPolicy }}{{ if .enabled }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "metadata" $ | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "selector" $ | nindent 6 }}
  policyTypes: [Ingress, Egress]
  {{- $own := dict "podSelector" (dict "matchLabels" (omit (include "selector" $ | fromYaml) "app.kubernetes.io/component")) }}
  egress:
    {{- if ne (get . "allowExternalEgress" | toString) "false" }}
    - {}
    {{- else }}
    - ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
    - to: [{{ toJson $own }}]
    {{- end }}
    {{- with .extraEgress }}
    {{- include "rendered" (dict "root" $.root "v" .) | nindent 4 }}
    {{- end }}
  ingress:
    - ports:
        {{- range $name, $_ := $.ports }}
        - {port: {{ $name }}}
        {{- end }}
      {{- if eq (get . "allowExternal" | toString) "false" }}
      from:
        - {{ toJson $own }}
        - podSelector: {matchLabels: {{ dict (printf "%s-client" (include "fullname" $)) "true" | toJson }}}
        {{- if or .ingressNSMatchLabels .ingressNSPodMatchLabels }}
        - namespaceSelector: {matchLabels: {{ .ingressNSMatchLabels | default dict | toJson }}}
          {{- with .ingressNSPodMatchLabels }}
          podSelector: {matchLabels: {{ toJson . }}}
          {{- end }}
        {{- end }}
      {{- end }}
    {{- with .extraIngress }}
    {{- include "rendered" (dict "root" $.root "v" .) | nindent 4 }}
    {{- end }}
{{ end }}{{ end -}}
{{- $ingress := $c.ingress | default dict -}}
{{- include "ingress" (merge (dict "spec" $ingress "port" "http" "service" (include "fullname" .) "host" "thanos.local") .) }}
{{- $service := printf "%s%s" (include "fullname" .) (eq .key "query" | ternary "-grpc" "") -}}
{{- include "ingress" (merge (dict "spec" ($ingress.grpc | default dict) "suffix" "-grpc" "port" "grpc" "service" $service "host" "thanos-grpc.local") .) }}
{{- with $.root.Values.metrics }}{{ if .enabled }}{{ with .serviceMonitor }}{{ if .enabled }}
---
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  {{- $metadata := include "metadata" (merge (dict "labels" (merge dict (.labels | default dict) (.selector | default dict)) "annotations" .annotations) $) | fromYaml }}
  {{- with .namespace }}{{ $_ := set $metadata "namespace" . }}{{ end }}
  {{- toYaml $metadata | nindent 2 }}
spec:
  {{- with .jobLabel }}
  jobLabel: {{ . }}
  {{- end }}
  namespaceSelector: {matchNames: [{{ $.root.Release.Namespace }}]}
  selector:
    matchLabels:
      {{- include "selector" $ | nindent 6 }}
    {{- /* A headless service has the same pods. */}}
    matchExpressions: [{key: ferula.io/headless, operator: DoesNotExist}]
  endpoints:
    - port: http
      path: /metrics
      {{- range list "interval" "scrapeTimeout" }}
      {{- if get $.root.Values.metrics.serviceMonitor . }}
      {{ . }}: {{ get $.root.Values.metrics.serviceMonitor . }}
      {{- end }}
      {{- end }}
      {{- range list "relabelings" "metricRelabelings" }}
      {{- if get $.root.Values.metrics.serviceMonitor . }}
      {{ . }}:
        {{- get $.root.Values.metrics.serviceMonitor . | toYaml | nindent 8 }}
      {{- end }}
      {{- end }}
{{ end }}{{ end }}{{ end }}{{ end -}}
{{- end -}}

{{/* The configMap of a component's cache. */}}
{{- define "cache" -}}
{{- if and .c.config (not .c.existingConfigmap) }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  {{- include "metadata" . | nindent 2 }}
data:
  config.yml: |-
    {{- include "rendered" (dict "root" .root "v" .c.config) | nindent 4 }}
{{ end }}
{{- end -}}

{{/* An Ingress with the values "spec", to the port "port" of the service "service"; "host" is the default of its hostname. An
empty hostname has no rule of its own. */}}
{{- define "ingress" -}}
{{- with .spec }}{{ if .enabled }}
---
{{- $host := tpl (hasKey . "hostname" | ternary (.hostname | default "") $.host) $.root }}
{{- $backend := dict "service" (dict "name" $.service "port" (dict "name" $.port)) }}
{{- $hosts := .extraHosts | default list }}
{{- if $host }}{{ $hosts = prepend $hosts (dict "name" $host "path" .path "pathType" .pathType) }}{{ end }}
{{- $manager := empty .certManager | ternary dict (dict "kubernetes.io/tls-acme" "true") }}
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  {{- include "metadata" (merge (dict "annotations" (merge dict (.annotations | default dict) $manager) "labels" .labels) $) | nindent 2 }}
spec:
  {{- with .ingressClassName }}
  ingressClassName: {{ . }}
  {{- end }}
  rules:
    {{- range $hosts }}
    - host: {{ .name }}
      http:
        paths:
          - path: {{ .path | default "/" }}
            pathType: {{ .pathType | default "ImplementationSpecific" }}
            backend: {{ toJson $backend }}
    {{- end }}
    {{- with .extraRules }}
    {{- include "rendered" (dict "root" $.root "v" .) | nindent 4 }}
    {{- end }}
  {{- if or .tls .extraTls }}
  tls:
    {{- if and .tls $host }}
    - {hosts: [{{ $host }}], secretName: {{ .secretName | default (printf "%s-tls" $host) }}}
    {{- end }}
    {{- with .extraTls }}
    {{- include "rendered" (dict "root" $.root "v" .) | nindent 4 }}
    {{- end }}
  {{- end }}
{{ end }}{{ end -}}
{{- end -}}
