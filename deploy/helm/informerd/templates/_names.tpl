{{- define "informerd.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* The release's name, with the chart's unless it is part of it. */ -}}
{{- define "informerd.fullname" -}}
{{- $name := include "informerd.name" . -}}
{{- $full := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{ default $full .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* Labels of the pods, and all selectors. */ -}}
{{- define "informerd.selector" -}}
app.kubernetes.io/name: {{ eq .Values.mode "sidecar" | ternary .Values.application.name (include "informerd.name" .) }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "informerd.labels" -}}
app.kubernetes.io/name: {{ include "informerd.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "informerd.metadata" -}}
name: {{ include "informerd.fullname" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "informerd.labels" . | nindent 2 }}
{{- end }}

{{- define "informerd.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ default (include "informerd.fullname" .) .Values.serviceAccount.name }}
{{- else }}{{ required "serviceAccount.name: name the service account that serviceAccount.create: false expects" .Values.serviceAccount.name }}
{{- end }}
{{- end }}
