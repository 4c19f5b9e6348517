#!/usr/bin/env bash
# The thread sanitizer over the soak and the tests of the runtime (nightly). The standard library comes compiled without
# instrumentation, so `--cfg tsan` gives the library a mutex of its own that the sanitizer sees through, and what remains of the
# standard library's own (reference counts end with a fence, which the sanitizer does not know) is suppressed in ci/tsan.supp.
# Tests that need the standard library's locks or scoped threads are left out.
#
#   ci/tsan.sh [TEST BINARY...]        CMWQ_SOAK_SECONDS (20), CMWQ_SEED
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/sanitizer.sh
export TSAN_OPTIONS="halt_on_error=0 suppressions=$PWD/ci/tsan.supp ${TSAN_OPTIONS:-}"
export CMWQ_SOAK_SECONDS="${CMWQ_SOAK_SECONDS:-20}"
tests=("$@")
[ ${#tests[@]} -gt 0 ] || tests=(soak cancelling delayed asynchronous)
sanitized thread "--cfg tsan" "" "${tests[@]}"
