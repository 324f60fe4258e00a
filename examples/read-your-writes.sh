#!/usr/bin/env bash
# Read your writes, with grpcurl: a client that has written to the source reads with `min_resource_version`, and gets a state that
# has the write, however far behind the cache was when the call came.
#
# In a directory each change of an object is the next version: <lineage>.<n+1>. Where the upstream itself answers a write with
# its version (Kubernetes, etcd), that is the one to read with.
source "$(dirname "${BASH_SOURCE[0]}")/server.sh"

# read_phase [VERSION]: the phase of the job, not before this version.
read_phase() {
  call Get "{\"resource\": \"jobs\", \"namespace\": \"shop\", \"name\": \"import\", \"min_resource_version\": \"${1:-}\"}" |
    jq -r .object.struct.status.phase
}

put import phase-0
serve
version="$(call List '{"resource": "jobs"}' | jq -r .resourceVersion)"
lineage="${version%.*}" number="${version##*.}"
echo "the cache is at $version"

step "a read that comes before the write waits for it"
read_phase "$lineage.$((number + 1))" >"$work/phase" &
reading=$!
put import phase-1
wait "$reading" || fail "Get ended with $?"
is "it is answered with what was written" "$(cat "$work/phase")" phase-1

step "each of 20 writes is read at once"
behind=0
for write in $(seq 2 21); do
  put import "phase-$write"
  [ "$(read_phase)" = "phase-$write" ] || behind=$((behind + 1))
  found="$(read_phase "$lineage.$((number + write))")"
  [ "$found" = "phase-$write" ] || fail "write $write was not read, but $found"
done
echo "ok  20 reads with min_resource_version had the write"
echo "    ($behind of 20 reads without it came too early)"

step "what is not reached in time is told so"
future="{\"resource\": \"jobs\", \"min_resource_version\": \"$lineage.$((number + 1000))\"}"
is "a read of the far future" "$(refused List "$future" -max-time 1)" "Unavailable RESOURCE_VERSION_TOO_LARGE"
