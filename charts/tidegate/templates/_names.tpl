{{/*
What all names begin with. A StatefulSet's name must leave 11 of the 63 characters of a label for the
hash of its revision, and its suffix takes 7.
*/}}
{{- define "tidegate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 44 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 44 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 44 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Name of a component's objects. Takes (list $ component). */}}
{{- define "tidegate.name" -}}
{{- printf "%s-%s" (include "tidegate.fullname" (first .)) (last .) -}}
{{- end -}}

{{/*
What selects the pods of a component. Selectors of workloads are immutable: nothing that changes
between versions of the chart may come in here. Takes (list $ component).
*/}}
{{- define "tidegate.selectorLabels" -}}
app.kubernetes.io/name: {{ (first .).Chart.Name | trunc 63 }}
app.kubernetes.io/instance: {{ (first .).Release.Name }}
app.kubernetes.io/component: {{ last . }}
{{- end -}}

{{/*
Labels of pods. The version is not among them: it would restart every engine with each version of the
chart. Those of the values cannot replace ours. Takes (list $ component).
*/}}
{{- define "tidegate.podLabels" -}}
{{- $ours := fromYaml (include "tidegate.stableLabels" .) -}}
{{- toYaml (merge $ours (get (first .).Values (last .)).podLabels) -}}
{{- end -}}

{{/* Labels that stay as they are from version to version. Takes (list $ component). */}}
{{- define "tidegate.stableLabels" -}}
{{ include "tidegate.selectorLabels" . }}
app.kubernetes.io/part-of: tidegate
{{- end -}}

{{/* Labels of all other objects. Takes (list $ component). */}}
{{- define "tidegate.labels" -}}
{{ include "tidegate.stableLabels" . }}
app.kubernetes.io/version: {{ (first .).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (first .).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (first .).Chart.Name (first .).Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{/* Name of a component's ServiceAccount. Takes (list $ component). */}}
{{- define "tidegate.serviceAccountName" -}}
{{- $account := (get (first .).Values (last .)).serviceAccount -}}
{{- $account.name | default (ternary (include "tidegate.name" .) "default" $account.create) -}}
{{- end -}}

{{/* Name of an image. Takes (list $ image). */}}
{{- define "tidegate.image" -}}
{{- $image := last . -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository ($image.tag | default (first .).Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/*
Whether the operator decides what is loaded and where requests go; "" if not. Engines of your own have
no loaders that it could tell.
*/}}
{{- define "tidegate.operated" -}}
{{- if and .Values.operator.enabled .Values.engine.enabled -}}
{{- range list (list "engine.models" .Values.engine.models) (list "routing.models" .Values.routing.models) (list "routing.aliases" .Values.routing.aliases) -}}
{{- if last . -}}
{{- fail (printf "%s: expected none, since operator.enabled: `rollouts` says which versions serve, got %s" (first .) (toJson (last .))) -}}
{{- end -}}
{{- end -}}
true
{{- else -}}
{{- if and .Values.engine.enabled (not .Values.engine.models) -}}
{{- fail "engine.models: expected the models that each engine loads, since operator.enabled is false, got none" -}}
{{- end -}}
{{- /* The default cannot be told from one's own value of the same content; both say nothing here. */ -}}
{{- $default := dict "image_classifier" (dict "version" 1) -}}
{{- if and .Values.rollouts (ne (toJson .Values.rollouts) (toJson $default)) -}}
{{- $switch := ternary "operator" "engine" .Values.engine.enabled -}}
{{- fail (printf "rollouts: expected the default or none, since %s.enabled is false and so nobody rolls models, got %s" $switch (toJson .Values.rollouts)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The name of the ModelRollout that the chart makes for a model. Takes the model's name. */}}
{{- define "tidegate.rolloutName" -}}
{{- $name := regexReplaceAll "[^a-z0-9]+" (lower .) "-" | trimAll "-" | trunc 63 | trimSuffix "-" -}}
{{- if not $name -}}
{{- fail (printf "rollouts.%s: expected a model with a letter or digit in its name, after which its ModelRollout is named, got none" .) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* The names of the models that engines load, in order, as a JSON list. */}}
{{- define "tidegate.models" -}}
{{- ternary (keys .Values.rollouts | sortAlpha) .Values.engine.models (ne (include "tidegate.operated" .) "") | toJson -}}
{{- end -}}

{{/* The model that is asked when nothing else is said. */}}
{{- define "tidegate.defaultModel" -}}
{{- $models := ternary (include "tidegate.models" . | fromJsonArray) list .Values.engine.enabled -}}
{{- .Values.gateway.settings.default_model | default (first $models) | default "image_classifier" -}}
{{- end -}}

{{/* The ConfigMap with the routing table that the operator writes; it is not Helm's. */}}
{{- define "tidegate.routingConfigMap" -}}
{{- include "tidegate.name" (list . "routing") -}}
{{- end -}}

{{/* The Secret with the key of the engines' repository API. */}}
{{- define "tidegate.repositoryKeySecret" -}}
{{- .Values.engine.repositoryKey.existingSecret | default (include "tidegate.name" (list . "engine")) -}}
{{- end -}}
