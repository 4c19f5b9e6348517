#!/usr/bin/env bash
# Runs the whole runtime (pools, queues, workers, spawner) under shuttle: random schedules, sequentially consistent. A thread,
# pool or runtime that is left behind is a deadlock. CMWQ_ITERATIONS (400) schedules a test, about half a minute after the
# build; five minutes at most. A failure prints a seed: SHUTTLE_RANDOM_SEED=SEED CMWQ_ITERATIONS=1 ci/shuttle.sh TEST repeats it.
#
#   ci/shuttle.sh [TEST FILTER]
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTFLAGS="--cfg shuttle ${RUSTFLAGS:-}"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/shuttle"
export CMWQ_ITERATIONS="${CMWQ_ITERATIONS:-400}"
cargo test -p cmwq --lib --no-run
SHUTTLE_SILENCE_WARNINGS=1 timeout 300 cargo test -p cmwq --lib "${1:-shuttle_}"
