# What the scripts beside this file share: a server of a directory of jobs on a free port, calls to it, and checks.
#
# Needs informerd, grpcurl and jq on the PATH; INFORMERD and GRPCURL can name the first two. To be sourced by bash.
set -euo pipefail

informerd="${INFORMERD:-informerd}"
grpcurl="${GRPCURL:-grpcurl}"
for each in "$informerd" "$grpcurl" jq; do
  command -v "$each" >/dev/null || { echo "error: $each is not on the PATH" >&2; exit 1; }
done
# Nothing of the caller's shell may change what the flags say.
unset -v "${!INFORMERD@}" RUST_LOG

MAX_SECONDS=20

work="$(mktemp -d)"
jobs="$work/jobs"
log="$work/server.log"
mkdir "$jobs"
server=

tidy_up() {
  # shellcheck disable=SC2046 # one word for each process
  kill $(jobs -p) 2>/dev/null || true
  wait
  rm -rf "$work"
}
trap tidy_up EXIT

step() { printf '\n== %s\n' "$*"; }

fail() {
  printf 'FAILED  %s\nthe server said:\n' "$*" >&2
  tail -n 20 "$log" >&2
  exit 1
}

# is WHAT FOUND WANTED: checks what came.
is() {
  [ "$2" = "$3" ] || fail "$1
  wanted: $3
  found:  $2"
  printf 'ok  %s: %s\n' "$1" "$2"
}

# eventually WHAT COMMAND...: waits until the command succeeds.
eventually() {
  local what="$1" deadline=$((SECONDS + MAX_SECONDS))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$deadline" ] || fail "not within $MAX_SECONDS s: $what"
    sleep 0.05
  done
}

# serve: starts a server of the directory, in the background.
serve() {
  : >"$log"
  "$informerd" serve --listen 127.0.0.1:0 --admin-listen none --files "jobs=$jobs" 2>"$log" &
  server=$!
  eventually "the server listens" is_listening
  [ -n "$address" ] || fail "the server has ended"
  printf 'serving %s on %s\n' "$jobs" "$address"
}

# Or has ended.
is_listening() {
  address="$(sed -n 's/.*grpc listening.*address=\(127\.0\.0\.1:[0-9]*\).*/\1/p' "$log")"
  [ -n "$address" ] || ! kill -0 "$server" 2>/dev/null
}

# call METHOD REQUEST [FLAG...]: the answer of the server, as grpcurl prints it.
call() {
  local method="$1" request="$2"
  shift 2
  "$grpcurl" -plaintext -max-time "$MAX_SECONDS" "$@" -d "$request" "$address" "informerd.v1.InformerService/$method"
}

# refused METHOD REQUEST [FLAG...]: the code of the status and its reason, of a call that is not answered well.
refused() {
  if call "$@" >/dev/null 2>"$work/refused"; then fail "$1 $2 was answered"; fi
  status "$work/refused"
}

# status FILE: the code and the reason of the status that grpcurl has printed there.
status() { sed -n 's/^ *Code: *//p; s/^[[:space:]]*"reason": "\(.*\)",*$/\1/p' "$1" | paste -sd' ' -; }

# put NAME PHASE: writes a job as an editor does: to another file, which is renamed.
put() {
  jq --null-input --arg name "$1" --arg phase "$2" \
    '{apiVersion: "batch/v1", kind: "Job", metadata: {namespace: "shop", name: $name}, status: {phase: $phase}}' \
    >"$jobs/.draft"
  mv "$jobs/.draft" "$jobs/$1.json"
}

# has NAME PHASE: waits until the server has a job in this phase.
has() { met "$1" "object.status.phase == \"$2\""; }

# has_no NAME: waits until the server has no job of this name.
has_no() { met "$1" 'count == 0'; }

# met NAME CONDITION...: waits until each has been true of the job, one after the other; prints the event that met the last.
met() {
  local name="$1"
  shift
  call Until "$(jq --null-input --arg name "$name" \
    '{watch: {resource: "jobs", $name}, conditions: $ARGS.positional}' --args "$@")"
}

# is_watched TIMES: whether so many calls of Watch and Until are open.
is_watched() { [ "$(call ListResources '{}' | jq -r '.resources[0].watchers // "0"')" = "$1" ]; }

# watch REQUEST: opens a Watch in the background.
watch() {
  : >"$work/watch"
  call Watch "$1" >"$work/watch" 2>"$work/status" &
  watching=$!
}

# messages FILTER: what jq makes of the messages that have come so far. (The last one may not be whole yet.)
messages() { jq --raw-output "$1" "$work/watch" 2>/dev/null || true; }
