{{/* The members of the volume with the models, or nothing where they are in the image. */}}
{{- define "tidegate.repositoryVolume" -}}
{{- $repository := .Values.engine.repository -}}
{{- $given := list -}}
{{- range list "existingClaim" "hostPath" "volume" -}}
{{- if get $repository . -}}
{{- $given = append $given . -}}
{{- end -}}
{{- end -}}
{{- if gt (len $given) 1 -}}
{{- fail (printf "engine.repository: expected at most one of existingClaim, hostPath and volume, got %s" (join " and " $given)) -}}
{{- end -}}
{{- with $repository.existingClaim }}
persistentVolumeClaim:
  claimName: {{ . }}
  readOnly: true
{{- end }}
{{- with $repository.hostPath }}
hostPath:
  path: {{ . }}
  type: Directory
{{- end }}
{{- with $repository.volume }}
{{ toYaml . }}
{{- end }}
{{- end -}}
