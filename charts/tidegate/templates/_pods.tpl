{{/*
What the pods of all components have in common: Pod Security `restricted`, no token by itself, and
what the values say about where they run. Takes (list $ component).
*/}}
{{- define "tidegate.podSpec" -}}
{{- $values := get (first .).Values (last .) -}}
serviceAccountName: {{ include "tidegate.serviceAccountName" . }}
{{ include "tidegate.podSecurity" (first .) }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The restricted pod, for tests as well. Takes $. */}}
{{- define "tidegate.podSecurity" -}}
automountServiceAccountToken: false
# The variables that Kubernetes makes of Services could be taken for settings.
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{/* The token of a pod's identity, as Kubernetes would mount it into every container by itself. */}}
{{- define "tidegate.tokenVolume" -}}
- name: token
  projected:
    sources:
      - serviceAccountToken:
          path: token
      - configMap:
          name: kube-root-ca.crt
          items:
            - key: ca.crt
              path: ca.crt
      - downwardAPI:
          items:
            - path: namespace
              fieldRef:
                fieldPath: metadata.namespace
{{- end -}}

{{- define "tidegate.tokenMount" -}}
- name: token
  mountPath: /var/run/secrets/kubernetes.io/serviceaccount
  readOnly: true
{{- end -}}

{{/* The rule by which a part may follow the operator's routing table. */}}
{{- define "tidegate.followTable" -}}
- apiGroups:
    - ""
  resources:
    - configmaps
  resourceNames:
    - {{ include "tidegate.routingConfigMap" . }}
  verbs:
    - get
    - list
    - watch
{{- end -}}

{{- define "tidegate.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop:
      - ALL
{{- end -}}

{{/*
Spread over nodes and zones. Those whose taints the pods do not tolerate would count as empty, and
draw a pod that cannot run there. Takes (list $ component keys), with the keys of pod labels that
tell the revisions of a workload apart.
*/}}
{{- define "tidegate.topologySpread" -}}
{{- $component := list (index . 0) (index . 1) -}}
{{- $matchLabelKeys := index . 2 -}}
{{- with (get (index . 0).Values (index . 1)).topologySpread -}}
topologySpreadConstraints:
  {{- range . }}
  - topologyKey: {{ .topologyKey }}
    maxSkew: {{ .maxSkew }}
    whenUnsatisfiable: {{ .whenUnsatisfiable }}
    nodeTaintsPolicy: Honor
    labelSelector:
      matchLabels:
        {{- include "tidegate.selectorLabels" $component | nindent 8 }}
    {{- with $matchLabelKeys }}
    matchLabelKeys:
      {{- toYaml . | nindent 6 }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Annotations of pods. Takes (list $ component port-of-metrics). */}}
{{- define "tidegate.podAnnotations" -}}
{{- $given := (get (index . 0).Values (index . 1)).podAnnotations -}}
{{- $prometheus := dict -}}
{{- if (index . 0).Values.prometheusAnnotations -}}
{{- $prometheus = dict "prometheus.io/scrape" "true" "prometheus.io/port" (toString (index . 2)) "prometheus.io/path" "/metrics" -}}
{{- end -}}
{{- with merge dict ($given | default dict) $prometheus -}}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
