{{/*
The ConfigMap with the metrics that alerts and dashboard need; nothing where neither is there, where the exporter is
off, or where the values name another list. Takes the root context.
*/}}
{{- define "gpu-operator.counters" -}}
{{- $monitoring := .Values.monitoring | default dict -}}
{{- $exporter := .Values.dcgmExporter | default dict -}}
{{- $shown := or ($monitoring.alerts | default dict).enabled ($monitoring.dashboard | default dict).enabled -}}
{{- $exports := ne (toString $exporter.enabled) "false" -}}{{/* unset is on */}}
{{- if and $shown ($monitoring.counters | default dict).enabled $exports (not ($exporter.config | default dict).name) -}}
gpu-operator-metrics
{{- end -}}
{{- end -}}
