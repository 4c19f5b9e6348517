#!/usr/bin/env bash
# Clippy over the workspace with all features, and over the library without any, warnings denied. The lint
# `incompatible_msrv` checks every std API against `rust-version`; where the toolchain of that version is installed, the
# workspace is checked with it too.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo clippy --workspace --all-targets --all-features -- -D warnings
cargo clippy -p cmwq -p cmwq-control -- -D warnings
msrv=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
if rustup toolchain list 2>/dev/null | grep -q "^$msrv"; then
    cargo "+$msrv" check --workspace --all-features
else
    echo "skipped: toolchain $msrv is not installed; MSRV checked by clippy::incompatible_msrv only"
fi
