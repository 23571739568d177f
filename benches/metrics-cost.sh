#!/bin/sh
# What observing costs, in instructions counted by callgrind: metrics, of a call in process and of a request over HTTP (at most 2 %
# each, with nobody collecting spans), and access log and request id together (at most 5 % of a request). Fails above.
# Needs valgrind. Instructions do not depend on what else the machine does, so this may run anywhere.
# PROFILE=dev CALLS=100 takes an unoptimised build and few calls, whose figures mean nothing, to see whether the script runs.
set -eu

# Cargo calls this script as its compiler for the other builds: the dependencies are those of the first.
if [ $# -gt 0 ]; then
    exec "$@" --cfg "$CALLBOARD_WITHOUT"
fi

script=$(realpath "$0")
cd "$(dirname "$script")/.."
profile=${PROFILE:-release}
calls=${CALLS:-2000}
case $profile in dev) directory=debug ;; *) directory=$profile ;; esac
built=${CARGO_TARGET_DIR:-target}/$directory/examples
command -v valgrind >/dev/null || { echo 'this needs valgrind: apt-get install valgrind' >&2; exit 2; }

build() {
    cargo build --quiet --profile "$profile" -p callboard-core --example counted
    cargo build --quiet --profile "$profile" -p callboard-http --example requests
    for example in counted requests; do cp "$built/$example" "$built/$example-$1"; done
}

collected() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$@" 2>&1 | sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}

# The difference of two runs leaves out the start and the end.
each() {
    program=$1
    shift
    echo $((($(collected "$program" $((6 * calls)) "$@") - $(collected "$program" $calls "$@")) / (5 * calls)))
}

build all
export RUSTC_WORKSPACE_WRAPPER="$script"
CALLBOARD_WITHOUT=callboard_no_metrics build without-metrics
CALLBOARD_WITHOUT=callboard_no_request_id build without-ids

status=0
report() {
    awk -v what="$1" -v with="$2" -v without="$3" -v most="$4" 'BEGIN {
        share = 100 * (with - without) / with
        printf "%s: %d instructions, %d without: %.2f %% (at most %s %%)\n", what, with, without, share, most
        exit share > most
    }' || status=1
}

report 'metrics, of a call in process' "$(each "$built/counted-all")" "$(each "$built/counted-without-metrics")" 2
request=$(each "$built/requests-all")
report 'metrics, of a request' "$request" "$(each "$built/requests-without-metrics")" 2
report 'access log and request id, of a request' "$(each "$built/requests-all" log)" "$(each "$built/requests-without-ids")" 5
exit $status
