#!/usr/bin/env bash
# The address sanitizer (with leak detection) over the tests of the runtime (nightly). Forked children and tests that end their
# process on purpose are left out.
#
#   ci/asan.sh [TEST BINARY...]        CMWQ_SOAK_SECONDS (10), CMWQ_SEED
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/sanitizer.sh
export ASAN_OPTIONS="detect_stack_use_after_return=1 ${ASAN_OPTIONS:-}"
export CMWQ_SOAK_SECONDS="${CMWQ_SOAK_SECONDS:-10}"
tests=("$@")
if [ ${#tests[@]} -eq 0 ]; then
    tests=(soak asynchronous attributes cancelling delayed disabling draining freezing limits ordered panics queueing scope seeded
        system_queues waiting)
fi
sanitized address "--cfg asan" "--skip a_long_chain_of_joins --skip nasty --skip a_waker_that_panics" "${tests[@]}"
