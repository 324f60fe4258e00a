{{- /* The container of informerd. */ -}}
{{- define "informerd.container" -}}
{{- $config := include "informerd.config" . | fromYaml -}}
name: informerd
image: {{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ default .Chart.AppVersion .Values.image.tag }}{{ end }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- if eq .Values.mode "sidecar" }}
# In initContainers, this makes a sidecar: the kubelet starts it before the application, and restarts it until the application has
# ended.
restartPolicy: Always
{{- end }}
args: {{ concat (list "serve" "--config" "/etc/informerd/config.yaml" "--log-format" .Values.log.format "--log" .Values.log.level) .Values.container.args | toJson }}
{{- if or .Values.container.env (eq .Values.mode "daemonset") }}
env:
{{- if eq .Values.mode "daemonset" }}
- { name: NODE_NAME, valueFrom: { fieldRef: { apiVersion: v1, fieldPath: spec.nodeName } } }
{{- end }}
{{- with .Values.container.env }}
{{ toYaml . }}
{{- end }}
{{- end }}
ports:
{{- if not (eq .Values.mode "sidecar") }}
- { name: grpc, containerPort: {{ include "informerd.port" $config.listen }} }
{{- if .Values.kubernetesApi.enabled }}
- { name: kubernetes, containerPort: {{ include "informerd.port" $config.kubernetes.listen }} }
{{- end }}
{{- end }}
- { name: admin, containerPort: {{ include "informerd.port" $config.admin.listen }} }
# Ten minutes for the first list, before the kubelet tries another process.
startupProbe:
  httpGet: { path: /readyz, port: admin }
  periodSeconds: 1
  timeoutSeconds: 2
  failureThreshold: 600
# An API that becomes unreachable later does not make a pod unready.
readinessProbe:
  httpGet: { path: /readyz, port: admin }
  periodSeconds: 5
  timeoutSeconds: 2
# Checks that the process answers, never that the API does.
livenessProbe:
  httpGet: { path: /livez, port: admin }
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
resources:
  {{- include "informerd.containerResources" . | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
volumeMounts:
- { name: config, mountPath: /etc/informerd, readOnly: true }
{{- if include "informerd.usesApi" . }}
- { name: api, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true }
{{- end }}
{{- if .Values.snapshots.enabled }}
- { name: state, mountPath: /var/lib/informerd }
{{- end }}
{{- if .Values.tls.secret }}
- { name: tls, mountPath: /etc/informerd-tls, readOnly: true }
{{- end }}
{{- with .Values.container.volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "informerd.volumes" -}}
- name: config
  configMap: { name: {{ include "informerd.fullname" . }} }
{{- if include "informerd.usesApi" . }}
# The files that a pod gets by default, but for one container instead of all of them.
- name: api
  projected:
    sources:
    - serviceAccountToken: { path: token, expirationSeconds: 3607 }
    - configMap:
        name: kube-root-ca.crt
        items: [{ key: ca.crt, path: ca.crt }]
    - downwardAPI:
        items: [{ path: namespace, fieldRef: { apiVersion: v1, fieldPath: metadata.namespace } }]
{{- end }}
{{- if .Values.snapshots.enabled }}
# A new file beside the old one, each smaller than the objects in memory.
- name: state
  emptyDir: { sizeLimit: {{ mul 2 (include "informerd.mebibytes" .Values.memory.objects) }}Mi }
{{- end }}
{{- if .Values.tls.secret }}
- name: tls
  secret: { secretName: {{ .Values.tls.secret }} }
{{- end }}
{{- with .Values.pod.volumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* metadata of the pod, and what its spec has in every mode. */ -}}
{{- define "informerd.podMetadata" -}}
labels:
  {{- include "informerd.selector" . | nindent 2 }}
  {{- with .Values.pod.labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  # A change of the configuration replaces the pods, in place of a reload: it also applies the keys that a reload cannot, with the roles
  # and the memory of the same release, and a file that is wrong stops at the first new pod.
  checksum/config: {{ include "informerd.config" . | sha256sum }}
  {{- if not .Values.podMonitor.enabled }}
  prometheus.io/scrape: "true"
  prometheus.io/port: {{ include "informerd.port" (include "informerd.config" . | fromYaml).admin.listen | quote }}
  prometheus.io/path: /metrics
  {{- end }}
  {{- with .Values.pod.annotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "informerd.podSpec" -}}
{{- $drain := .Values.config.drain | default dict -}}
serviceAccountName: {{ include "informerd.serviceAccount" . }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- /* Ten seconds for the last snapshot. */}}
{{- $grace := add 15 (include "informerd.seconds" (dig "delay" "0s" $drain)) (include "informerd.seconds" (dig "period" "5s" $drain)) }}
terminationGracePeriodSeconds: {{ .Values.pod.terminationGracePeriodSeconds | default $grace }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile: { type: RuntimeDefault }
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.pod.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.pod.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.pod.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.pod.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- if not (eq .Values.mode "daemonset") }}
topologySpreadConstraints:
{{- if .Values.pod.topologySpreadConstraints }}
{{ toYaml .Values.pod.topologySpreadConstraints }}
{{- else }}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "informerd.selector" . | nindent 6 }}
{{- end }}
{{- end }}
{{- end }}
