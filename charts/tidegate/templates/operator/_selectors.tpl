{{/* The label selector of a component's pods, as text. Takes (list $ component). */}}
{{- define "tidegate.selectorText" -}}
{{- $pairs := list -}}
{{- range $name, $value := include "tidegate.selectorLabels" . | fromYaml -}}
{{- $pairs = append $pairs (printf "%s=%s" $name $value) -}}
{{- end -}}
{{- join "," $pairs -}}
{{- end -}}
