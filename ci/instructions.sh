#!/usr/bin/env bash
# Instructions an empty item, queued from one outside thread and run, by pool: where the clock is too noisy, these are not.
# The difference of two runs of different length under callgrind, so that starting up cancels; the least of five such differences: how
# threads take turns under callgrind decides how many items gather for one lock, and only ever adds (1800 to 3950 seen for one build).
#
#   ci/instructions.sh [POOL...] [--limit POOL=N]...
#
# Without pools: the bare channel and the peers that it takes little time to run. A pool above its --limit fails the script.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v valgrind >/dev/null; then
    echo "skipped: valgrind is not installed"
    exit 0
fi

pools=() limits=()
while [ $# -gt 0 ]; do
    case "$1" in
        --limit) limits+=("${2:?--limit needs POOL=N}"); shift 2 ;;
        -*) echo "instructions.sh: unknown option $1" >&2; exit 2 ;;
        *) pools+=("$1"); shift ;;
    esac
done
for limit in "${limits[@]}"; do
    [[ $limit =~ ^[a-z0-9_-]+=[0-9]+$ ]] || { echo "instructions.sh: --limit $limit: expected POOL=N" >&2; exit 2; }
done

cargo build --release -p bench >&2
bench=${CARGO_TARGET_DIR:-target}/release/bench
if [ ${#pools[@]} -eq 0 ]; then
    pools=(cmwq cmwq-nostats crossbeam std-mpsc threadpool rusty_pool rayon tokio tokio-blocking-2 async-executor)
fi

log=$(mktemp) few=2000 many=12000
trap 'rm -f "$log"' EXIT

# The number that callgrind collected while POOL ran N items.
collected() {
    if ! valgrind --tool=callgrind --callgrind-out-file=/dev/null --fair-sched=yes "$bench" one "$1" ext "$2" >/dev/null 2>"$log"; then
        echo "instructions.sh: $1 failed under callgrind:" >&2
        tail -n 5 "$log" >&2
        return 1
    fi
    sed -n 's/.*Collected : *\([0-9]*\).*/\1/p' "$log"
}

status=0
printf '%-18s %12s  %s\n' pool instr/item 'of five'
for pool in "${pools[@]}"; do
    runs=()
    for _ in 1 2 3 4 5; do
        a=$(collected "$pool" "$few")
        b=$(collected "$pool" "$many")
        runs+=($(((b - a) / (many - few))))
    done
    mapfile -t sorted < <(printf '%s\n' "${runs[@]}" | sort -n)
    least=${sorted[0]}
    printf '%-18s %12s  [%s..%s]\n' "$pool" "$least" "${sorted[0]}" "${sorted[4]}"
    for limit in "${limits[@]}"; do
        if [ "${limit%%=*}" = "$pool" ] && [ "$least" -gt "${limit##*=}" ]; then
            echo "instructions.sh: $pool: $least instructions an item, the limit is ${limit##*=}" >&2
            status=1
        fi
    done
done
exit $status
