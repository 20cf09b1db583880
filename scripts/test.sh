#!/usr/bin/env bash
# Runs the tests with everything they need, and closes with the total of all their binaries.
# Arguments go to `cargo test`, for example: scripts/test.sh --test it gateway
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/tools.sh build
# Whoever brings a program of their own names it in these variables, and nothing is installed.
WARMPATH_ENVOY="${WARMPATH_ENVOY:-$(scripts/tools.sh envoy)}"
WARMPATH_PROMTOOL="${WARMPATH_PROMTOOL:-$(scripts/tools.sh promtool)}"
WARMPATH_HELM="${WARMPATH_HELM:-$(scripts/tools.sh helm)}"
WARMPATH_CRDS="${WARMPATH_CRDS:-$(scripts/tools.sh crds)}"
WARMPATH_CHROMIUM="${WARMPATH_CHROMIUM:-$(scripts/tools.sh chromium)}"
KUBEBUILDER_ASSETS="$(scripts/tools.sh kubernetes)"
export WARMPATH_ENVOY WARMPATH_PROMTOOL WARMPATH_HELM WARMPATH_CRDS WARMPATH_CHROMIUM KUBEBUILDER_ASSETS
# Recorded data of real engines and tokenizers lies beside the clone where the project is developed.
# Tests that read it say so when it is absent.
if [ -z "${WARMPATH_SHARED:-}" ] && [ -d ../shared/data ]; then
    WARMPATH_SHARED="$(cd ../shared && pwd)"
    export WARMPATH_SHARED
fi

if [ -n "${WARMPATH_SHARED:-}" ]; then scripts/tools.sh zstd >/dev/null; fi

# One binary's totals say little where there are several: passes everything on and adds them up.
total() {
    awk '
        { print; fflush() }
        /^test result:/ { for (i = 2; i <= NF; i++) { if ($i ~ /^passed/) passed += $(i - 1); if ($i ~ /^failed/) failed += $(i - 1) } }
        END { printf "\n%d passed, %d failed\n", passed, failed }'
}
cargo test --no-fail-fast "$@" | total
