#!/usr/bin/env bash
# Fuzzes the readers of what comes from outside, one target after the other.
#
#   scripts/fuzz.sh [TARGET...]        all of them by default: event_batch metrics_page exchange request
#
# FUZZ_SECONDS (60) is the time for each. Corpora are kept in fuzz/corpus; where WARMPATH_SHARED names the shared data
# they begin with real events, pages and bodies, else with the recordings that the repository carries.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

targets=("$@")
[ "${#targets[@]}" -gt 0 ] || targets=(event_batch metrics_page exchange request)
seconds="${FUZZ_SECONDS:-60}"

cargo_fuzz="$(scripts/tools.sh cargo-fuzz)"
python3 scripts/fuzz_seeds.py fuzz/corpus
for target in "${targets[@]}"; do
    printf '\n=== fuzz %s: %d s\n' "$target" "$seconds"
    # No sanitizer: our code has no `unsafe`, and panics, overflows and hangs show without one.
    PATH="$(dirname "$cargo_fuzz"):$PATH" cargo +nightly fuzz run --sanitizer none "$target" "fuzz/corpus/$target" -- \
        -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1
done
printf '\nfuzzed %d targets for %d s each: nothing found\n' "${#targets[@]}" "$seconds"
