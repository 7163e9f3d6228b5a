{{/*
Whether an upgrade puts a release that serves without the operator under it; "" if not. What tells is
whether its gateways follow the operator's table already. Helm asks the cluster only where it has one:
`helm template` never takes anything over.
*/}}
{{- define "tidegate.takesOver" -}}
{{- if and .Release.IsUpgrade (include "tidegate.operated" .) -}}
{{- with lookup "apps/v1" "Deployment" .Release.Namespace (include "tidegate.name" (list . "gateway")) -}}
{{- ternary "" "true" (contains "TIDEGATE_ROUTING__CONFIG_MAP" (toJson .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
The routing table that new gateways and engines begin with where the release is taken over, as JSON, or
"" where the operator's own is there already. It names what serves now, so that gateways have routes
before the operator has written anything, and so that no engine is ready before it has loaded them.
Whatever would leave a model without an answer meanwhile is refused.
*/}}
{{- define "tidegate.tableTakenOver" -}}
{{- $engines := lookup "apps/v1" "StatefulSet" .Release.Namespace (include "tidegate.name" (list . "engine")) -}}
{{- if not $engines -}}
{{- fail "operator.enabled: expected a release with engines of the chart's own, since its gateways serve without the operator so far, got none: install a second release in another namespace, and move your clients" -}}
{{- end -}}
{{- if not (.Capabilities.APIVersions.Has "tidegate.dev/v1alpha1") -}}
{{- fail "operator.enabled: expected the kind ModelRollout in the cluster, which Helm makes at the first installation only, got none: kubectl apply --server-side --force-conflicts --filename crds/ (of the chart), then upgrade again" -}}
{{- end -}}
{{- $routes := (include "tidegate.storedTable" (list . "table") | fromJson).models | default dict -}}
{{- $served := keys $routes -}}
{{- range regexFindAll "--load-model=[^\"]+" (toJson $engines.spec.template.spec) -1 -}}
{{- $served = append $served (trimPrefix "--load-model=" .) -}}
{{- end -}}
{{- $models := dict -}}
{{- $loads := dict -}}
{{- range $model := $served | uniq | sortAlpha -}}
{{- $version := include "tidegate.versionTakenOver" (list $ $model (get $routes $model)) -}}
{{- $_ := set $models $model (dict "stable" $version) -}}
{{- $_ := set $loads $model (dict "versions" (dict $version (dict "digest" ""))) -}}
{{- end -}}
{{- if lookup "v1" "ConfigMap" .Release.Namespace (include "tidegate.routingConfigMap" .) -}}
{{- $there := include "tidegate.storedTable" (list . "routing") | fromJson -}}
{{- range $model, $routes := $models -}}
{{- $known := get ($there.models | default dict) $model | default dict -}}
{{- if or (ne ($known.stable | default "") $routes.stable) (not (hasKey ($there.loads | default dict) $model)) -}}
{{- fail (printf "operator.enabled: expected a routing table by which version %s of %s serves, as it does, got the table of an earlier operator, in which it does not: kubectl --namespace %s delete configmap %s, then upgrade again" $routes.stable $model $.Release.Namespace (include "tidegate.routingConfigMap" $)) -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- dict "schema" 1 "revision" (include "tidegate.nextRevision" . | int64) "models" $models "loads" $loads | toJson -}}
{{- end -}}
{{- end -}}

{{/*
The version of a model that a release serves without the operator. Takes (list $ model routes), with
what its routing table has for it, which may be nothing.
*/}}
{{- define "tidegate.versionTakenOver" -}}
{{- $model := index . 1 -}}
{{- $routes := last . | default dict -}}
{{- $rollout := get (first .).Values.rollouts $model -}}
{{- if not $rollout -}}
{{- fail (printf "rollouts.%s: expected the version that serves, since the release serves this model without the operator so far, got none" $model) -}}
{{- end -}}
{{- $version := $rollout.version | int64 | toString -}}
{{- if ne ($routes.stable | default $version) $version -}}
{{- fail (printf "rollouts.%s.version: expected %s, the version that serves without the operator so far, got %s: roll to it once the operator is there" $model $routes.stable $version) -}}
{{- end -}}
{{- range $other, $weight := $routes.weights -}}
{{- if and (ne $other $version) (gt (float64 $weight) 0.0) -}}
{{- fail (printf "operator.enabled: expected all requests for %s to go to version %s before the operator takes over, got %v%% to version %s: change routing.models first" $model $version $weight $other) -}}
{{- end -}}
{{- end -}}
{{- $version -}}
{{- end -}}

{{/* The table in a ConfigMap of the release, as JSON; {} without one. Takes (list $ component). */}}
{{- define "tidegate.storedTable" -}}
{{- $data := (lookup "v1" "ConfigMap" (first .).Release.Namespace (include "tidegate.name" .)).data | default dict -}}
{{- get $data "table.json" | default "{}" -}}
{{- end -}}

{{/* A revision above all that ModelRollouts tell of: an earlier operator may have written those. */}}
{{- define "tidegate.nextRevision" -}}
{{- $highest := 0 -}}
{{- range (lookup "tidegate.dev/v1alpha1" "ModelRollout" .Release.Namespace "").items -}}
{{- $highest = max $highest (dig "status" "table" "revision" 0 .) -}}
{{- end -}}
{{- add1 $highest -}}
{{- end -}}
