#!/usr/bin/env bash
# Formatting and the house rules that a script can see. Runs by hand from anywhere in the checkout.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo fmt --all --check
python3 ci/house_rules.py
