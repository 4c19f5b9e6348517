#!/usr/bin/env bash
# Model-checks the protocols of the runtime under loom: the item's word, the task cell, batches, completions, parking,
# cancel-and-wait, the table swap. Every schedule with at most LOOM_MAX_PREEMPTIONS (3) preemptions, every value that a weak
# load may return. About half a minute of checking after the build; five minutes at most.
#
#   ci/loom.sh [TEST FILTER]
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTFLAGS="--cfg loom ${RUSTFLAGS:-}"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom"
export LOOM_MAX_PREEMPTIONS="${LOOM_MAX_PREEMPTIONS:-3}"
cargo test -p cmwq --lib --no-run
timeout 300 cargo test -p cmwq --lib "${1:-loom_}"
