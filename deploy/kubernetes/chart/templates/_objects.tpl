{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* One of the images of components/versions, or of .Values.images. */ -}}
{{- define "sluice.image" -}}
{{- $name := .name -}}
{{- $pin := dict -}}
{{- range (fromYaml (.root.Files.Get "components/versions/kustomization.yaml")).images -}}
  {{- if eq .name $name -}}{{- $pin = . -}}{{- end -}}
{{- end -}}
{{- $pin = mergeOverwrite (dict "newName" $name) $pin (get .root.Values.images $name | default dict) -}}
{{- if $pin.digest -}}
{{- printf "%s@%s" $pin.newName $pin.digest -}}
{{- else -}}
{{- printf "%s:%s" $pin.newName $pin.newTag -}}
{{- end -}}
{{- end -}}

{{- /* What depends on values in a pod's spec: images, the drain and what follows from it, and the
       names of account and ConfigMap with the suffix. */ -}}
{{- define "sluice.pod" -}}
{{- $root := .root -}}
{{- $suffix := .suffix -}}
{{- $pause := 0 -}}
{{- $drains := false -}}
{{- range concat (.spec.initContainers | default list) .spec.containers -}}
  {{- $_ := set . "image" (include "sluice.image" (dict "root" $root "name" .image)) -}}
  {{- range .envFrom -}}
    {{- if and .configMapRef (eq (toString (dig "configMapRef" "name" "" .)) "sluice") -}}
      {{- $_ := set .configMapRef "name" (printf "sluice%s" $suffix) -}}
    {{- end -}}
  {{- end -}}
  {{- range .env -}}
    {{- if eq .name "SLUICE_DRAIN_TIMEOUT_S" -}}
      {{- $_ := set . "value" (toString $root.Values.drainTimeoutSeconds) -}}
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
{{- end -}}

{{- /* Prints an object, with `labels` on it and on what it selects and makes, and `suffix` in its name. */ -}}
{{- define "sluice.print" -}}
{{- $object := .object -}}
{{- $labels := .labels | default dict -}}
{{- $suffix := .suffix | default "" -}}
{{- $spec := $object.spec | default dict -}}
{{- $_ := set $object.metadata "name" (printf "%s%s" $object.metadata.name $suffix) -}}
{{- $own := dict "app.kubernetes.io/managed-by" .root.Release.Service "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version) -}}
{{- $_ := set $object.metadata "labels" (merge $own $labels ($object.metadata.labels | default dict)) -}}
{{- $selectors := list (dig "selector" "matchLabels" nil $spec) (dig "podSelector" "matchLabels" nil $spec) -}}
{{- if eq $object.kind "Service" -}}{{- $selectors = list $spec.selector -}}{{- end -}}
{{- if eq $object.kind "Deployment" -}}
  {{- $selectors = append $selectors $spec.template.metadata.labels -}}
  {{- range $spec.template.spec.topologySpreadConstraints -}}
    {{- $selectors = append $selectors .labelSelector.matchLabels -}}
  {{- end -}}
  {{- $settings := toYaml .root.Values.settings | sha256sum -}}
  {{- $_ := set $spec.template.metadata.annotations "checksum/settings" $settings -}}
  {{- include "sluice.pod" (dict "root" .root "spec" $spec.template.spec "suffix" $suffix) -}}
  {{- if hasKey .root.Values.replicas $object.metadata.name -}}
    {{- $_ := set $spec "replicas" (get .root.Values.replicas $object.metadata.name) -}}
  {{- end -}}
{{- end -}}
{{- range $selectors -}}
  {{- if . -}}{{- $_ := mergeOverwrite . $labels -}}{{- end -}}
{{- end }}
---
{{ toYaml $object }}
{{- end -}}

{{- /* Prints the objects of a file as they are. */ -}}
{{- define "sluice.file" -}}
{{- $root := .root -}}
{{- range splitList "\n---\n" (.root.Files.Get .path) -}}
{{- include "sluice.print" (dict "root" $root "object" (fromYaml .)) -}}
{{- end -}}
{{- end -}}

{{- define "sluice.settings" -}}
{{- $data := dict -}}
{{- range $key, $value := .data -}}{{- $_ := set $data $key (toString $value) -}}{{- end -}}
{{- include "sluice.print" (dict "root" .root "labels" .labels "suffix" .suffix "object" (dict
    "apiVersion" "v1" "kind" "ConfigMap" "metadata" (dict "name" .name) "data" $data)) -}}
{{- end -}}

{{- /* Adds to a NetworkPolicy's lists what the JSON patch in a file adds there. */ -}}
{{- define "sluice.addRules" -}}
{{- $spec := .spec -}}
{{- range fromYamlArray (.root.Files.Get .path) -}}
  {{- $list := trimSuffix "/-" (trimPrefix "/spec/" .path) -}}
  {{- $_ := set $spec $list (append (get $spec $list) .value) -}}
{{- end -}}
{{- end -}}

{{- /* Files over a server's Deployment that values ask for, by commas. */ -}}
{{- define "sluice.patches" -}}
{{- $patches := list -}}
{{- if eq .Values.device "cuda" -}}{{- $patches = append $patches "components/gpu/deployment.yaml" -}}{{- end -}}
{{- if ne .Values.model.source "download" -}}
  {{- $patches = append $patches (printf "components/model-%s/deployment.yaml" .Values.model.source) -}}
{{- end -}}
{{- join "," $patches -}}
{{- end -}}

{{- /* Prints the servers of base/server. `patches`: files over the Deployment; `worker`: behind a router;
       `rules`: a file of more network rules; `leaves`: kinds that are not printed. */ -}}
{{- define "sluice.servers" -}}
{{- $root := .root -}}
{{- $patches := .patches | default list -}}
{{- if .worker -}}{{- $patches = prepend $patches "components/worker/deployment.yaml" -}}{{- end -}}
{{- $patches = concat $patches (compact (splitList "," (include "sluice.patches" $root))) -}}
{{- $shared := dict "root" $root "labels" .labels "suffix" .suffix -}}
{{- range $file := list "account" "deployment" "service" "disruption" "network" -}}
  {{- $object := fromYaml ($root.Files.Get (printf "base/server/%s.yaml" $file)) -}}
  {{- if eq $file "deployment" -}}
    {{- range $patches -}}{{- include "sluice.patch" (dict "root" $root "into" $object "path" .) -}}{{- end -}}
    {{- include "sluice.modelImage" (dict "root" $root "spec" $object.spec.template.spec) -}}
    {{- include "sluice.merge" (dict "into" $object "from" $root.Values.serverPatch) -}}
  {{- else if and $.worker (has $file (list "service" "network")) -}}
    {{- include "sluice.patch" (dict "root" $root "into" $object "path" (printf "components/worker/%s.yaml" $file)) -}}
  {{- end -}}
  {{- if and (eq $file "network") $.rules -}}
    {{- include "sluice.addRules" (dict "root" $root "spec" $object.spec "path" $.rules) -}}
  {{- end -}}
  {{- if and (eq $file "network") (eq $root.Values.model.source "image") -}}
    {{- $_ := set $object.spec "egress" (concat (slice $object.spec.egress 0 1) (slice $object.spec.egress 2)) -}}
  {{- end -}}
  {{- if not (has $object.kind ($.leaves | default list)) -}}
    {{- include "sluice.print" (merge (dict "object" $object) $shared) -}}
  {{- end -}}
{{- end -}}
{{- include "sluice.settings" (merge (dict "name" "sluice" "data" $root.Values.settings) $shared) -}}
{{- end -}}

{{- define "sluice.modelImage" -}}
{{- $image := .root.Values.model.image -}}
{{- range .spec.volumes -}}
  {{- if .image -}}{{- $_ := set .image "reference" $image -}}{{- end -}}
{{- end -}}
{{- end -}}

{{- /* What routers are told. */ -}}
{{- define "sluice.routerSettings" -}}
{{- $name := .root.Values.servedModelName | default .root.Values.settings.SLUICE_MODEL -}}
{{- include "sluice.settings" (dict "root" .root "name" "sluice-router" "data" (dict "SLUICE_SERVED_MODEL_NAME" $name)) -}}
{{- end -}}

{{- /* Prints the routers of base/router. */ -}}
{{- define "sluice.routers" -}}
{{- $root := .root -}}
{{- range $file := list "account" "service" "disruption" "network" -}}
  {{- include "sluice.file" (dict "root" $root "path" (printf "base/router/%s.yaml" $file)) -}}
{{- end -}}
{{- $object := fromYaml ($root.Files.Get "base/router/deployment.yaml") -}}
{{- if .patch -}}{{- include "sluice.patch" (dict "root" $root "into" $object "path" .patch) -}}{{- end -}}
{{- include "sluice.merge" (dict "into" $object "from" $root.Values.routerPatch) -}}
{{- include "sluice.print" (dict "root" $root "object" $object) -}}
{{- include "sluice.routerSettings" . -}}
{{- end -}}
