{{/*
How the gateways learn of the engines: by the EndpointSlices of the chart's own or of the Service that
is given, or by an address.
*/}}
{{- define "tidegate.discoverySource" -}}
{{- $settings := .Values.gateway.settings -}}
{{- $discovery := $settings.discovery | default dict -}}
{{- $runsThem := and .Values.engine.enabled (not $settings.engine.address) -}}
{{- $hasService := or $runsThem (ne ($discovery.service | default "") "") -}}
{{- $discovery.source | default (ternary "kubernetes" "address" $hasService) -}}
{{- end -}}

{{/*
The environment variables that carry gateway.settings. Numbers go through JSON: as text, Go would
write 67108864 as 6.7108864e+07.
*/}}
{{- define "tidegate.gatewaySettings" -}}
{{- $settings := deepCopy .Values.gateway.settings -}}
{{- $_ := set $settings "discovery" (include "tidegate.discovery" . | fromJson) -}}
{{- if eq $settings.discovery.source "address" -}}
{{- $_ := set $settings.engine "address" (include "tidegate.engineAddress" .) -}}
{{- end -}}
{{- if include "tidegate.operated" . -}}
{{- $_ := set $settings "routing" (include "tidegate.operatedRouting" . | fromJson) -}}
{{- $_ := set $settings.engine "loader_port" 8003 -}}
{{- else if include "tidegate.table" . -}}
{{- $_ := set $settings "routing" (include "tidegate.routing" . | fromJson) -}}
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
{{- if not ($settings.balancing | default dict).zone }}
# Kubernetes copies it from the node, from 1.35 on; before, it is empty and zones do not matter.
- name: TIDEGATE_BALANCING__ZONE
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['topology.kubernetes.io/zone']
{{- end }}
{{- end -}}

{{- define "tidegate.variable" -}}
- name: TIDEGATE_{{ first . | upper }}
  value: {{ ternary (last .) (toJson (last .)) (kindIs "string" (last .)) | quote }}
{{- end -}}

{{/* The namespace whose EndpointSlices the gateways watch. */}}
{{- define "tidegate.discoveryNamespace" -}}
{{- (.Values.gateway.settings.discovery | default dict).namespace | default .Release.Namespace -}}
{{- end -}}

{{/* The settings of the group discovery, as JSON. */}}
{{- define "tidegate.discovery" -}}
{{- $discovery := deepCopy (.Values.gateway.settings.discovery | default dict) -}}
{{- $reason := ternary "source is kubernetes" "service is given" (eq ($discovery.source | default "") "kubernetes") -}}
{{- $_ := set $discovery "source" (include "tidegate.discoverySource" .) -}}
{{- if eq $discovery.source "kubernetes" -}}
{{- with .Values.gateway.settings.engine.address -}}
{{- fail (printf "gateway.settings.engine.address: expected none, since gateway.settings.discovery.%s, got %s" $reason .) -}}
{{- end -}}
{{- if and .Values.engine.enabled (not $discovery.service) -}}
{{- $namespace := include "tidegate.discoveryNamespace" . -}}
{{- if ne $namespace .Release.Namespace -}}
{{- fail (printf "gateway.settings.discovery.service: expected the Service of your engines in %s, since gateway.settings.discovery.namespace is not the release's (%s), got none" $namespace .Release.Namespace) -}}
{{- end -}}
{{- $_ := set $discovery "service" (include "tidegate.name" (list . "engine")) -}}
{{- end -}}
{{- if not $discovery.service -}}
{{- fail "gateway.settings.discovery.service: expected the Service of your engines, since engine.enabled is false and gateway.settings.discovery.source is kubernetes, got none" -}}
{{- end -}}
{{- end -}}
{{- toJson $discovery -}}
{{- end -}}

{{/* host:port of the engines, for discovery by address. */}}
{{- define "tidegate.engineAddress" -}}
{{- if .Values.gateway.settings.engine.address -}}
{{- .Values.gateway.settings.engine.address -}}
{{- else if .Values.engine.enabled -}}
{{- printf "%s:8001" (include "tidegate.name" (list . "engine")) -}}
{{- else -}}
{{- fail "gateway.settings.engine.address: expected host:port of an engine, since engine.enabled is false, got none" -}}
{{- end -}}
{{- end -}}

{{/* The settings of the group routing where the operator writes the table, as JSON. */}}
{{- define "tidegate.operatedRouting" -}}
{{- $settings := .Values.gateway.settings -}}
{{- $given := dict "engine.address" $settings.engine.address "engine.loader_port" $settings.engine.loader_port "discovery.service" ($settings.discovery | default dict).service -}}
{{- range $name, $value := $given -}}
{{- if $value -}}
{{- fail (printf "gateway.settings.%s: expected none, since operator.enabled: it rolls models in the chart's own engines, got %v" $name $value) -}}
{{- end -}}
{{- end -}}
{{- if eq ($settings.engine.protocol | default "") "inference-service" -}}
{{- fail "gateway.settings.engine.protocol: expected kserve-v2, since operator.enabled: it rolls models in Tritons, which do not speak inference-service" -}}
{{- end -}}
{{- $routing := deepCopy (.Values.gateway.settings.routing | default dict) -}}
{{- range list "table" "config_map" "folder" -}}
{{- with get $routing . -}}
{{- fail (printf "gateway.settings.routing: expected the chart's own table, config_map and folder, since operator.enabled, got %s" .) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $routing "config_map" (include "tidegate.routingConfigMap" .) -}}
{{- toJson (set $routing "folder" (include "tidegate.tableFolder" .)) -}}
{{- end -}}

{{/* The settings of the group routing where the chart writes the table, as JSON. */}}
{{- define "tidegate.routing" -}}
{{- $routing := deepCopy (.Values.gateway.settings.routing | default dict) -}}
{{- with $routing.table -}}
{{- fail (printf "gateway.settings.routing.table: expected none, since routing.models is given, got %s" .) -}}
{{- end -}}
{{- toJson (set $routing "table" (printf "%s/table.json" (include "tidegate.tableFolder" .))) -}}
{{- end -}}
