#!/usr/bin/env bash
# The documentation builds without a warning.
set -euo pipefail
cd "$(dirname "$0")/.."
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --all-features --lib --keep-going
