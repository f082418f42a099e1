{{- define "vllm-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "vllm-operator.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- $name := include "vllm-operator.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "vllm-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "vllm-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "vllm-operator.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "vllm-operator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: vllm-operator
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "vllm-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "vllm-operator.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "vllm-operator.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{- define "vllm-operator.subject" -}}
- kind: ServiceAccount
  name: {{ include "vllm-operator.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}

{{/* What the operator reads at start, as a dict. */}}
{{- define "vllm-operator.config" -}}
watchNamespaces: {{ toJson .Values.watchNamespaces }}
concurrency: {{ .Values.concurrency }}
resyncSeconds: {{ .Values.resyncSeconds }}
logging:
  level: {{ .Values.logging.level }}
  format: {{ .Values.logging.format }}
leaderElection:
  enabled: {{ .Values.leaderElection.enabled }}
  leaseName: {{ .Values.leaderElection.leaseName }}
  leaseDurationSeconds: {{ .Values.leaderElection.leaseDurationSeconds }}
  renewDeadlineSeconds: {{ .Values.leaderElection.renewDeadlineSeconds }}
  retryPeriodSeconds: {{ .Values.leaderElection.retryPeriodSeconds }}
probes:
  port: 8080
metrics:
  # 0: no metrics
  port: {{ ternary .Values.metrics.port 0 .Values.metrics.enabled }}
runtime:
  image: {{ .Values.runtime.image | quote }}
  rayVersion: {{ .Values.runtime.rayVersion | quote }}
  podTemplate:
    {{- toYaml .Values.runtime.podTemplate | nindent 4 }}
deadlines:
  {{- toYaml .Values.deadlines | nindent 2 }}
recovery:
  backoffSeconds: {{ .Values.recovery.backoffSeconds }}
  maxBackoffSeconds: {{ .Values.recovery.maxBackoffSeconds }}
  unscheduledSeconds: {{ .Values.recovery.unscheduledSeconds }}
accelerators:
  {{- toYaml .Values.accelerators | nindent 2 }}
hub:
  enabled: {{ .Values.hub.enabled }}
  endpoint: {{ .Values.hub.endpoint | quote }}
{{- end }}
