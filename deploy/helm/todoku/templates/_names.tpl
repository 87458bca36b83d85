{{- define "todoku.name" -}}
{{- if contains "todoku" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-todoku" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "todoku.selector" -}}
app.kubernetes.io/name: todoku
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "todoku.labels" -}}
{{ include "todoku.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "todoku.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "todoku.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: ["ALL"]
{{- end }}

{{- define "todoku.environment" -}}
- name: TODOKU_APP
  value: {{ .Values.app | quote }}
- name: TODOKU_HOST
  value: 0.0.0.0
- name: TODOKU_PORT
  value: {{ .Values.port | quote }}
- name: TODOKU_PROCESSES
  value: {{ .Values.processes | quote }}
- name: TODOKU_DRAIN_GRACE_SEC
  value: {{ .Values.drainGraceSec | quote }}
- name: TODOKU_DATABASE_FILE
  value: /run/secrets/todoku/database
- name: TODOKU_TOKEN_FILE
  value: /run/secrets/todoku/token
{{- range $name, $value := .Values.settings }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- define "todoku.secrets" -}}
- name: secrets
  secret:
    secretName: {{ .Values.existingSecret }}
    defaultMode: 0440
{{- end }}
