{{/*
What stands beside Triton where the operator decides: the loader, and before it what copies the models
out of the engine's image where they are in there.
*/}}
{{- define "tidegate.loader" -}}
{{- $engine := .Values.engine -}}
{{- $loader := $engine.loader -}}
{{- if not (include "tidegate.repositoryVolume" . | trim) -}}
- name: models
  image: {{ include "tidegate.image" (list . $engine.image) | quote }}
  imagePullPolicy: {{ $engine.image.pullPolicy }}
  {{- include "tidegate.containerSecurity" . | nindent 2 }}
  command:
    - cp
    - --recursive
    # A node that starts anew runs it once more, over what is there already: that must be writable.
    - --no-preserve=mode
    - --no-target-directory
    - {{ $engine.repository.builtin }}
    - /repository
  resources:
    {{- toYaml $loader.resources | nindent 4 }}
  volumeMounts:
    - name: models
      mountPath: /repository
{{ end -}}
- name: loader
  # A native sidecar: it starts before Triton and ends after it.
  restartPolicy: Always
  image: {{ include "tidegate.image" (list . $loader.image) | quote }}
  imagePullPolicy: {{ $loader.image.pullPolicy }}
  {{- include "tidegate.containerSecurity" . | nindent 2 }}
  env:
    - name: TIDEGATE_LOADER_REPOSITORY__PATH
      value: /repository
    - name: TIDEGATE_LOADER_REPOSITORY__LOCAL
      value: /models
    - name: TIDEGATE_LOADER_REPOSITORY__FETCH
      value: {{ $loader.fetch }}
    - name: TIDEGATE_LOADER_TABLE__CONFIG_MAP
      value: {{ include "tidegate.routingConfigMap" . }}
    - name: TIDEGATE_LOADER_TABLE__FOLDER
      value: {{ include "tidegate.tableFolder" . }}
    - name: TIDEGATE_LOADER_LOG__LEVEL
      value: {{ $loader.logLevel }}
    {{- include "tidegate.repositoryKey" (list . "TIDEGATE_LOADER_TRITON__KEY") | nindent 4 }}
    {{- with $loader.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    - name: loader
      containerPort: 8003
  livenessProbe:
    httpGet:
      path: /livez
      port: loader
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
  # The pod's: it is ready when the versions that serve are proven here.
  readinessProbe:
    httpGet:
      path: /readyz
      port: loader
    periodSeconds: 1
    timeoutSeconds: 2
  resources:
    {{- toYaml $loader.resources | nindent 4 }}
  volumeMounts:
    - name: tmp
      mountPath: /tmp
    - name: models
      mountPath: /repository
      readOnly: true
    - name: local
      mountPath: /models
    - name: applied-table
      mountPath: {{ include "tidegate.tableFolder" . }}
    {{- include "tidegate.tokenMount" . | nindent 4 }}
{{- end -}}

{{/* The key of the repository API as an environment variable. Takes (list $ name). */}}
{{- define "tidegate.repositoryKey" -}}
- name: {{ last . }}
  valueFrom:
    secretKeyRef:
      name: {{ include "tidegate.repositoryKeySecret" (first .) }}
      key: key
{{- end -}}
