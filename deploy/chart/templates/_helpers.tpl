{{/*
Names, labels, images and the values in force. Every helper takes the root context unless it says otherwise.
*/}}

{{/* The chart's name in labels; nameOverride replaces it. */}}
{{- define "gpu-operator.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Chart name and version as a label value. */}}
{{- define "gpu-operator.chart" -}}
{{- printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/*
Labels of everything the chart makes; operator.labels adds to them and may replace them, but not those by which the
operator's pods are found. YAML of a map.
*/}}
{{- define "gpu-operator.labels" -}}
{{- $labels := dict
      "app.kubernetes.io/name" (include "gpu-operator.name" .)
      "helm.sh/chart" (include "gpu-operator.chart" .)
      "app.kubernetes.io/instance" .Release.Name
      "app.kubernetes.io/version" .Chart.AppVersion
      "app.kubernetes.io/managed-by" .Release.Service -}}
{{- range $key, $value := omit (.Values.operator.labels | default dict) "app" "nvidia.com/gpu-driver-upgrade-drain.skip" -}}
  {{- $_ := set $labels $key $value -}}
{{- end -}}
{{- $_ := set $labels "app.kubernetes.io/component" "gpu-operator" -}}
{{- toYaml $labels -}}
{{- end -}}

{{/* Labels of every operand's DaemonSet, which reach it through the policy; daemonsets.labels adds to them. */}}
{{- define "gpu-operator.operandLabels" -}}
{{- $labels := dict
      "helm.sh/chart" (include "gpu-operator.chart" .)
      "app.kubernetes.io/managed-by" (include "gpu-operator.name" .) -}}
{{- range $key, $value := .Values.daemonsets.labels }}{{- $_ := set $labels $key $value -}}{{- end -}}
{{- toYaml $labels -}}
{{- end -}}

{{/*
The release of NVIDIA's GPU Operator to behave like, as a key of files/releases.yaml: operator.release; else the one
that operator.version names (a values file written for NVIDIA's chart may pin it there); else the newest.
*/}}
{{- define "gpu-operator.release" -}}
{{- $asked := .Values.operator.release | default "" | toString -}}
{{- if not $asked -}}
  {{- $asked = regexFind "^v?26[.][0-9]+([.][0-9]+)?$" (.Values.operator.version | default "" | toString) | default "26.7.0" -}}
{{- end -}}
{{- $series := regexFind "^26[.][0-9]+" (trimPrefix "v" $asked) -}}
{{- $found := dict -}}
{{- range $release, $_ := .Files.Get "files/releases.yaml" | fromYaml -}}
  {{- if and $series (hasPrefix (printf "%s." $series) $release) -}}{{- $_ := set $found "release" $release -}}{{- end -}}
{{- end -}}
{{- if not $found.release -}}
  {{- fail (printf "operator.release: unknown release %q of the GPU Operator: use 26.7.0 or 26.3.3" $asked) -}}
{{- end -}}
{{- $found.release -}}
{{- end -}}

{{/* The values in force: the user's and the chart's, with the release's defaults where both say nothing. YAML. */}}
{{- define "gpu-operator.values" -}}
{{- $values := deepCopy .Values -}}
{{- $releases := .Files.Get "files/releases.yaml" | fromYaml -}}
{{- range $path, $default := get $releases (include "gpu-operator.release" .) -}}
  {{- $keys := splitList "." $path -}}
  {{- $place := $values -}}
  {{- range initial $keys -}}
    {{- if kindIs "map" $place -}}{{- $place = get $place . -}}{{- end -}}
  {{- end -}}
  {{- if kindIs "map" $place -}}
    {{- if kindIs "invalid" (index $place (last $keys)) -}}{{- $_ := set $place (last $keys) $default -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- toYaml $values -}}
{{- end -}}

{{/*
The image of groundplane: operator, hook jobs, node features. operator.{repository,image,version} name it. What a values
file written for NVIDIA's chart says there (its repository and name, one of its releases as version) is where NVIDIA's
operator is, which this chart does not run: each of the three then counts as not set.
*/}}
{{- define "gpu-operator.image" -}}
{{- $repository := .Values.operator.repository | default "" -}}
{{- $image := .Values.operator.image | default "" -}}
{{- $version := .Values.operator.version | default "" | toString -}}
{{- if or (not $repository) (eq $repository "nvcr.io/nvidia") -}}{{- $repository = "localhost" -}}{{- end -}}
{{- if or (not $image) (eq $image "gpu-operator") -}}{{- $image = "groundplane" -}}{{- end -}}
{{- if or (not $version) (regexMatch "^v?26[.][0-9]+([.][0-9]+)?$" $version) -}}{{- $version = .Chart.AppVersion -}}{{- end -}}
{{- include "gpu-operator.reference" (dict "repository" $repository "image" $image "version" $version) -}}
{{- end -}}

{{/* An image reference from {repository, image, version}, where version is a tag or a digest such as sha256:... */}}
{{- define "gpu-operator.reference" -}}
{{- printf "%s/%s%s%v" .repository .image (ternary "@" ":" (hasPrefix "sha256:" (toString .version))) .version -}}
{{- end -}}

{{/* imagePullSecrets of a pod that runs groundplane's image; nothing when there are none. YAML of a map. */}}
{{- define "gpu-operator.pullSecrets" -}}
{{- with .Values.operator.imagePullSecrets -}}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What a container of groundplane that needs nothing of its node may do: nothing beyond its own files, read-only. */}}
{{- define "gpu-operator.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
readOnlyRootFilesystem: true
{{- end -}}

{{/*
Its pod. On OpenShift the numeric user comes from the namespace's range.
*/}}
{{- define "gpu-operator.podSecurity" -}}
runAsNonRoot: true
{{- if not .Values.platform.openshift }}
runAsUser: 65532
runAsGroup: 65532
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Where pods of the operator's image may run: nodeSelector and tolerations. YAML of a map. */}}
{{- define "gpu-operator.placement" -}}
{{- with .Values.operator.nodeSelector -}}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.operator.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Metadata of an object of the release: {root, name, cluster}; with `cluster` it lives in no namespace. YAML. */}}
{{- define "gpu-operator.metadata" -}}
name: {{ .name }}
{{- if not .cluster }}
namespace: {{ .root.Release.Namespace }}
{{- end }}
labels:
  {{- include "gpu-operator.labels" .root | nindent 2 }}
{{- end -}}

{{/* Rules for the release's namespace: {rules, namespace}; a rule about one namespace is about that one. YAML. */}}
{{- define "gpu-operator.rules" -}}
{{- $namespace := .namespace -}}
{{- $rules := list -}}
{{- range .rules -}}
  {{- $rule := deepCopy . -}}
  {{- if and (has "namespaces" .resources) .resourceNames -}}
    {{- $_ := set $rule "resourceNames" (list $namespace) -}}
  {{- end -}}
  {{- $rules = append $rules $rule -}}
{{- end -}}
{{- toYaml $rules -}}
{{- end -}}
