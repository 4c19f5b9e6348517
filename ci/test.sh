#!/usr/bin/env bash
# The test suite, as the README's test command runs it.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo test --workspace "$@"
