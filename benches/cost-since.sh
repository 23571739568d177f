#!/bin/sh
# What this tree costs in instructions beside an earlier commit, counted by callgrind: a call in process, a request over HTTP, one with
# a mebibyte of numbers there and back, a call over QUIC with 100 bytes and one with a mebibyte. Fails where one costs over 3 % more.
# Needs valgrind, and the name of the commit. Instructions do not depend on what else the machine does, so this may run anywhere;
# those over QUIC differ by a percent or two from run to run, because threads meet by chance.
set -eu

since=${1:?usage: benches/cost-since.sh COMMIT}
cd "$(dirname "$(realpath "$0")")/.."
command -v valgrind >/dev/null || { echo 'this needs valgrind: apt-get install valgrind' >&2; exit 2; }
now=$PWD
before=$(mktemp -d)
trap 'git worktree remove --force "$before"' EXIT
git worktree add --quiet --detach "$before" "$since"
built=${CARGO_TARGET_DIR:-$now/target}/cost

# The programs are those of this tree on both sides. Each side has a target directory of its own: in a shared one, cargo
# takes the crates of one side for those of the other.
for program in core/examples/counted.rs http/examples/requests.rs net/examples/hops.rs; do
    mkdir -p "$before/crates/$(dirname $program)"
    cp "crates/$program" "$before/crates/$program"
done

build() {
    cd "$2"
    for program in core:counted http:requests net:hops; do
        CARGO_TARGET_DIR=$built/$1 cargo build --quiet --release -p "callboard-${program%:*}" --example "${program#*:}"
        cp "$built/$1/release/examples/${program#*:}" "$built/${program#*:}-$1"
    done
    cd "$now"
}

collected() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$@" 2>&1 | sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}

# The difference of two runs leaves out the start and the end.
each() {
    program=$1 calls=$2
    shift 2
    echo $((($(collected "$program" $((6 * calls)) "$@") - $(collected "$program" "$calls" "$@")) / (5 * calls)))
}

build before "$before"
build now "$now"
status=0
report() {
    what=$1 program=$2
    shift 2
    awk -v what="$what" -v now="$(each "$built/$program-now" "$@")" -v before="$(each "$built/$program-before" "$@")" 'BEGIN {
        printf "%s: %d instructions, %d before: %+.2f %%\n", what, now, before, 100 * (now - before) / before
        exit now > 1.03 * before
    }' || status=1
}

report 'a call in process' counted 2000
report 'a request over HTTP' requests 2000
report 'a mebibyte of numbers over HTTP' requests 40 tensor
report 'a call over QUIC' hops 1000
report 'a mebibyte over QUIC' hops 40 1048576
exit $status
