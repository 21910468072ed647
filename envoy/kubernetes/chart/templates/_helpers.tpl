{{/* The server's name, and the beginning of all others. */}}
{{- define "kvpick.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end -}}
{{- end }}

{{/* Labels by which pods are selected. `name` is kvpick or kvpick-agent. */}}
{{- define "kvpick.selectorLabels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{/* Labels of pods. */}}
{{- define "kvpick.podLabels" -}}
{{ include "kvpick.selectorLabels" . }}
app.kubernetes.io/part-of: kvpick
{{- end }}

{{/* Labels of objects. */}}
{{- define "kvpick.labels" -}}
{{ include "kvpick.podLabels" . }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "kvpick.enginesNamespace" -}}
{{ .Values.engines.namespace | default .Release.Namespace }}
{{- end }}

{{- define "kvpick.image" -}}
{{- $tag := .image.tag | default .root.Chart.AppVersion }}
{{- .image.repository }}{{ if .image.digest }}@{{ .image.digest }}{{ else }}:{{ $tag }}{{ end }}
{{- end }}

{{/* Where the engines are, for both configurations: as YAML, to be read back. */}}
{{- define "kvpick.engines" -}}
{{- if .Values.engines.namespace }}
namespace: {{ .Values.engines.namespace }}
{{- end }}
{{- if .Values.engines.pool }}
pool: {{ .Values.engines.pool }}
{{- else }}
selector: {{ .Values.engines.selector }}
ports: {{ toJson .Values.engines.ports }}
{{- end }}
{{- end }}

{{/* `matchLabels` of terms in a line: a=b,c=d. */}}
{{- define "kvpick.matchLabels" -}}
matchLabels:
{{- range splitList "," . }}
{{- $term := splitn "=" 2 . }}
  {{ $term._0 }}: {{ quote $term._1 }}
{{- end }}
{{- end }}

{{/* kvpick.yaml */}}
{{- define "kvpick.serverConfig" -}}
{{- $bind := .Values.bindAddress }}
{{- $kubernetes := include "kvpick.engines" . | fromYaml }}
{{- $config := dict }}
{{- range $field, $port := dict "listen" "9002" "health" "9003" "feed" "9004" "admin" "9090" }}
{{- $_ := set $config $field (printf "%s:%s" $bind $port) }}
{{- end }}
{{- if .Values.feedTls.enabled }}
{{- $folder := "/etc/kvpick-feed" }}
{{- $pair := dict "certificate" (print $folder "/tls.crt") "key" (print $folder "/tls.key") }}
{{- $_ := set $config "feed_tls" (set $pair "client_ca" (print $folder "/ca.crt")) }}
{{- else }}
{{- $agents := printf "app.kubernetes.io/name=kvpick-agent,app.kubernetes.io/instance=%s" .Release.Name }}
{{- $_ := set $kubernetes "agents" $agents }}
{{- end }}
{{- $_ := set $config "kubernetes" $kubernetes }}
{{- $_ := set $config "models" .Values.models }}
{{- $_ := set $config "workers" .Values.server.workers }}
{{- mergeOverwrite $config (deepCopy .Values.server.config) | toYaml }}
{{- end }}

{{/* kvpick-agent.yaml */}}
{{- define "kvpick.agentConfig" -}}
{{- $name := include "kvpick.name" . }}
{{- $kubernetes := include "kvpick.engines" . | fromYaml }}
{{- if .Values.agent.events }}{{ $_ := set $kubernetes "events" .Values.agent.events }}{{ end }}
{{- $config := dict "servers" (list (printf "%s-feed:9004" $name)) "kubernetes" $kubernetes }}
{{- $_ := set $config "admin" (print .Values.bindAddress ":9005") }}
{{- $_ := set $config "state" "/var/lib/kvpick-agent" }}
{{- if .Values.feedTls.enabled }}
{{- $folder := "/etc/kvpick-feed" }}
{{- $pair := dict "certificate" (print $folder "/tls.crt") "key" (print $folder "/tls.key") }}
{{- $_ := set $pair "ca" (print $folder "/ca.crt") }}
{{- $_ := set $config "tls" (set $pair "server_name" (printf "%s-feed" $name)) }}
{{- end }}
{{- mergeOverwrite $config (deepCopy .Values.agent.config) | toYaml }}
{{- end }}

{{/* A container's securityContext. */}}
{{- define "kvpick.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* A pod's securityContext. */}}
{{- define "kvpick.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* Egress of both programs: names, and the API server. */}}
{{- define "kvpick.commonEgress" -}}
- to:
    - namespaceSelector:
        {{- include "kvpick.matchLabels" .Values.networkPolicies.dns.namespaces | nindent 8 }}
    {{- range .Values.networkPolicies.dns.cidrs }}
    - ipBlock: {cidr: {{ quote . }}}
    {{- end }}
  ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
- to:
    {{- range .Values.networkPolicies.apiServer.cidrs }}
    - ipBlock: {cidr: {{ quote . }}}
    {{- end }}
  ports:
    {{- range .Values.networkPolicies.apiServer.ports }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
{{- end }}
