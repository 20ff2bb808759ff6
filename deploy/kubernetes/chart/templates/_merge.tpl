{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* Merges the dict `from` into the dict `into`, as kustomize merges a patch: null removes a key,
       lists whose items have names are merged by them, the patch's items first, `$patch: replace`
       among them drops what was there and `$patch: delete` the item of that name. */ -}}
{{- define "sluice.merge" -}}
{{- $into := .into -}}
{{- range $key, $value := .from -}}
  {{- $old := get $into $key -}}
  {{- if kindIs "invalid" $value -}}
    {{- $_ := unset $into $key -}}
  {{- else if and (kindIs "map" $value) (kindIs "map" $old) -}}
    {{- include "sluice.merge" (dict "into" $old "from" $value) -}}
  {{- else if and (kindIs "slice" $value) (kindIs "slice" $old) -}}
    {{- include "sluice.mergeList" (dict "into" $into "key" $key "from" $value) -}}
  {{- else -}}
    {{- $_ := set $into $key $value -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{- define "sluice.mergeList" -}}
{{- $old := get .into .key -}}
{{- $merged := list -}}
{{- $patched := list -}}
{{- $named := and .from (kindIs "map" (first .from)) (or (hasKey (first .from) "name") (hasKey (first .from) "$patch")) -}}
{{- if not $named -}}
  {{- $_ := set .into .key .from -}}
{{- else -}}
  {{- range $item := .from -}}
    {{- $name := get $item "name" -}}
    {{- $patch := get $item "$patch" -}}
    {{- if eq (toString $patch) "replace" -}}
      {{- $old = list -}}
    {{- else -}}
      {{- $patched = append $patched $name -}}
      {{- $result := $item -}}
      {{- range $existing := $old -}}
        {{- if eq (get $existing "name") $name -}}
          {{- include "sluice.merge" (dict "into" $existing "from" (omit $item "$patch")) -}}
          {{- $result = $existing -}}
        {{- end -}}
      {{- end -}}
      {{- if ne (toString $patch) "delete" -}}{{- $merged = append $merged $result -}}{{- end -}}
    {{- end -}}
  {{- end -}}
  {{- range $existing := $old -}}
    {{- if not (has (get $existing "name") $patched) -}}{{- $merged = append $merged $existing -}}{{- end -}}
  {{- end -}}
  {{- $_ := set .into .key $merged -}}
{{- end -}}
{{- end -}}

{{- /* Merges the file `path` into the object `into`. */ -}}
{{- define "sluice.patch" -}}
{{- include "sluice.merge" (dict "into" .into "from" (fromYaml (.root.Files.Get .path))) -}}
{{- end -}}
