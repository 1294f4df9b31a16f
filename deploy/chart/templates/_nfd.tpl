{{/*
node-feature-discovery itself: a master that labels nodes, workers that find features, a collector of features of nodes
that are gone. Everything is named <release>-node-feature-discovery-<part>, as its own chart names it.
*/}}

{{/* Which implementation of node features is installed: minimal, upstream, or nothing where another is there. */}}
{{- define "gpu-operator.features" -}}
{{- if .Values.nfd.enabled -}}
{{- .Values.nfd.implementation | default (ternary "upstream" "minimal" (eq true .Values.nfd.nodefeaturerules)) -}}
{{- end -}}
{{- end -}}

{{/* The values of node-feature-discovery in force: the user's over its own chart's defaults. YAML. */}}
{{- define "gpu-operator.nfd.values" -}}
{{- $ours := index .Values "node-feature-discovery" | default dict -}}
{{- $defaults := .Files.Get "files/node-feature-discovery.yaml" | fromYaml -}}
{{- include "gpu-operator.over" (dict "of" $defaults "by" $ours) -}}
{{- end -}}

{{/* One tree of values laid over another, {of, by}, where false, zero and empty ones count too. YAML. */}}
{{- define "gpu-operator.over" -}}
{{- $both := .of -}}
{{- range $key, $value := .by -}}
  {{- $below := get $both $key -}}
  {{- if and (kindIs "map" $value) (kindIs "map" $below) -}}
    {{- $_ := set $both $key (include "gpu-operator.over" (dict "of" $below "by" $value) | fromYaml) -}}
  {{- else if not (kindIs "invalid" $value) -}}
    {{- $_ := set $both $key $value -}}
  {{- end -}}
{{- end -}}
{{- toYaml $both -}}
{{- end -}}

{{- define "gpu-operator.nfd.name" -}}
{{- $name := "node-feature-discovery" -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels by which the pods of a part are found: {root, role}. YAML. */}}
{{- define "gpu-operator.nfd.selector" -}}
app.kubernetes.io/name: node-feature-discovery
app.kubernetes.io/instance: {{ .root.Release.Name }}
role: {{ .role }}
{{- end -}}

{{/* Labels of an object of a part: {root, role}; operator.labels adds to them. YAML. */}}
{{- define "gpu-operator.nfd.labels" -}}
{{- $labels := dict
      "helm.sh/chart" (include "gpu-operator.chart" .root)
      "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- range $key, $value := .root.Values.operator.labels }}{{- $_ := set $labels $key $value -}}{{- end -}}
{{- range $key, $value := include "gpu-operator.nfd.selector" . | fromYaml }}{{- $_ := set $labels $key $value -}}{{- end -}}
{{- toYaml $labels -}}
{{- end -}}

{{/* The service account of a part: {root, part, role}. Parts may share one. */}}
{{- define "gpu-operator.nfd.account" -}}
{{- $default := ternary (include "gpu-operator.nfd.name" .root) (printf "%s-%s" (include "gpu-operator.nfd.name" .root) .role) (eq .role "master") -}}
{{- $account := .part.serviceAccount | default dict -}}
{{- if $account.create -}}{{ $account.name | default $default }}{{- else -}}{{ $account.name | default "default" }}{{- end -}}
{{- end -}}

{{/* A probe of a part on its health port: the values, without those that are not set. YAML. */}}
{{- define "gpu-operator.nfd.probe" -}}
{{- $probe := dict "httpGet" (dict "path" "/healthz" "port" "http") -}}
{{- range $key, $value := . }}{{- if $value }}{{- $_ := set $probe $key $value -}}{{- end }}{{- end -}}
{{- toYaml $probe -}}
{{- end -}}

{{/* The pod template of a part: {root, values, part, role, args, env, mounts, volumes, config}. YAML. */}}
{{- define "gpu-operator.nfd.pod" -}}
{{- $part := .part -}}
metadata:
  labels:
    {{- include "gpu-operator.nfd.selector" . | nindent 4 }}
    {{- with $part.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    groundplane.dev/config-digest: {{ toYaml $part.config | sha256sum | trunc 16 | quote }}
    {{- with $part.annotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "gpu-operator.nfd.account" . }}
  {{- with coalesce $part.priorityClassName .values.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- with .values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  dnsPolicy: {{ $part.dnsPolicy }}
  hostNetwork: {{ $part.hostNetwork | default false }}
  {{- if kindIs "bool" $part.hostUsers }}
  hostUsers: {{ $part.hostUsers }}
  {{- end }}
  enableServiceLinks: false
  {{- with $part.podSecurityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $part.initContainers }}
  initContainers:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ .role }}
      image: {{ include "gpu-operator.nfd.image" .values | quote }}
      imagePullPolicy: {{ .values.image.pullPolicy | quote }}
      command: [nfd-{{ .role }}]
      args:
        {{- range .args }}
        - {{ . | quote }}
        {{- end }}
        {{- range $part.extraArgs }}
        - {{ . | quote }}
        {{- end }}
      env:
        {{- range $name, $path := .env }}
        - name: {{ $name }}
          valueFrom:
            fieldRef:
              fieldPath: {{ $path }}
        {{- end }}
        {{- with $part.extraEnvs }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - name: http
          containerPort: {{ $part.port }}
      {{- if eq .role "master" }}
      startupProbe:
        {{- include "gpu-operator.nfd.probe" $part.startupProbe | nindent 8 }}
      {{- end }}
      livenessProbe:
        {{- include "gpu-operator.nfd.probe" $part.livenessProbe | nindent 8 }}
      readinessProbe:
        {{- include "gpu-operator.nfd.probe" $part.readinessProbe | nindent 8 }}
      resources:
        {{- toYaml $part.resources | nindent 8 }}
      securityContext:
        {{- toYaml ($part.securityContext | default (include "gpu-operator.nfd.security" . | fromYaml)) | nindent 8 }}
      {{- with .mounts }}
      volumeMounts:
        {{- range $name, $path := . }}
        - name: {{ $name }}
          mountPath: {{ $path }}
          readOnly: true
        {{- end }}
      {{- end }}
  {{- with .volumes }}
  volumes:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $part.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $part.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $part.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- define "gpu-operator.nfd.image" -}}
{{- printf "%s:%v" .image.repository .image.tag -}}
{{- end -}}

{{- define "gpu-operator.nfd.security" -}}
{{ include "gpu-operator.containerSecurity" . }}
runAsNonRoot: true
{{- end -}}
