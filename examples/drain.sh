#!/usr/bin/env bash
# Shutdown of a server, as a client sees it with grpcurl: its Watch receives a BOOKMARK with `draining` and the version to resume
# from, and ends with UNAVAILABLE / DRAINING. Then the server exits with 0.
source "$(dirname "${BASH_SOURCE[0]}")/server.sh"

are_synced() { [ -n "$(messages 'select(.bookmark.initialEventsEnd)')" ]; }
names() { messages 'select(.object) | .object.name' | paste -sd' ' -; }
have_come() { [ "$(names)" = "$1" ]; }

put a Pending
serve

step "a Watch is open, and has seen everything"
watch '{"resource": "jobs"}'
eventually "the initial events" are_synced
put b Pending
eventually "the change" have_come "a b"
version="$(messages 'select(.object.name == "b") | .resourceVersion')"
is "the jobs that came" "$(names)" "a b"
echo "the last of them at $version"

step "SIGTERM"
kill -TERM "$server"
if wait "$watching"; then fail "the Watch has ended well"; fi
is "the Watch gets a BOOKMARK with draining, to go on from" \
  "$(messages 'select(.bookmark.draining) | "\(.type) \(.resourceVersion)"')" "EVENT_TYPE_BOOKMARK $version"
is "then it ends with the status" "$(status "$work/status")" "Unavailable DRAINING"
code=0
wait "$server" || code=$?
is "the server has ended with" "$code" 0

step "another server: the client comes back with its version"
serve
# The versions of a directory are the server's own. An upstream that has its own can be resumed at any replica.
resume="{\"resource\": \"jobs\", \"resource_version\": \"$version\"}"
is "of a directory it is expired" "$(refused Watch "$resume")" "OutOfRange RESOURCE_VERSION_EXPIRED"
watch '{"resource": "jobs"}'
eventually "the initial events" are_synced
is "so the client begins with what there is" "$(names)" "a b"
