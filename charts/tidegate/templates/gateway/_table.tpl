{{/* Where the containers have the routing table. */}}
{{- define "tidegate.tableFolder" -}}/etc/tidegate/routing{{- end -}}

{{/*
The routing table as docs/routing.md describes it, as JSON; nothing where the values have none. The
gateway judges all of it. What an upgrade would not show, since gateways go on with the table that
they have, is refused here as well.
*/}}
{{- define "tidegate.table" -}}
{{- $routing := .Values.routing -}}
{{- range $model, $routes := $routing.models -}}
{{- with $routes.weights -}}
{{- $sum := 0.0 -}}
{{- range . -}}{{- $sum = addf $sum . -}}{{- end -}}
{{- if ne (round $sum 9) 100.0 -}}
{{- fail (printf "routing.models.%s.weights: expected a sum of 100, got %v" $model $sum) -}}
{{- end -}}
{{- if not (hasKey . $routes.stable) -}}
{{- fail (printf "routing.models.%s.stable: expected one of the versions in weights (%s), got %s" $model (keys . | sortAlpha | join ", ") $routes.stable) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $alias, $model := $routing.aliases -}}
{{- if hasKey $routing.models $alias -}}
{{- fail (printf "routing.aliases.%s: expected a name that is no model's, got that of one" $alias) -}}
{{- end -}}
{{- if not (hasKey $routing.models $model) -}}
{{- fail (printf "routing.aliases.%s: expected a model of routing.models, got %s" $alias $model) -}}
{{- end -}}
{{- end -}}
{{- if $routing.models -}}
{{- $revision := $routing.revision | default .Release.Revision -}}
{{- dict "schema" 1 "revision" $revision "models" $routing.models "aliases" $routing.aliases | toPrettyJson -}}
{{- end -}}
{{- end -}}
