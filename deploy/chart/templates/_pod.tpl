{{/* What a Deployment and a StatefulSet have in common. "args" are its arguments; "volumes" and "mounts" are lists of its own. */}}
{{- define "workload" -}}
{{- $c := .c -}}
{{- if not (($c.autoscaling | default dict).enabled) }}
replicas: {{ kindIs "invalid" $c.replicaCount | ternary 1 $c.replicaCount }}
{{- end }}
{{- if not (has $c.revisionHistoryLimit (list nil "")) }}
revisionHistoryLimit: {{ $c.revisionHistoryLimit }}
{{- end }}
selector:
  matchLabels:
    {{- include "selector" . | nindent 4 }}
template:
  metadata:
    labels:
      {{- include "selector" . | nindent 6 }}
      {{- with merge dict ($c.podLabels | default dict) (.root.Values.commonLabels | default dict) }}
      {{- include "rendered" (dict "root" $.root "v" .) | nindent 6 }}
      {{- end }}
    annotations:
      {{- /* A changed configuration restarts the pods. */}}
      checksum/configuration: {{ list $c.config $c.sdConfig .root.Values.indexCacheConfig (eq .key "storegateway" | ternary .root.Values.objstoreConfig "") | toJson | sha256sum }}
      {{- with $c.podAnnotations }}
      {{- include "rendered" (dict "root" $.root "v" .) | nindent 6 }}
      {{- end }}
  spec:
    {{- include "pullSecrets" . | nindent 4 }}
    serviceAccountName: {{ include "serviceAccount" . }}
    automountServiceAccountToken: {{ $c.automountServiceAccountToken | default false }}
    terminationGracePeriodSeconds: {{ has $c.terminationGracePeriodSeconds (list nil "") | ternary 120 $c.terminationGracePeriodSeconds }}
    {{- $pod := dict "enabled" true "runAsNonRoot" true "runAsUser" 1001 "runAsGroup" 1001 "fsGroup" 1001 }}
    {{- $_ := set $pod "seccompProfile" (dict "type" "RuntimeDefault") }}
    {{- range $name, $v := $c.podSecurityContext }}{{ $_ := set $pod $name $v }}{{ end }}
    {{- if $pod.enabled }}
    securityContext:
      {{- omit $pod "enabled" | toYaml | nindent 6 }}
    {{- end }}
    {{- if $c.affinity }}
    affinity:
      {{- include "rendered" (dict "root" .root "v" $c.affinity) | nindent 6 }}
    {{- else if ne (get $c "podAntiAffinityPreset" | default "soft") "none" }}
    affinity:
      podAntiAffinity:
        {{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" (include "selector" . | fromYaml)) }}
        {{- if eq (get $c "podAntiAffinityPreset" | default "soft") "hard" }}
        requiredDuringSchedulingIgnoredDuringExecution:
          {{- list $term | toYaml | nindent 10 }}
        {{- else }}
        preferredDuringSchedulingIgnoredDuringExecution:
          {{- list (dict "weight" 1 "podAffinityTerm" $term) | toYaml | nindent 10 }}
        {{- end }}
    {{- end }}
    {{- range list "nodeSelector" "tolerations" "topologySpreadConstraints" "hostAliases" "dnsConfig" "initContainers" }}
    {{- if get $c . }}
    {{ . }}:
      {{- include "rendered" (dict "root" $.root "v" (get $c .)) | nindent 6 }}
    {{- end }}
    {{- end }}
    {{- range list "priorityClassName" "schedulerName" "dnsPolicy" }}
    {{- if get $c . }}
    {{ . }}: {{ get $c . }}
    {{- end }}
    {{- end }}
    containers:
      - name: {{ .name }}
        image: {{ include "image" . }}
        imagePullPolicy: {{ (include "imageValues" . | fromJson).pullPolicy | default "IfNotPresent" }}
        {{- with $c.command }}
        command:
          {{- include "rendered" (dict "root" $.root "v" .) | nindent 10 }}
        {{- end }}
        args:
          {{- if $c.args }}
          {{- include "rendered" (dict "root" .root "v" $c.args) | nindent 10 }}
          {{- else }}
          {{- toYaml .args | nindent 10 }}
          {{- with $c.extraFlags }}
          {{- include "rendered" (dict "root" $.root "v" .) | nindent 10 }}
          {{- end }}
          {{- end }}
        {{- with $c.extraEnvVars }}
        env:
          {{- include "rendered" (dict "root" $.root "v" .) | nindent 10 }}
        {{- end }}
        {{- if or $c.extraEnvVarsCM $c.extraEnvVarsSecret }}
        envFrom:
          {{- with $c.extraEnvVarsCM }}
          - configMapRef: {name: {{ . }}}
          {{- end }}
          {{- with $c.extraEnvVarsSecret }}
          - secretRef: {name: {{ . }}}
          {{- end }}
        {{- end }}
        ports:
          {{- range $name, $port := .ports }}
          - {name: {{ $name }}, containerPort: {{ $port }}}
          {{- end }}
        {{- range $probe, $path := dict "livenessProbe" "/-/healthy" "readinessProbe" "/-/ready" "startupProbe" "/-/ready" }}
        {{- $values := dict "enabled" (ne $probe "startupProbe") "periodSeconds" 10 "failureThreshold" 6 }}
        {{- range $name, $v := index $c $probe }}{{ $_ := set $values $name $v }}{{ end }}
        {{- $custom := get $c (printf "custom%s" ($probe | title)) }}
        {{- if $custom }}
        {{ $probe }}:
          {{- include "rendered" (dict "root" $.root "v" $custom) | nindent 10 }}
        {{- else if $values.enabled }}
        {{ $probe }}:
          httpGet: {path: {{ $path }}, port: http}
          {{- omit $values "enabled" | toYaml | nindent 10 }}
        {{- end }}
        {{- end }}
        {{- with $c.lifecycleHooks }}
        lifecycle:
          {{- include "rendered" (dict "root" $.root "v" .) | nindent 10 }}
        {{- end }}
        {{- $container := dict "enabled" true "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true }}
        {{- $_ := set $container "capabilities" (dict "drop" (list "ALL")) }}
        {{- range $name, $v := $c.containerSecurityContext }}{{ $_ := set $container $name $v }}{{ end }}
        {{- if $container.enabled }}
        securityContext:
          {{- omit $container "enabled" | toYaml | nindent 10 }}
        {{- end }}
        {{- with $c.resources }}
        resources:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        {{- /* Both programs write relative files into the working directory. */}}
        workingDir: /tmp
        volumeMounts:
          - {name: tmp, mountPath: /tmp}
          {{- range .mounts }}
          - {{ toJson . }}
          {{- end }}
          {{- with $c.extraVolumeMounts }}
          {{- include "rendered" (dict "root" $.root "v" .) | nindent 10 }}
          {{- end }}
      {{- with $c.sidecars }}
      {{- include "rendered" (dict "root" $.root "v" .) | nindent 6 }}
      {{- end }}
    volumes:
      - {name: tmp, emptyDir: {}}
      {{- range .volumes }}
      - {{ toJson . }}
      {{- end }}
      {{- with $c.extraVolumes }}
      {{- include "rendered" (dict "root" $.root "v" .) | nindent 6 }}
      {{- end }}
{{- end -}}
