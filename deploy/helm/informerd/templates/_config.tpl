{{- /* The configuration file, as a map in YAML. */ -}}
{{- define "informerd.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $_ := set $config "resources" .Values.resources -}}
{{- $loopback := eq .Values.mode "sidecar" -}}
{{- if not $config.listen }}{{ $_ := set $config "listen" ($loopback | ternary "127.0.0.1:50051" "0.0.0.0:50051") }}{{ end -}}
{{- $_ := set $config "admin" (merge ($config.admin | default dict) (dict "listen" "0.0.0.0:9464")) -}}
{{- if not $loopback -}}
{{- if .Values.tls.secret -}}
{{- $tls := dict "cert" "/etc/informerd-tls/tls.crt" "key" "/etc/informerd-tls/tls.key" -}}
{{- if .Values.tls.client_ca }}{{ $_ := set $tls "client_ca" "/etc/informerd-tls/ca.crt" }}{{ end -}}
{{- $_ := set $config "tls" $tls -}}
{{- else if not (or $config.tls (hasKey $config "insecure")) -}}
{{- $_ := set $config "insecure" true -}}
{{- end -}}
{{- end -}}
{{- if .Values.kubernetesApi.enabled -}}
{{- $address := $loopback | ternary "127.0.0.1:8001" "0.0.0.0:8001" -}}
{{- $_ := set $config "kubernetes" (merge ($config.kubernetes | default dict) (dict "listen" $address)) -}}
{{- end -}}
{{- if and .Values.snapshots.enabled (not $config.state_dir) -}}
{{- $_ := set $config "state_dir" "/var/lib/informerd/state" -}}
{{- end -}}
{{ toYaml $config }}
{{- end }}

{{- /* Port of an address such as 0.0.0.0:50051 or [::]:50051. */ -}}
{{- define "informerd.port" -}}
{{ splitList ":" . | last }}
{{- end }}

{{- /* MiB of a size as the configuration file has it, rounded up. */ -}}
{{- define "informerd.mebibytes" -}}
{{- $text := kindIs "string" . | ternary . (int64 . | toString) -}}
{{- $number := regexFind "^[0-9]+" $text | int64 -}}
{{- $unit := regexReplaceAll "^[0-9]+" $text "" -}}
{{- if has $unit (list "Ti" "TiB") }}{{ mul $number 1048576 -}}
{{- else if has $unit (list "Gi" "GiB") }}{{ mul $number 1024 -}}
{{- else if has $unit (list "Mi" "MiB") }}{{ $number -}}
{{- else if has $unit (list "Ki" "KiB") }}{{ div (add $number 1023) 1024 -}}
{{- else if not $unit }}{{ div (add $number 1048575) 1048576 -}}
{{- else }}{{ fail (printf "%s: expected a size such as 64KiB, 16MiB or 1GiB" $text) }}{{ end -}}
{{- end }}

{{- /* Seconds of a duration such as 500ms, 30s or 1m30s, rounded up. */ -}}
{{- define "informerd.seconds" -}}
{{- $total := 0 -}}
{{- range regexFindAll "[0-9]+(ms|s|m|h)" (toString .) -1 -}}
{{- $number := regexFind "^[0-9]+" . | int64 -}}
{{- $unit := regexFind "[a-z]+$" . -}}
{{- if eq $unit "ms" }}{{ $total = add $total (div (add $number 999) 1000) -}}
{{- else }}{{ $total = add $total (mul $number (get (dict "s" 1 "m" 60 "h" 3600) $unit)) }}{{ end -}}
{{- end -}}
{{ $total }}
{{- end }}

{{- /* MiB that informerd needs at most: its bounds, times their number, and what grows with objects and watches. The defaults are
those of docs/configuration.md. */ -}}
{{- define "informerd.memory" -}}
{{- $config := .Values.config -}}
{{- $history := $config.history | default dict -}}
{{- $limits := $config.limits | default dict -}}
{{- $forResource := include "informerd.mebibytes" (dig "bytes" "256MiB" $history) | int64 -}}
{{- $forResource = add $forResource (mul 2 (min 16 (div $forResource 4))) -}}
{{- $clients := required "config.limits.memory: set it, such as 128MiB: the limit of the container depends on it" $limits.memory -}}
{{- $sum := add 64 (include "informerd.mebibytes" .Values.memory.objects) -}}
{{- $sum = add $sum (div (add (mul 27 (int64 .Values.memory.watchers)) 1023) 1024) -}}
{{- $sum = add $sum (mul $forResource (len .Values.resources)) -}}
{{- $verified := false -}}
{{- range .Values.resources }}{{ if .verify_interval }}{{ $verified = true }}{{ end }}{{ end -}}
{{- if $verified }}{{ $sum = add $sum (include "informerd.mebibytes" .Values.memory.objects) }}{{ end -}}
{{- $forClients := include "informerd.mebibytes" $clients | int64 -}}
{{ add $sum $forClients (min 64 (div $forClients 4)) }}
{{- end }}

{{- define "informerd.containerResources" -}}
{{- if .Values.container.resources }}{{ toYaml .Values.container.resources }}
{{- else -}}
requests: { cpu: {{ .Values.container.cpu }}, memory: {{ add 64 (include "informerd.mebibytes" .Values.memory.objects) }}Mi }
limits: { memory: {{ include "informerd.memory" . }}Mi }
{{- end }}
{{- end }}

{{- /* Sources and reviews of the cluster that informerd runs in; those with a kubeconfig are in others. */ -}}
{{- define "informerd.roles" -}}
{{- $everywhere := dict -}}
{{- $namespaces := dict -}}
{{- range $name, $resource := .Values.resources -}}
{{- with $resource.source.kube -}}
{{- if not (or .kubeconfig .context) -}}
{{- $group := .group | default "" -}}
{{- $named := concat (.namespaces | default list) (.namespace | default "" | list | compact) -}}
{{- range $named -}}
{{- $rules := get $namespaces . | default dict -}}
{{- $_ := set $rules $group (append (get $rules $group | default list) $resource.source.kube.plural) -}}
{{- $_ := set $namespaces . $rules -}}
{{- end -}}
{{- if .namespace_selector -}}
{{- $_ := set $everywhere "" (append (get $everywhere "" | default list) "namespaces") -}}
{{- end -}}
{{- if not $named -}}
{{- $_ := set $everywhere $group (append (get $everywhere $group | default list) .plural) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $reviews := list -}}
{{- $authentication := .Values.config.authentication | default dict -}}
{{- $authorization := .Values.config.authorization | default dict -}}
{{- if hasKey $authentication "token_review" -}}
{{- $review := $authentication.token_review | default dict -}}
{{- if not $review.kubeconfig -}}
{{- $reviews = append $reviews (dict "apiGroups" (list "authentication.k8s.io") "resources" (list "tokenreviews") "verbs" (list "create")) -}}
{{- end -}}
{{- end -}}
{{- if hasKey $authorization "subject_access_review" -}}
{{- $review := $authorization.subject_access_review | default dict -}}
{{- if not $review.kubeconfig -}}
{{- $reviews = append $reviews (dict "apiGroups" (list "authorization.k8s.io") "resources" (list "subjectaccessreviews") "verbs" (list "create")) -}}
{{- end -}}
{{- end -}}
{{- $cluster := list -}}
{{- range $group := keys $everywhere | sortAlpha -}}
{{- $cluster = append $cluster (dict "apiGroups" (list $group) "resources" (get $everywhere $group | uniq | sortAlpha) "verbs" (list "list" "watch")) -}}
{{- end -}}
{{- if $everywhere -}}
{{- $cluster = append $cluster (dict "apiGroups" (list "") "resources" (list "namespaces") "resourceNames" (list "kube-system") "verbs" (list "get")) -}}
{{- end -}}
{{- $cluster = concat $cluster $reviews -}}
{{- $byNamespace := dict -}}
{{- range $namespace, $groups := $namespaces -}}
{{- $rules := list -}}
{{- range $group := keys $groups | sortAlpha -}}
{{- $plurals := list -}}
{{- range get $groups $group | uniq | sortAlpha -}}
{{- if not (has . (get $everywhere $group | default list)) }}{{ $plurals = append $plurals . }}{{ end -}}
{{- end -}}
{{- if $plurals -}}
{{- $rules = append $rules (dict "apiGroups" (list $group) "resources" $plurals "verbs" (list "list" "watch")) -}}
{{- end -}}
{{- end -}}
{{- if $rules }}{{ $_ := set $byNamespace $namespace $rules }}{{ end -}}
{{- end -}}
{{ dict "cluster" $cluster "namespaces" $byNamespace | toYaml }}
{{- end }}

{{- /* Not empty if informerd calls the API of this cluster. */ -}}
{{- define "informerd.usesApi" -}}
{{- $roles := include "informerd.roles" . | fromYaml -}}
{{- if or $roles.cluster $roles.namespaces }}true{{ end -}}
{{- end }}

{{- /* Errors of values that the schema cannot express. */ -}}
{{- define "informerd.check" -}}
{{- if not .Values.resources -}}
{{- fail "resources: there is none; add one, such as --set resources.pods.source.kube.version=v1,resources.pods.source.kube.plural=pods" -}}
{{- end -}}
{{- $listen := .Values.config.listen | default "" -}}
{{- if and (hasPrefix "unix:" $listen) (not (eq .Values.mode "sidecar")) -}}
{{- fail "config.listen: a Service needs a port; leave it out, or write IP:PORT" -}}
{{- end -}}
{{- if eq (dig "admin" "listen" "" .Values.config) "none" -}}
{{- fail "config.admin.listen: the probes need a port; leave it out, or write IP:PORT" -}}
{{- end -}}
{{- $shown := false -}}
{{- range .Values.resources }}{{ if .kubernetes }}{{ $shown = true }}{{ end }}{{ end -}}
{{- if and .Values.kubernetesApi.enabled (not $shown) -}}
{{- fail "kubernetesApi.enabled: no resource has the key `kubernetes`; add it to one, such as kubernetes: auto" -}}
{{- end -}}
{{- if eq .Values.mode "relay" -}}
{{- range $name, $resource := .Values.resources -}}
{{- if not $resource.source.informerd }}{{ fail (printf "resources.%s.source: a relay needs `informerd`, the server that it relays; or set mode: standalone" $name) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.mode "sidecar") (not .Values.application.containers) -}}
{{- fail "application.containers: there is none; in the mode sidecar the chart deploys the application, too" -}}
{{- end -}}
{{- end }}
