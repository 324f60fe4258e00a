#!/usr/bin/env bash
# List in pages, with grpcurl, while the resource changes: every page is of the snapshot of the first one, and a Watch from its
# version brings exactly what has changed since.
source "$(dirname "${BASH_SOURCE[0]}")/server.sh"

# list [SIZE [TOKEN]]: a page of the jobs, or all; what came is then in $found, $version and $token.
list() {
  local answer
  answer="$(call List "{\"resource\": \"jobs\", \"page_size\": ${1:-0}, \"page_token\": \"${2:-}\"}")"
  found="$(jq -r '[.objects[] | "\(.name) \(.struct.status.phase)"] | join(", ")' <<<"$answer")"
  version="$(jq -r .resourceVersion <<<"$answer")"
  token="$(jq -r '.nextPageToken // "none"' <<<"$answer")"
}

for name in a b c d e; do put "$name" Pending; done
serve

step "the first page of two jobs"
list 2
is "there are" "$found" "a Pending, b Pending"
first="$version"
echo "at the version $first"

step "meanwhile c is deleted, bb is created, and d is done"
{
  rm "$jobs/c.json"
  has_no c
  put bb Pending
  has bb Pending
  put d Done
  has d Done
} >/dev/null
next="$token"
list
is "a new list" "$found" "a Pending, b Pending, bb Pending, d Done, e Pending"

step "the other pages are of the first one's snapshot"
list 2 "$next"
is "the second" "$found" "c Pending, d Pending"
is "at the version" "$version" "$first"
list 2 "$token"
is "the third" "$found" "e Pending"
is "at the version" "$version" "$first"
is "a token for a further page" "$token" none

step "a Watch from that version brings what has changed, without gap or overlap"
watch "{\"resource\": \"jobs\", \"resource_version\": \"$first\"}"
changes() { messages 'select(.object) | "\(.type) \(.object.name)"' | paste -sd' ' -; }
has_come() { [[ "$(changes)" = *d ]]; }
eventually "the last change" has_come
is "the changes" "$(changes)" "EVENT_TYPE_DELETED c EVENT_TYPE_ADDED bb EVENT_TYPE_MODIFIED d"
