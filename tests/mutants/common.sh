# Common part of `run` and `drawn`: $copy, a copy of the working tree that may be changed, and the part of a list that a shard
# has.

export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/informerd/mutants}"
# Mutants are not debugged; a build without debug information is faster.
export CARGO_PROFILE_DEV_DEBUG=none
work="$CARGO_TARGET_DIR/mutants" copy="$CARGO_TARGET_DIR/mutants/tree"

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# of_shard: prints the lines of the standard input that belong to INFORMERD_MUTANTS_SHARD.
of_shard() {
  local shard="${INFORMERD_MUTANTS_SHARD:-1/1}"
  [[ "$shard" =~ ^([1-9][0-9]*)/([1-9][0-9]*)$ && ${BASH_REMATCH[1]} -le ${BASH_REMATCH[2]} ]] ||
    die "INFORMERD_MUTANTS_SHARD=$shard is no part of several: the second of five is 2/5"
  awk -v part="${BASH_REMATCH[1]}" -v parts="${BASH_REMATCH[2]}" 'NR % parts == part % parts'
}

# make_copy: creates the copy; only one run at a time can use it.
make_copy() {
  mkdir -p "$work"
  exec 9>"$work/lock"
  flock -n 9 || die "$work is in use by another run: set another CARGO_TARGET_DIR"
  rm -rf "$copy"
  mkdir "$copy"
  # With new modification times: the last run may have built a file with a bug.
  git ls-files -z --cached --others --exclude-standard |
    xargs -0 sh -c 'for file; do [ ! -e "$file" ] || printf "%s\0" "$file"; done' - |
    tar --null --files-from - --create | tar --extract --touch --directory "$copy"
}

# in_copy COMMAND...: runs a command in the copy, which is in no repository, whatever directory is above it.
in_copy() {
  (cd "$copy" && GIT_CEILING_DIRECTORIES="$work" "$@")
}
