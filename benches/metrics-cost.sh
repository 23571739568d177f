#!/bin/sh
# What metrics cost: the instructions of a call with and without them, counted by callgrind. Fails above 2 %.
# Needs valgrind. Instructions do not depend on what else the machine does, so this may run anywhere.
set -eu

# Cargo calls this script as its compiler for the second build: the dependencies are those of the first.
if [ $# -gt 0 ]; then
    exec "$@" --cfg callboard_no_metrics
fi

script=$(realpath "$0")
cd "$(dirname "$script")/.."
built=${CARGO_TARGET_DIR:-target}/release/examples/calls

collected() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$1" "$2" 2>&1 | sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}

# The difference of two runs leaves out the start and the end.
per_call() {
    echo $((($(collected "$1" 12000) - $(collected "$1" 2000)) / 10000))
}

cargo build --quiet --release -p callboard-core --example calls
cp "$built" "$built-with-metrics"
RUSTC_WORKSPACE_WRAPPER=$script cargo build --quiet --release -p callboard-core --example calls
cp "$built" "$built-without-metrics"

with=$(per_call "$built-with-metrics")
without=$(per_call "$built-without-metrics")
awk -v with="$with" -v without="$without" 'BEGIN {
    share = 100 * (with - without) / with
    printf "%d instructions per call, %d without metrics: metrics are %.2f %%\n", with, without, share
    exit share > 2
}'
