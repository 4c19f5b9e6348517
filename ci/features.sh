#!/usr/bin/env bash
# Tests of features that the workspace's own members do not switch on.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo test -p cmwq --features control,tracing --test tracing --test snapshot "$@"
