# What asan.sh and tsan.sh share; they source it. Tests run with the nightly toolchain, compiled for a sanitizer.
#
#   sanitized NAME "FLAGS" "ARGUMENTS OF THE TESTS" TEST...
sanitized() {
    local name=$1 flags=$2 arguments=$3
    shift 3
    if ! cargo +nightly --version >/dev/null 2>&1; then
        echo "skipped: no nightly toolchain"
        return 0
    fi
    local host args=()
    host=$(rustc -vV | sed -n 's/^host: //p')
    for t in "$@"; do args+=(--test "$t"); done
    export RUSTFLAGS="-Zsanitizer=$name -Cunsafe-allow-abi-mismatch=sanitizer $flags"
    export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/$name"
    cargo +nightly test -p cmwq --target "$host" "${args[@]}" --no-run
    # shellcheck disable=SC2086
    RUST_BACKTRACE=0 timeout 300 cargo +nightly test -p cmwq --target "$host" "${args[@]}" -- $arguments
}
