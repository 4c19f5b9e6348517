#!/usr/bin/env bash
# Miri over the policy's unit tests and the runtime's pure parts, where the nightly toolchain has the component. System calls
# that Miri does not know keep the rest of the runtime out; loom, shuttle and the sanitizers cover that.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! cargo +nightly miri --version >/dev/null 2>&1; then
    echo "skipped: the nightly toolchain has no miri component"
    exit 0
fi
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/miri"
export PROPTEST_CASES="${PROPTEST_CASES:-4}" MIRIFLAGS="-Zmiri-disable-isolation ${MIRIFLAGS:-}"
timeout 300 cargo +nightly miri test -p cmwq-policy --lib
