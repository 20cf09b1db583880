#!/usr/bin/env bash
# The study of docs/policies.md, by one command: scripts/study.sh [quick|full] [flags of `warmpath study`...]
#
# The traces are not part of this repository. WARMPATH_SHARED names the folder that has them under data/traces; without
# it only the generated loads are run, and the tables are printed instead of written into the document.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

extent="${1:-quick}"
shift || true
flags=()
if [[ -n "${WARMPATH_SHARED:-}" ]]; then
    packed="$WARMPATH_SHARED/data/traces"
    traces="$(mktemp -d)"
    trap 'rm -rf "$traces"' EXIT
    cp "$packed"/mooncake/*.jsonl "$traces"
    mkdir -p "$traces/claude-code" "$traces/agents"
    tar --extract --zstd --file "$packed/claude-code-weka/traces-710.tar.zst" --directory "$traces/claude-code"
    tar --extract --zstd --file "$packed/lmcache-agent/miniswe.tar.zst" --directory "$traces/agents"
    flags+=(--traces "$traces" --write docs/policies.md)
else
    echo "study: WARMPATH_SHARED is not set: generated loads only, tables on standard output" >&2
fi
cargo build --profile quick --bin warmpath
"${CARGO_TARGET_DIR:-target}/quick/warmpath" study "$extent" "${flags[@]}" "$@"
