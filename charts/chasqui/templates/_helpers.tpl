{{- define "chasqui.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end -}}
{{- end }}

{{- define "chasqui.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "chasqui.labels" -}}
{{ include "chasqui.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "chasqui.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ include "chasqui.fullname" . }}{{ else }}{{ default "default" .Values.serviceAccount.name }}{{ end -}}
{{- end }}

{{- define "chasqui.image" -}}
{{- if hasPrefix "sha256:" .Values.image.tag }}{{ .Values.image.repository }}@{{ .Values.image.tag }}{{ else }}{{ .Values.image.repository }}:{{ .Values.image.tag }}{{ end -}}
{{- end }}

{{- /* The options of the connection, which worker and exporter share. */ -}}
{{- define "chasqui.connectionArgs" -}}
{{- with .Values.server }}
{{- with .username }}
- --username={{ . }}
{{- end }}
{{- if .passwordSecret.name }}
- --password-file=/run/secrets/chasqui/password/{{ .passwordSecret.key }}
{{- end }}
{{- if .tls.enabled }}
- --tls
{{- if .tls.caSecret }}
- --tls-ca=/run/secrets/chasqui/ca/ca.crt
{{- end }}
{{- if .tls.clientSecret }}
- --tls-cert=/run/secrets/chasqui/client/tls.crt
- --tls-key=/run/secrets/chasqui/client/tls.key
{{- end }}
{{- end }}
{{- end }}
- --log-level={{ .Values.logLevel }}
- --log-json
{{- end }}

{{- define "chasqui.env" -}}
- name: CHASQUI_URL
{{- if .Values.server.urlSecret.name }}
  valueFrom: {secretKeyRef: {name: {{ .Values.server.urlSecret.name }}, key: {{ .Values.server.urlSecret.key }}}}
{{- else }}
  value: {{ .Values.server.url | quote }}
{{- end }}
# The root file system is read-only.
- {name: HOME, value: /tmp}
- {name: PYTHONDONTWRITEBYTECODE, value: "1"}
{{- end }}

{{- define "chasqui.volumeMounts" -}}
- {name: tmp, mountPath: /tmp}
{{- with .Values.server }}
{{- if .passwordSecret.name }}
- {name: password, mountPath: /run/secrets/chasqui/password, readOnly: true}
{{- end }}
{{- if and .tls.enabled .tls.caSecret }}
- {name: ca, mountPath: /run/secrets/chasqui/ca, readOnly: true}
{{- end }}
{{- if and .tls.enabled .tls.clientSecret }}
- {name: client, mountPath: /run/secrets/chasqui/client, readOnly: true}
{{- end }}
{{- end }}
{{- end }}

{{- /* Folders, not single files: Kubernetes updates only folders when a secret changes. */ -}}
{{- define "chasqui.volumes" -}}
- {name: tmp, emptyDir: {}}
{{- with .Values.server }}
{{- if .passwordSecret.name }}
- {name: password, secret: {secretName: {{ .passwordSecret.name }}, defaultMode: 0440}}
{{- end }}
{{- if and .tls.enabled .tls.caSecret }}
- {name: ca, secret: {secretName: {{ .tls.caSecret }}, defaultMode: 0440}}
{{- end }}
{{- if and .tls.enabled .tls.clientSecret }}
- {name: client, secret: {secretName: {{ .tls.clientSecret }}, defaultMode: 0440}}
{{- end }}
{{- end }}
{{- end }}

{{- define "chasqui.probes" -}}
# A pod that cannot reach the Redis server is not ready, but it is not restarted.
startupProbe: {httpGet: {path: /healthz, port: metrics}, periodSeconds: 2, failureThreshold: 60}
livenessProbe: {httpGet: {path: /healthz, port: metrics}, periodSeconds: 10, timeoutSeconds: 5, failureThreshold: 3}
readinessProbe: {httpGet: {path: /readyz, port: metrics}, periodSeconds: 5, timeoutSeconds: 5}
{{- end }}
