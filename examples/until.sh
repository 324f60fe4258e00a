#!/usr/bin/env bash
# Until, with grpcurl: a call waits at the server until a job is there, until it is gone, and until it has been through
# several states in turn. The client does not poll.
source "$(dirname "${BASH_SOURCE[0]}")/server.sh"

# wait_for CONDITION...: waits for the job in the background.
wait_for() {
  eventually "nobody else waits" is_watched 0
  printf 'Until %s\n' "$@"
  met import "$@" >"$work/until" &
  waiting=$!
  eventually "it waits" is_watched 1
}

# ends: waits for the answer; what has happened is then in $event.
ends() {
  wait "$waiting" || fail "Until ended with $?"
  event="$(jq -r '.event | "\(.type) \(.object.name) \(.object.struct.status.phase)"' "$work/until")"
}

# becomes PHASE: changes the job, and waits until the server has it so.
becomes() {
  put import "$1"
  has import "$1" >/dev/null
  echo "the job is $1"
}

serve

step "presence: there is no job yet, and the call waits for one that runs"
wait_for 'object.status.phase == "Running"'
becomes Pending
becomes Running
ends
is "the event that it waited for" "$event" "EVENT_TYPE_MODIFIED import Running"

step "absence: the call waits until the job is gone"
wait_for 'count == 0'
rm "$jobs/import.json"
ends
is "the event that it waited for" "$event" "EVENT_TYPE_DELETED import Running"
is "now it would not wait; initialEventsEnd" "$(has_no import | jq .event.bookmark.initialEventsEnd)" true

step "a sequence: each condition is waited for when the one before it has been met"
wait_for 'object.status.phase == "Pending"' 'object.status.phase == "Running"' 'type == "DELETED"'
for phase in Running Pending Paused Running; do becomes "$phase"; done
rm "$jobs/import.json"
ends
is "the event that met the last" "$event" "EVENT_TYPE_DELETED import Running"
