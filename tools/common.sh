# SPDX-License-Identifier: Apache-2.0
# What the scripts in tools share; sourced by them with bash.
# shellcheck shell=bash disable=SC2034  # they use the variables
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
jobs=${DLSIM_JOBS:-$(nproc)}
logs=$root/build/log

# Prints the head of the script $1 as its help and ends, if $2 asks for help.
show_help() {
  case $2 in
    -h | --help)
      sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$1"
      exit
      ;;
  esac
}

# Runs a command in the project's root with its output in the log file $logs/$1.log. Shows the
# end of it on failure, without the lines of tests that passed.
run_logged() {
  local log=$logs/$1.log
  shift
  mkdir -p "$logs"
  (cd "$root" && "$@") > "$log" 2>&1 < /dev/null && return
  local status=$?
  {
    printf '\nfailed: %s\n' "$*"
    grep -vE '^ *Start +[0-9]+:|^ *[0-9]+/[0-9]+ Test .* Passed |^\[[0-9]+/[0-9]+\] (Build|Link)' \
      "$log" | tail -n 100
    echo "full output: $log"
  } >&2
  return $status
}
