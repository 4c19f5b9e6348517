#!/usr/bin/env bash
# Fault runs of the policy in the simulator: a fresh few thousand seeds, or as many as asked for.
#
#   ci/sim.sh            2000 seeds that nobody ran before (from the clock), under three minutes on two cores
#   ci/sim.sh 1000000    a million
#   SEED=123 ci/sim.sh 1 one of them again
#
# A violation prints a short command that replays it, and the script how to run the same seeds again.
set -euo pipefail
cd "$(dirname "$0")/.."
n=${1:-2000}
seed=${SEED:-$(date +%s%N)}
cargo build --quiet --release -p cmwq-sim --example faults
"${CARGO_TARGET_DIR:-target}/release/examples/faults" "$seed" "$n" "$(nproc)" || {
    echo "the same seeds again: SEED=$seed ci/sim.sh $n" >&2
    exit 1
}
