{{/* All but "base" take a component: dict "root" the context, "c" its values, "key" its values' key, "name" the end of its name. */}}

{{- define "base" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $base := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- default $base .Values.fullnameOverride | trunc 46 | trimSuffix "-" -}}
{{- end -}}

{{- define "fullname" -}}
{{ include "base" .root }}-{{ .name }}
{{- end -}}

{{- define "selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .name }}
{{- end -}}

{{/* metadata of an object: "suffix" ends its name; "labels" and "annotations" are added. */}}
{{- define "metadata" -}}
name: {{ include "fullname" . }}{{ .suffix }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "selector" . | nindent 2 }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
  {{- with merge dict (.labels | default dict) (.root.Values.commonLabels | default dict) }}
  {{- include "rendered" (dict "root" $.root "v" .) | nindent 2 }}
  {{- end }}
{{- with merge dict (.annotations | default dict) (.root.Values.commonAnnotations | default dict) }}
annotations:
  {{- include "rendered" (dict "root" $.root "v" .) | nindent 2 }}
{{- end }}
{{- end -}}

{{/* A value as YAML; templates in it are evaluated, as in Bitnami's charts. */}}
{{- define "rendered" -}}
{{- tpl (kindIs "string" .v | ternary .v (toYaml .v)) .root -}}
{{- end -}}

{{/* The image of a component, as JSON. */}}
{{- define "imageValues" -}}
{{- $image := deepCopy .root.Values.image -}}
{{- /* The digest of one image is not that of another. */}}
{{- with .c.image }}{{ if or .repository .tag }}{{ $_ := unset $image "digest" }}{{ end }}{{ end -}}
{{- range $name, $v := .c.image }}{{ $_ := set $image $name $v }}{{ end -}}
{{- with .root.Values.global }}{{ with .imageRegistry }}{{ $_ := set $image "registry" . }}{{ end }}{{ end -}}
{{- toJson $image -}}
{{- end -}}

{{- define "image" -}}
{{- $i := include "imageValues" . | fromJson -}}
{{- with $i.registry }}{{ . }}/{{ end }}{{ $i.repository }}{{ with $i.digest }}@{{ . }}{{ else }}:{{ $i.tag }}{{ end -}}
{{- end -}}

{{/* "true" if the image is ferula, by the last part of its repository. */}}
{{- define "isFerula" -}}
{{- contains "ferula" ((include "imageValues" . | fromJson).repository | base) | ternary "true" "" -}}
{{- end -}}

{{- define "pullSecrets" -}}
{{- $names := concat ((.root.Values.global | default dict).imagePullSecrets | default list) ((include "imageValues" . | fromJson).pullSecrets | default list) -}}
{{- with $names }}
imagePullSecrets:
  {{- range . }}
  - name: {{ kindIs "map" . | ternary (get (kindIs "map" . | ternary . dict) "name") . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "serviceAccount" -}}
{{- $a := .c.serviceAccount | default dict -}}
{{- $made := ne (get $a "create" | toString) "false" | ternary (include "fullname" .) "default" -}}
{{- default $made ($a.name | default $a.existingServiceAccount) -}}
{{- end -}}

{{- define "objstoreSecret" -}}
{{- default (printf "%s-objstore-secret" (include "base" .)) .Values.existingObjstoreSecret -}}
{{- end -}}

{{/* The configuration file of a component's cache: a configMap and its file; empty without one. */}}
{{- define "configMap" -}}
{{- default (empty .c.config | ternary "" (include "fullname" .)) .c.existingConfigmap -}}
{{- end -}}
