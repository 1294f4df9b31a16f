{{/*
The spec of the default NVIDIADriver, from the sections driver, daemonsets, gds and gdrcopy. Fields are named as there;
the references to other objects are named differently (contracts/control-plane.md 2). YAML.
*/}}
{{- define "gpu-operator.driverSpec" -}}
{{- $values := include "gpu-operator.values" . | fromYaml -}}
{{- $driver := $values.driver -}}
{{- $same := pick $driver "repository" "image" "version" "imagePullPolicy" "imagePullSecrets" "env" "args" "resources"
      "hostNetwork" "kernelModuleType" "usePrecompiled" "startupProbe" "livenessProbe" "readinessProbe" "rdma" "manager"
      "secretEnv" -}}
{{- $spec := include "gpu-operator.compact" (dict "of" $same "parts" (list "manager") "always" (list "usePrecompiled")) | fromYaml -}}
{{- $shared := pick $values.daemonsets "annotations" "labels" "tolerations" "priorityClassName" "podSecurityContext" -}}
{{- $spec = merge $spec (include "gpu-operator.compact" (dict "of" $shared) | fromYaml) -}}
{{- $_ := set $spec "driverType" ($driver.nvidiaDriverCRD.driverType | default "gpu") -}}

{{- with $driver.nvidiaDriverCRD.nodeSelector -}}{{- $_ := set $spec "nodeSelector" . -}}{{- end -}}
{{- if hasPrefix "26.7" (include "gpu-operator.release" .) -}}
  {{/* The fallback for nodes that no other driver selects; one with a selector of its own is an ordinary driver. */}}
  {{- $_ := set $spec "default" (empty $driver.nvidiaDriverCRD.nodeSelector) -}}
  {{- with $driver.upgradePolicy -}}
    {{- $_ := set $spec "upgradePolicy" (include "gpu-operator.upgradePolicy" . | fromYaml) -}}
  {{- end -}}
{{- end -}}

{{- with ($driver.repoConfig | default dict).configMapName -}}{{- $_ := set $spec "repoConfig" (dict "name" .) -}}{{- end -}}
{{- with ($driver.certConfig | default dict).name -}}{{- $_ := set $spec "certConfig" (dict "name" .) -}}{{- end -}}
{{- with ($driver.kernelModuleConfig | default dict).name -}}
  {{- $_ := set $spec "kernelModuleConfig" (dict "name" .) -}}
{{- end -}}
{{- with ($driver.virtualTopology | default dict).config -}}
  {{- $_ := set $spec "virtualTopologyConfig" (dict "name" .) -}}
{{- end -}}
{{- with $driver.licensingConfig -}}
  {{- if or .secretName .configMapName -}}
    {{- $licensing := dict "nlsEnabled" (ternary true .nlsEnabled (kindIs "invalid" .nlsEnabled)) -}}
    {{- if .secretName -}}
      {{- $_ := set $licensing "secretName" .secretName -}}
    {{- else -}}
      {{- $_ := set $licensing "name" .configMapName -}}
    {{- end -}}
    {{- $_ := set $spec "licensingConfig" $licensing -}}
  {{- end -}}
{{- end -}}
{{- range $part := list "gds" "gdrcopy" -}}
  {{- with get $values $part -}}
    {{- if .enabled -}}{{- $_ := set $spec $part (include "gpu-operator.compact" (dict "of" .) | fromYaml) -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- toYaml $spec -}}
{{- end -}}
