{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* One of the images of components/versions, or of values. */ -}}
{{- define "sluice.image" -}}
{{- $name := .name -}}
{{- $pin := dict -}}
{{- range (fromYaml (.root.Files.Get "components/versions/kustomization.yaml")).images -}}
  {{- if eq .name $name -}}{{- $pin = . -}}{{- end -}}
{{- end -}}
{{- $given := get .root.Values.images $name | default dict -}}
{{- if has $name (list "sluice" "sluice-cuda") -}}{{- $given = .root.Values.image -}}{{- end -}}
{{- $place := $given.repository | default $pin.newName | default $name -}}
{{- $registry := $given.registry | default (dig "imageRegistry" "" (.root.Values.global | default dict)) -}}
{{- if $registry -}}{{- $place = printf "%s/%s" (trimSuffix "/" $registry) $place -}}{{- end -}}
{{- if $given.digest -}}
{{- printf "%s@%s" $place $given.digest -}}
{{- else -}}
{{- printf "%s:%s" $place (toString ($given.tag | default $pin.newTag)) -}}
{{- end -}}
{{- end -}}

{{- /* What depends on values in any pod's spec: images, the drain and what follows from it, secrets of
       registries, and the names of account and ConfigMap with the suffix. */ -}}
{{- define "sluice.pod" -}}
{{- $root := .root -}}
{{- $suffix := .suffix -}}
{{- $pause := 0 -}}
{{- $drains := false -}}
{{- range concat (.spec.initContainers | default list) .spec.containers -}}
  {{- if and $root.Values.image.pullPolicy (has .image (list "sluice" "sluice-cuda")) -}}
    {{- $_ := set . "imagePullPolicy" $root.Values.image.pullPolicy -}}
  {{- end -}}
  {{- $_ := set . "image" (include "sluice.image" (dict "root" $root "name" .image)) -}}
  {{- range .envFrom -}}
    {{- if and .configMapRef (eq (toString (dig "configMapRef" "name" "" .)) "sluice") -}}
      {{- $_ := set .configMapRef "name" (printf "sluice%s" $suffix) -}}
    {{- end -}}
  {{- end -}}
  {{- range .env -}}
    {{- if eq .name "SLUICE_DRAIN_TIMEOUT_S" -}}
      {{- $_ := set . "value" (include "sluice.text" $root.Values.drainTimeoutSeconds) -}}
      {{- $drains = true -}}
    {{- end -}}
  {{- end -}}
  {{- $pause = max $pause (dig "lifecycle" "preStop" "sleep" "seconds" 0 .) -}}
{{- end -}}
{{- if $drains -}}
  {{- $_ := set .spec "terminationGracePeriodSeconds" (add $pause $root.Values.drainTimeoutSeconds 15) -}}
{{- end -}}
{{- if eq .spec.serviceAccountName "sluice" -}}
  {{- $_ := set .spec "serviceAccountName" (printf "sluice%s" $suffix) -}}
{{- end -}}
{{- if $root.Values.imagePullSecrets -}}
  {{- $_ := set .spec "imagePullSecrets" $root.Values.imagePullSecrets -}}
{{- end -}}
{{- include "sluice.renamePod" (dict "root" $root "spec" .spec) -}}
{{- end -}}

{{- /* What values say of a kind of pods (`of`: server, router, prefill or decode) into its template. */ -}}
{{- define "sluice.place" -}}
{{- $of := .of -}}
{{- $template := .template -}}
{{- $spec := $template.spec -}}
{{- $labels := $template.metadata.labels -}}
{{- $main := first $spec.containers -}}
{{- if $of.resources -}}
  {{- include "sluice.merge" (dict "into" $main "from" (dict "resources" $of.resources)) -}}
{{- end -}}
{{- if $of.env -}}{{- $_ := set $main "env" (concat ($main.env | default list) $of.env) -}}{{- end -}}
{{- if $of.nodeSelector -}}
  {{- $_ := set $spec "nodeSelector" (mergeOverwrite ($spec.nodeSelector | default dict) $of.nodeSelector) -}}
{{- end -}}
{{- if $of.tolerations -}}
  {{- $_ := set $spec "tolerations" (concat ($spec.tolerations | default list) $of.tolerations) -}}
{{- end -}}
{{- range $key := list "affinity" "priorityClassName" "runtimeClassName" "schedulerName" -}}
  {{- if get $of $key -}}{{- $_ := set $spec $key (get $of $key) -}}{{- end -}}
{{- end -}}
{{- if $of.topologySpreadConstraints -}}
  {{- $spread := list -}}
  {{- range $of.topologySpreadConstraints -}}
    {{- $spread = append $spread (merge (deepCopy .) (dict "labelSelector" (dict "matchLabels" (pick $labels "app.kubernetes.io/name" "app.kubernetes.io/component")))) -}}
  {{- end -}}
  {{- $_ := set $spec "topologySpreadConstraints" $spread -}}
{{- end -}}
{{- $_ := set $template.metadata "labels" (mergeOverwrite $labels ($of.podLabels | default dict)) -}}
{{- $_ := set $template.metadata "annotations" (mergeOverwrite ($template.metadata.annotations | default dict) ($of.podAnnotations | default dict)) -}}
{{- end -}}

{{- /* A server's pods: where the model comes from, and how many GPUs there are. */ -}}
{{- define "sluice.model" -}}
{{- $values := .root.Values -}}
{{- range .spec.volumes -}}
  {{- if .image -}}{{- $_ := set .image "reference" $values.model.image -}}{{- end -}}
  {{- if and (eq .name "models") .emptyDir -}}{{- $_ := set .emptyDir "sizeLimit" $values.model.downloadSize -}}{{- end -}}
{{- end -}}
{{- if eq $values.model.source "download" -}}
  {{- range .spec.initContainers -}}
    {{- if eq .name "model" -}}{{- $_ := set .resources.requests "ephemeral-storage" $values.model.downloadSize -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- if eq $values.device "cuda" -}}
  {{- $_ := set (first .spec.containers).resources.limits "nvidia.com/gpu" (int $values.gpu.count) -}}
  {{- $_ := set .spec "nodeSelector" $values.gpu.nodeSelector -}}
{{- end -}}
{{- end -}}
