{{/*
The environment variables that carry gateway.settings. Numbers go through JSON: as text, Go would
write 67108864 as 6.7108864e+07.
*/}}
{{- define "tidegate.gatewaySettings" -}}
{{- $settings := deepCopy .Values.gateway.settings -}}
{{- if not $settings.engine.address -}}
{{- if not .Values.engine.enabled -}}
{{- fail "gateway.settings.engine.address: expected host:port of an engine, since engine.enabled is false, got none" -}}
{{- end -}}
{{- $_ := set $settings.engine "address" (printf "%s:8001" (include "tidegate.name" (list . "engine"))) -}}
{{- end -}}
{{- $_ := set $settings "default_model" (include "tidegate.defaultModel" .) -}}
{{- range $group, $members := $settings }}
{{- if kindIs "map" $members }}
{{- range $name, $value := $members }}
{{ include "tidegate.variable" (list (printf "%s__%s" $group $name) $value) }}
{{- end }}
{{- else }}
{{ include "tidegate.variable" (list $group $members) }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "tidegate.variable" -}}
- name: TIDEGATE_{{ first . | upper }}
  value: {{ ternary (last .) (toJson (last .)) (kindIs "string" (last .)) | quote }}
{{- end -}}
