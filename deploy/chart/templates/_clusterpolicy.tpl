{{/*
How values become a ClusterPolicy. A section of the values is a section of the policy; what is empty there is left out,
so that the operator's own defaults hold, with three kinds of exception that are listed in "gpu-operator.policyRules".
A value that the policy has a field for always reaches it.
*/}}

{{/*
For each section: `always` is rendered even when false, zero or an empty version; `parts` are objects whose own empty fields are left out too
(other objects are rendered whole); `chart` belongs to the chart and has no field in the policy.
*/}}
{{- define "gpu-operator.policyRules" -}}
hostPaths: {always: [rootFS, driverInstallDir]}
operator:
  parts: [initContainer, metrics]
  chart: [release, repository, image, version, imagePullPolicy, imagePullSecrets, env, priorityClassName, nodeSelector,
    cleanupCRD, upgradeCRD, tolerations, annotations, labels, affinity, logging, diagnosis, resources, defaultGPUMode]
daemonsets: {chart: [labels]}
validator: {chart: [plugin, cuda, driver, toolkit, vfioPCI, vgpuManager, vgpuDevices]}
mig: {}
psa: {always: [enabled]}
cdi: {always: [enabled]}
driver:
  always: [enabled, kernelModuleType, usePrecompiled]
  parts: [manager]
  chart: [nvidiaDriverCRD, upgradePolicy, useOpenKernelModules]
vgpuManager: {always: [enabled], parts: [driverManager]}
kataManager: {always: [enabled]}
vfioManager: {always: [enabled], parts: [driverManager]}
vgpuDeviceManager: {always: [enabled]}
ccManager: {always: [enabled, defaultMode]}
toolkit: {always: [enabled]}
devicePlugin: {always: [enabled], chart: [config, mps]}
dcgm: {always: [enabled]}
dcgmExporter: {always: [enabled], chart: [config]}
gfd: {always: [enabled]}
migManager: {always: [enabled], chart: [config]}
nodeStatusExporter: {always: [enabled]}
gds: {always: [enabled, version]}
gdrcopy: {always: [enabled, version]}
sandboxWorkloads: {always: [enabled]}
sandboxDevicePlugin: {}
kataSandboxDevicePlugin: {always: [enabled]}
{{- end -}}

{{/* A map without its empty fields; {of, always, parts, chart} as above. YAML. */}}
{{- define "gpu-operator.compact" -}}
{{- $rules := . -}}
{{- $kept := dict -}}
{{- range $key, $value := .of -}}
  {{- if has $key ($rules.parts | default list) -}}
    {{- $value = include "gpu-operator.compact" (dict "of" $value) | fromYaml -}}
  {{- end -}}
  {{- if has $key ($rules.chart | default list) -}}
  {{- else if kindIs "invalid" $value -}}
  {{- else if eq $key "version" -}}
    {{- if or $value (has $key ($rules.always | default list)) -}}{{- $_ := set $kept $key (toString $value) -}}{{- end -}}
  {{- else if or (not (empty $value)) (and (has $key ($rules.always | default list)) (ne (toString $value) "")) -}}
    {{- $_ := set $kept $key $value -}}
  {{- end -}}
{{- end -}}
{{- toYaml $kept -}}
{{- end -}}

{{/* driver.upgradePolicy as the policy writes it: gpuPodDeletion is called podDeletion there. YAML. */}}
{{- define "gpu-operator.upgradePolicy" -}}
{{- $policy := omit . "gpuPodDeletion" -}}
{{- with .gpuPodDeletion }}{{- $_ := set $policy "podDeletion" . -}}{{- end -}}
{{- if regexMatch "^[0-9]+$" (toString .maxUnavailable) -}}{{/* a text has to be a percentage */}}
  {{- $_ := set $policy "maxUnavailable" (int .maxUnavailable) -}}
{{- end -}}
{{- range $part := list "waitForCompletion" "drain" -}}
  {{- with get $policy $part -}}
    {{- if not .podSelector -}}{{- $_ := set $policy $part (omit . "podSelector") -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- toYaml $policy -}}
{{- end -}}

{{/* Relabelling rules in the policy's spelling: files for older charts write source_labels and target_label. YAML. */}}
{{- define "gpu-operator.relabelings" -}}
{{- $rules := list -}}
{{- range . -}}
  {{- $rule := omit . "source_labels" "target_label" -}}
  {{- with .source_labels }}{{- $_ := set $rule "sourceLabels" . -}}{{- end -}}
  {{- with .target_label }}{{- $_ := set $rule "targetLabel" . -}}{{- end -}}
  {{- $rules = append $rules $rule -}}
{{- end -}}
{{- toYaml $rules -}}
{{- end -}}

{{/* The whole spec, from the values in force. Takes {values, root}. YAML. */}}
{{- define "gpu-operator.policySpec" -}}
{{- $values := .values -}}
{{- $release := include "gpu-operator.release" .root -}}
{{- $spec := dict -}}
{{- range $section, $rules := include "gpu-operator.policyRules" . | fromYaml -}}
  {{- with get $values $section -}}
    {{- $_ := set $spec $section (include "gpu-operator.compact" (merge (dict "of" .) $rules) | fromYaml) -}}
  {{- end -}}
{{- end -}}

{{- $_ := set $spec.daemonsets "labels" (include "gpu-operator.operandLabels" .root | fromYaml) -}}
{{- with $spec.daemonsets.rollingUpdate -}}
  {{- $_ := set $spec.daemonsets "rollingUpdate" (dict "maxUnavailable" (toString .maxUnavailable)) -}}
{{- end -}}

{{- range $component := list "plugin" "cuda" "driver" "toolkit" "vfioPCI" "vgpuManager" "vgpuDevices" -}}
  {{- with get $values.validator $component -}}
    {{- $_ := set $spec.validator $component (dict "env" (.env | default list)) -}}
  {{- end -}}
{{- end -}}
{{- range $section := list "validator" "nodeStatusExporter" -}}{{/* an empty version there means the release's */}}
  {{- if not (get (get $spec $section) "version") -}}
    {{- $releases := $.root.Files.Get "files/releases.yaml" | fromYaml -}}
    {{- $_ := set (get $spec $section) "version" (get (get $releases $release) (printf "%s.version" $section)) -}}
  {{- end -}}
{{- end -}}

{{- if not $spec.cdi.enabled -}}{{- $_ := unset $spec.cdi "nriPluginEnabled" -}}{{- end -}}

{{- $byCRD := $values.driver.nvidiaDriverCRD.enabled -}}
{{- if and $byCRD (hasPrefix "26.7" $release) -}}{{/* the driver is described by NVIDIADriver objects alone */}}
  {{- $_ := set $spec "driver" (pick $spec.driver "enabled" "hostNetwork") -}}
{{- end -}}
{{- $_ := set $spec.driver "useNvidiaDriverCRD" $byCRD -}}
{{- with $values.driver.upgradePolicy -}}
  {{- $_ := set $spec.driver "upgradePolicy" (include "gpu-operator.upgradePolicy" . | fromYaml) -}}
{{- end -}}

{{- with $values.devicePlugin.config.name -}}
  {{- $_ := set $spec.devicePlugin "config" (dict "name" . "default" ($values.devicePlugin.config.default | default "")) -}}
{{- end -}}
{{- with $values.devicePlugin.mps -}}{{/* the usual root is the operator's default and goes without saying */}}
  {{- if and .root (ne .root "/run/nvidia/mps") -}}{{- $_ := set $spec.devicePlugin "mps" . -}}{{- end -}}
{{- end -}}
{{- with ($values.dcgmExporter.config | default dict).name | default (include "gpu-operator.counters" .root) -}}
  {{- $_ := set $spec.dcgmExporter "config" (dict "name" .) -}}
{{- end -}}
{{- range list $spec.dcgmExporter.serviceMonitor ($spec.operator.metrics | default dict).serviceMonitor -}}
  {{- with . -}}
    {{- if .relabelings -}}
      {{- $_ := set . "relabelings" (include "gpu-operator.relabelings" .relabelings | fromYamlArray) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- with $values.migManager.config -}}
  {{- $config := dict "default" (.default | default "") -}}
  {{- with .name -}}{{- $_ := set $config "name" . -}}{{- end -}}
  {{- $_ := set $spec.migManager "config" $config -}}
{{- end -}}
{{- toYaml $spec -}}
{{- end -}}
