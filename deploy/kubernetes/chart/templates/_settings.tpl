{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* A value as its knob reads it. Helm has every number as a float, which toString writes with an
       exponent from 2^21 on. */ -}}
{{- define "sluice.text" -}}
{{- if kindIs "slice" . -}}
  {{- $texts := list -}}
  {{- range . -}}{{- $texts = append $texts (include "sluice.text" .) -}}{{- end -}}
  {{- join "," $texts -}}
{{- else if kindIs "map" . -}}{{- toJson . -}}
{{- else if and (kindIs "float64" .) (eq . (floor .)) -}}{{- printf "%.0f" . -}}
{{- else -}}{{- toString . -}}{{- end -}}
{{- end -}}

{{- /* The values' settings, as YAML. The default model has 9 heads, which no number of ranks divides:
       the overlay's takes its place among pods that share each layer. */ -}}
{{- define "sluice.settings" -}}
{{- $given := deepCopy .Values.settings -}}
{{- $pin := (fromYaml (.Files.Get "base/server/kustomization.yaml")).configMapGenerator | first -}}
{{- $shares := and (eq .Values.topology "ranks") (lt (int (.Values.stages | default 1)) (int .Values.ranks)) -}}
{{- if and $shares (has (printf "SLUICE_MODEL=%s" $given.SLUICE_MODEL) $pin.literals) -}}
  {{- $overlay := (fromYaml (.Files.Get "overlays/ranks/kustomization.yaml")).configMapGenerator | first -}}
  {{- range $overlay.literals -}}
    {{- $parts := splitn "=" 2 . -}}
    {{- if has $parts._0 (list "SLUICE_MODEL" "SLUICE_REVISION") -}}{{- $_ := set $given $parts._0 $parts._1 -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- toYaml $given -}}
{{- end -}}

{{- /* What servers are told, as YAML; `role`: prefill, decode or none. */ -}}
{{- define "sluice.serverSettings" -}}
{{- $values := .root.Values -}}
{{- $given := mergeOverwrite (include "sluice.settings" .root | fromYaml) (deepCopy (dig "settings" dict (get $values (.role | default "server")))) -}}
{{- $pin := (fromYaml (.root.Files.Get "base/server/kustomization.yaml")).configMapGenerator | first -}}
{{- $ours := has (printf "SLUICE_MODEL=%s" $given.SLUICE_MODEL) $pin.literals -}}
{{- if and (not $ours) (has (printf "SLUICE_REVISION=%s" $given.SLUICE_REVISION) $pin.literals) -}}
  {{- /* The default is a commit of the default model, and of no other. */ -}}
  {{- $given = omit $given "SLUICE_REVISION" -}}
{{- end -}}
{{- if and (eq $values.device "cuda") (gt (int $values.gpu.count) 1) (not (hasKey $given "SLUICE_TENSOR_PARALLEL_SIZE")) -}}
  {{- $_ := set $given "SLUICE_TENSOR_PARALLEL_SIZE" $values.gpu.count -}}
{{- end -}}
{{- $data := dict -}}
{{- range $key, $value := $given -}}{{- $_ := set $data $key (include "sluice.text" $value) -}}{{- end -}}
{{- toYaml $data -}}
{{- end -}}

{{- /* What routers are told, as YAML. */ -}}
{{- define "sluice.routerSettings" -}}
{{- $given := dict "SLUICE_SERVED_MODEL_NAME" (.Values.servedModelName | default (include "sluice.settings" . | fromYaml).SLUICE_MODEL) -}}
{{- $data := dict -}}
{{- range $key, $value := mergeOverwrite $given (deepCopy .Values.router.settings) -}}
  {{- $_ := set $data $key (include "sluice.text" $value) -}}
{{- end -}}
{{- toYaml $data -}}
{{- end -}}

{{- /* Prints a ConfigMap of `data`: a dict, or one as YAML. */ -}}
{{- define "sluice.configMap" -}}
{{- $data := .data -}}
{{- if kindIs "string" $data -}}{{- $data = fromYaml $data -}}{{- end -}}
{{- include "sluice.print" (dict "root" .root "labels" .labels "suffix" .suffix "object" (dict
    "apiVersion" "v1" "kind" "ConfigMap" "metadata" (dict "name" .name) "data" $data)) -}}
{{- end -}}

{{- /* "yes" where an object of an operator's is to be printed: true, or auto and the cluster has its
       definition. */ -}}
{{- define "sluice.hasOperator" -}}
{{- if eq (toString .value) "true" -}}yes
{{- else if and (eq (toString .value) "auto") (.root.Capabilities.APIVersions.Has .definition) -}}yes
{{- end -}}
{{- end -}}

{{- /* Gateways and host names of an HTTPRoute. */ -}}
{{- define "sluice.route" -}}
{{- $route := .root.Values.httpRoute -}}
{{- if $route.parentRefs -}}{{- $_ := set .object.spec "parentRefs" $route.parentRefs -}}{{- end -}}
{{- if not .object.spec.parentRefs -}}{{- fail "httpRoute: parentRefs name no gateway" -}}{{- end -}}
{{- if $route.hostnames -}}{{- $_ := set .object.spec "hostnames" $route.hostnames -}}{{- end -}}
{{- if $route.annotations -}}{{- $_ := set .object.metadata "annotations" $route.annotations -}}{{- end -}}
{{- end -}}
