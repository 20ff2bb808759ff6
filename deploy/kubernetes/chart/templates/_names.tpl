{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* What takes the place of `sluice` in the names of objects, so that a namespace may have several
       releases: the release's name, with the chart's where it does not have that in it. */ -}}
{{- define "sluice.fullname" -}}
{{- $name := .Values.fullnameOverride | default .Release.Name -}}
{{- if not (or .Values.fullnameOverride (contains "sluice" $name)) -}}{{- $name = printf "%s-sluice" $name -}}{{- end -}}
{{- $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- /* A name of the files as this release's. */ -}}
{{- define "sluice.renamed" -}}
{{- regexReplaceAll "^sluice" .name (include "sluice.fullname" .root) -}}
{{- end -}}

{{- /* Renames `key` of each dict in the list `in`. */ -}}
{{- define "sluice.renameAll" -}}
{{- $root := .root -}}
{{- $key := .key -}}
{{- range .in -}}
  {{- if and . (get . $key) -}}{{- $_ := set . $key (include "sluice.renamed" (dict "root" $root "name" (get . $key))) -}}{{- end -}}
{{- end -}}
{{- end -}}

{{- /* A Secret, which is made by hand, under the name that values give it. */ -}}
{{- define "sluice.secret" -}}
{{- $secrets := dict "sluice-api-keys" "apiKeys" "sluice-worker-secret" "worker" "sluice-hub" "hub" -}}
{{- get .root.Values.secrets (get $secrets .name) -}}
{{- end -}}

{{- /* Renames what a pod's spec names. */ -}}
{{- define "sluice.renamePod" -}}
{{- $root := .root -}}
{{- $full := include "sluice.fullname" $root -}}
{{- include "sluice.renameAll" (dict "root" $root "key" "serviceAccountName" "in" (list .spec)) -}}
{{- range .spec.volumes -}}
  {{- include "sluice.renameAll" (dict "root" $root "key" "name" "in" (list .configMap)) -}}
  {{- if .secret -}}
    {{- $_ := set .secret "secretName" (include "sluice.secret" (dict "root" $root "name" .secret.secretName)) -}}
  {{- end -}}
  {{- if .persistentVolumeClaim -}}
    {{- $claim := include "sluice.renamed" (dict "root" $root "name" .persistentVolumeClaim.claimName) -}}
    {{- $_ := set .persistentVolumeClaim "claimName" ($root.Values.model.existingClaim | default $claim) -}}
  {{- end -}}
{{- end -}}
{{- range concat (.spec.initContainers | default list) .spec.containers -}}
  {{- range .envFrom -}}
    {{- include "sluice.renameAll" (dict "root" $root "key" "name" "in" (list .configMapRef)) -}}
    {{- if .secretRef -}}
      {{- $_ := set .secretRef "name" (include "sluice.secret" (dict "root" $root "name" .secretRef.name)) -}}
    {{- end -}}
  {{- end -}}
  {{- range .env -}}
    {{- if eq .name "SLUICE_WORKERS" -}}{{- $_ := set . "value" (replace "/sluice-" (printf "/%s-" $full) .value) -}}{{- end -}}
    {{- with dig "valueFrom" "secretKeyRef" dict . -}}
      {{- if .name -}}{{- $_ := set . "name" (include "sluice.secret" (dict "root" $root "name" .name)) -}}{{- end -}}
    {{- end -}}
  {{- end -}}
  {{- $args := list -}}
  {{- range .args -}}{{- $args = append $args (regexReplaceAll "^--pool-name=sluice$" . (printf "--pool-name=%s" $full)) -}}{{- end -}}
  {{- if $args -}}{{- $_ := set . "args" $args -}}{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Renames an object and what it names besides pods. */ -}}
{{- define "sluice.rename" -}}
{{- $object := .object -}}
{{- $spec := $object.spec | default dict -}}
{{- $named := list $object.metadata $object.roleRef $spec.scaleTargetRef $spec.endpointPickerRef -}}
{{- range $spec.rules -}}{{- $named = concat $named (.backendRefs | default list) -}}{{- end -}}
{{- include "sluice.renameAll" (dict "root" .root "key" "name" "in" (concat $named ($object.subjects | default list))) -}}
{{- $space := .root.Release.Namespace -}}
{{- $pods := printf "{namespace=%q,pod=~\"%s-" $space (include "sluice.fullname" .root) -}}
{{- if eq $object.kind "ScaledObject" -}}
  {{- range $spec.triggers -}}
    {{- $_ := set .metadata "query" (replace "{pod=~\"sluice-" $pods .metadata.query) -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{- /* Tells this release's pods from others': a label on what an object makes and selects, and on the
       peers of its policies but for clients, who may be anybody. */ -}}
{{- define "sluice.ofThisRelease" -}}
{{- $instance := dict "app.kubernetes.io/instance" .root.Release.Name -}}
{{- range .selectors -}}
  {{- if . -}}{{- $_ := merge . $instance -}}{{- end -}}
{{- end -}}
{{- $spec := .object.spec | default dict -}}
{{- range concat ($spec.ingress | default list) ($spec.egress | default list) -}}
  {{- range concat (.from | default list) (.to | default list) -}}
    {{- $pods := .podSelector -}}
    {{- if $pods -}}
      {{- $_ := set $pods "matchLabels" (merge ($pods.matchLabels | default dict) $instance) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}
