{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* Prints an object, with `labels` on it and on what it selects and makes, and `suffix` in its name.
       `settings`: the text of the ConfigMap that its pods read, whose change starts them anew. */ -}}
{{- define "sluice.print" -}}
{{- $object := .object -}}
{{- $labels := .labels | default dict -}}
{{- $suffix := .suffix | default "" -}}
{{- $spec := $object.spec | default dict -}}
{{- $own := dict "app.kubernetes.io/managed-by" .root.Release.Service "app.kubernetes.io/instance" .root.Release.Name "app.kubernetes.io/version" .root.Chart.AppVersion "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version) -}}
{{- $_ := set $object.metadata "name" (printf "%s%s" $object.metadata.name $suffix) -}}
{{- $_ := set $object.metadata "labels" (merge $own $labels ($object.metadata.labels | default dict)) -}}
{{- $selectors := list (dig "selector" "matchLabels" nil $spec) (dig "podSelector" "matchLabels" nil $spec) -}}
{{- if eq $object.kind "Service" -}}{{- $selectors = list $spec.selector -}}{{- end -}}
{{- $templates := list -}}
{{- if eq $object.kind "Deployment" -}}
  {{- $templates = list $spec.template -}}
  {{- if hasKey .root.Values.replicas $object.metadata.name -}}
    {{- $_ := set $spec "replicas" (int (get .root.Values.replicas $object.metadata.name)) -}}
  {{- end -}}
{{- else if eq $object.kind "LeaderWorkerSet" -}}
  {{- $templates = list $spec.leaderWorkerTemplate.leaderTemplate $spec.leaderWorkerTemplate.workerTemplate -}}
{{- end -}}
{{- range $templates -}}
  {{- $selectors = append $selectors .metadata.labels -}}
  {{- range .spec.topologySpreadConstraints -}}
    {{- $selectors = append $selectors .labelSelector.matchLabels -}}
  {{- end -}}
  {{- $_ := set .metadata.annotations "checksum/settings" ($.settings | default "" | sha256sum) -}}
  {{- include "sluice.pod" (dict "root" $.root "spec" .spec "suffix" $suffix) -}}
{{- end -}}
{{- range $selectors -}}
  {{- if . -}}{{- $_ := mergeOverwrite . $labels -}}{{- end -}}
{{- end -}}
{{- include "sluice.ofThisRelease" (dict "root" .root "object" $object "selectors" $selectors) -}}
{{- include "sluice.rename" (dict "root" .root "object" $object) }}
---
{{ toYaml $object }}
{{- end -}}

{{- /* Prints the objects of a file as they are. */ -}}
{{- define "sluice.file" -}}
{{- $root := .root -}}
{{- $settings := .settings -}}
{{- range splitList "\n---\n" (.root.Files.Get .path) -}}
{{- include "sluice.print" (dict "root" $root "object" (fromYaml .) "settings" $settings) -}}
{{- end -}}
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

{{- /* What values say of Services for clients, accounts and policies, which may be left out: dropped. */ -}}
{{- define "sluice.adjust" -}}
{{- $object := .object -}}
{{- $values := .root.Values -}}
{{- if and (eq $object.kind "Service") (ne (toString $object.spec.clusterIP) "None") -}}
  {{- $_ := set $object.metadata "annotations" $values.service.annotations -}}
  {{- if not $values.service.annotations -}}{{- $_ := unset $object.metadata "annotations" -}}{{- end -}}
  {{- if ne $values.service.type "ClusterIP" -}}{{- $_ := set $object.spec "type" $values.service.type -}}{{- end -}}
  {{- $_ := set (first $object.spec.ports) "port" (int $values.service.port) -}}
{{- else if and (eq $object.kind "ServiceAccount") $values.serviceAccount.annotations -}}
  {{- $_ := set $object.metadata "annotations" $values.serviceAccount.annotations -}}
{{- else if and (eq $object.kind "NetworkPolicy") (not $values.networkPolicy.enabled) -}}
  {{- $_ := set $object "dropped" true -}}
{{- end -}}
{{- end -}}

{{- /* Prints the servers of base/server. `patches`: files over the Deployment; `worker`: behind a router;
       `role`: prefill, decode or none; `rules`: a file of more network rules; `leaves`: kinds that are
       not printed. */ -}}
{{- define "sluice.servers" -}}
{{- $root := .root -}}
{{- $patches := .patches | default list -}}
{{- if .worker -}}{{- $patches = prepend $patches "components/worker/deployment.yaml" -}}{{- end -}}
{{- $patches = concat $patches (compact (splitList "," (include "sluice.patches" $root))) -}}
{{- $settings := include "sluice.serverSettings" (dict "root" $root "role" .role) -}}
{{- $of := include "sluice.of" (dict "root" $root "role" .role) | fromYaml -}}
{{- $shared := dict "root" $root "labels" .labels "suffix" .suffix "settings" $settings -}}
{{- range $file := list "account" "deployment" "service" "disruption" "network" -}}
  {{- $object := fromYaml ($root.Files.Get (printf "base/server/%s.yaml" $file)) -}}
  {{- if eq $file "deployment" -}}
    {{- range $patches -}}{{- include "sluice.patch" (dict "root" $root "into" $object "path" .) -}}{{- end -}}
    {{- include "sluice.model" (dict "root" $root "spec" $object.spec.template.spec) -}}
    {{- $_ := mergeOverwrite $object.spec.template.metadata.labels ($.labels | default dict) -}}
    {{- include "sluice.place" (dict "template" $object.spec.template "of" $of) -}}
    {{- include "sluice.merge" (dict "into" $object "from" $of.patch) -}}
  {{- else if and $.worker (has $file (list "service" "network")) -}}
    {{- include "sluice.patch" (dict "root" $root "into" $object "path" (printf "components/worker/%s.yaml" $file)) -}}
  {{- end -}}
  {{- if and (eq $file "network") $.rules -}}
    {{- include "sluice.addRules" (dict "root" $root "spec" $object.spec "path" $.rules) -}}
  {{- end -}}
  {{- if and (eq $file "network") (eq $root.Values.model.source "image") -}}
    {{- $_ := set $object.spec "egress" (concat (slice $object.spec.egress 0 1) (slice $object.spec.egress 2)) -}}
  {{- end -}}
  {{- include "sluice.adjust" (dict "root" $root "object" $object) -}}
  {{- if not (or $object.dropped (has $object.kind ($.leaves | default list))) -}}
    {{- include "sluice.print" (merge (dict "object" $object) $shared) -}}
  {{- end -}}
{{- end -}}
{{- include "sluice.configMap" (merge (dict "name" "sluice" "data" $settings) $shared) -}}
{{- end -}}

{{- /* What values say of servers, or of those of a role over it, as YAML. */ -}}
{{- define "sluice.of" -}}
{{- $of := deepCopy .root.Values.server -}}
{{- if .role -}}
  {{- include "sluice.merge" (dict "into" $of "from" (deepCopy (get .root.Values .role))) -}}
{{- end -}}
{{- toYaml $of -}}
{{- end -}}

{{- /* Prints the routers of base/router. */ -}}
{{- define "sluice.routers" -}}
{{- $root := .root -}}
{{- range $file := list "account" "service" "disruption" "network" -}}
  {{- range splitList "\n---\n" ($root.Files.Get (printf "base/router/%s.yaml" $file)) -}}
    {{- $object := fromYaml . -}}
    {{- include "sluice.adjust" (dict "root" $root "object" $object) -}}
    {{- if not $object.dropped -}}{{- include "sluice.print" (dict "root" $root "object" $object) -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- $settings := include "sluice.routerSettings" $root -}}
{{- $object := fromYaml ($root.Files.Get "base/router/deployment.yaml") -}}
{{- if .patch -}}{{- include "sluice.patch" (dict "root" $root "into" $object "path" .patch) -}}{{- end -}}
{{- include "sluice.place" (dict "template" $object.spec.template "of" $root.Values.router) -}}
{{- include "sluice.merge" (dict "into" $object "from" $root.Values.router.patch) -}}
{{- include "sluice.print" (dict "root" $root "object" $object "settings" $settings) -}}
{{- include "sluice.configMap" (dict "root" $root "name" "sluice-router" "data" $settings) -}}
{{- end -}}
