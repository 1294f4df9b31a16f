{{/* Names of the definitions that come with the chart. YAML of a list. */}}
{{- define "gpu-operator.definitions" -}}
{{- range $_, $text := .Files.Glob "crds/*.yaml" }}
- {{ (toString $text | fromYaml).metadata.name }}
{{- end -}}
{{- end -}}

{{/* A job that runs manage-crds as a hook, its account and what that may do: {root, hook, does, verb, rules}. */}}
{{- define "gpu-operator.crdHook" -}}
{{- $root := .root -}}
{{- $name := printf "gpu-operator-%s-crd" .does -}}
{{- $metadata := dict
      "labels" (include "gpu-operator.labels" $root | fromYaml)
      "annotations" (dict "helm.sh/hook" .hook "helm.sh/hook-delete-policy" "hook-succeeded,before-hook-creation") }}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $name }}-hook-sa
  namespace: {{ $root.Release.Namespace }}
  {{- include "gpu-operator.hookMetadata" (dict "of" $metadata "weight" "0") | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ $name }}-hook-role
  {{- include "gpu-operator.hookMetadata" (dict "of" $metadata "weight" "0") | nindent 2 }}
rules:
  {{- toYaml .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $name }}-hook-binding
  {{- include "gpu-operator.hookMetadata" (dict "of" $metadata "weight" "0") | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $name }}-hook-role
subjects:
  - kind: ServiceAccount
    name: {{ $name }}-hook-sa
    namespace: {{ $root.Release.Namespace }}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  {{- include "gpu-operator.hookMetadata" (dict "of" $metadata "weight" "1") | nindent 2 }}
spec:
  # An image that cannot be pulled ends the job before Helm gives up waiting; a job that failed goes by itself.
  activeDeadlineSeconds: 240
  ttlSecondsAfterFinished: 600
  template:
    metadata:
      labels:
        {{- include "gpu-operator.labels" $root | nindent 8 }}
    spec:
      serviceAccountName: {{ $name }}-hook-sa
      restartPolicy: OnFailure
      {{- with include "gpu-operator.pullSecrets" $root }}
      {{- . | nindent 6 }}
      {{- end }}
      securityContext:
        {{- include "gpu-operator.podSecurity" $root | nindent 8 }}
      containers:
        - name: {{ .does }}-crd
          image: {{ include "gpu-operator.image" $root | quote }}
          {{- with $root.Values.operator.imagePullPolicy }}
          imagePullPolicy: {{ . | quote }}
          {{- end }}
          command: [manage-crds]
          args: [{{ .verb }}{{ if $root.Values.nfd.enabled }}, --nfd{{ end }}]
          resources:
            requests: {cpu: 50m, memory: 64Mi}
            limits: {memory: 256Mi}
          securityContext:
            {{- include "gpu-operator.containerSecurity" $root | nindent 12 }}
      {{- include "gpu-operator.placement" $root | nindent 6 }}
{{ end -}}

{{/* Labels and annotations of one object of a hook: {of, weight}. YAML. */}}
{{- define "gpu-operator.hookMetadata" -}}
{{- $metadata := deepCopy .of -}}
{{- $_ := set $metadata.annotations "helm.sh/hook-weight" .weight -}}
{{- toYaml $metadata -}}
{{- end -}}
