#!/usr/bin/env bash
# Measures the figures of docs/performance.md and prints them as a markdown table, for README.md too.
#
# usage: scripts/figures.sh [ROUNDS] [SECONDS]
#
# Every scenario runs ROUNDS times (default 3) for SECONDS (default 8), in turns, so that a busy moment of the machine
# does not fall on one of them alone; the table shows medians. Picker, stub engines and load generator are processes of
# their own on this machine. WARMPATH names another binary to measure (default: a release build, made if need be),
# WARMPATH_RESULTS a folder that keeps each run's JSON.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rounds="${1:-3}"
seconds="${2:-8}"
# Below the range that the kernel gives to clients.
ports=20000
work="$(mktemp -d)"
results="${WARMPATH_RESULTS:-$work/results}"
mkdir -p "$results"
pids=()

stop() {
    # Pickers first: engines that vanish before them are worth a warning.
    for pid in ${pids[@]+"${pids[@]}"}; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    pids=()
}
trap 'stop; rm -rf "$work"' EXIT

if [ -z "${WARMPATH:-}" ]; then
    cargo build --release >&2
    WARMPATH="${CARGO_TARGET_DIR:-target}/release/warmpath"
fi

mkdir "$work/qwen3"
gzip -dc assets/qwen3/tokenizer.json.gz >"$work/qwen3/tokenizer.json"
cp assets/qwen3/tokenizer_config.json "$work/qwen3/"
# Requests that name qwen3 get exact tokens, those that name anything else an estimate.
cat >"$work/settings.yaml" <<YAML
tokenizers:
  hub: false
  models:
    qwen3: { directory: "$work/qwen3" }
YAML
# A picker without a tokenizer shows what the tokenizer's memory is.
printf 'tokenizers: { hub: false }\n' >"$work/estimate.yaml"

# Waits for up to 60 s until a metrics page says that the picker is ready for the scenario.
await() {
    local url="$1" settings="$2" page
    for _ in $(seq 300); do
        page="$(curl -sf "$url" || true)"
        case "$settings" in
            settings) grep -q '^warmpath_models_loaded 1' <<<"$page" && return ;;
            *) [ -n "$page" ] && return ;;
        esac
        sleep 0.2
    done
    echo "the picker did not get ready" >&2
    exit 1
}

# scenario NAME ENDPOINTS SETTINGS TLS BENCH_FLAGS...
scenario() {
    local name="$1" endpoints="$2" settings="$3" tls="$4"
    shift 4
    local secure=true
    [ "$tls" = insecure ] || secure=false
    "$WARMPATH" bench --serve-engines "$endpoints" --engines-port $((ports + 10)) \
        --endpoints-file "$work/endpoints.json" --log-level error &
    local engines=$!
    pids=("$engines")
    for _ in $(seq 100); do
        [ -s "$work/endpoints.json" ] && break
        sleep 0.1
    done
    "$WARMPATH" serve --endpoints-file "$work/endpoints.json" --config "$work/$settings.yaml" --bind 127.0.0.1 \
        --grpc-port $((ports + 1)) --grpc-health-port $((ports + 2)) --metrics-port $((ports + 3)) \
        --secure-serving=$secure --drain-delay 0s --log-level error &
    pids=($! "$engines")
    await "http://127.0.0.1:$((ports + 3))/metrics" "$settings"
    sleep 2
    # Failed exchanges are in the JSON as well, and shown in the table.
    "$WARMPATH" bench --target "127.0.0.1:$((ports + 1))" --tls="$tls" --pid "${pids[0]}" \
        --duration "${seconds}s" --json "$@" >>"$results/$name.json" || true
    stop
    rm -f "$work/endpoints.json"
    # Sockets of the last scenario linger; take others.
    ports=$((ports + 200))
    [ $ports -lt 32000 ] || ports=20000
    echo "$name: $(tail -n 1 "$results/$name.json" | cut -c 1-160)" >&2
}

for _ in $(seq "$rounds"); do
    for tls in insecure off; do
        scenario "chats-exact-$tls" 10 settings $tls --rate 200
        scenario "chats-estimate-$tls" 10 estimate $tls --rate 200 --model other
        scenario "fleet-$tls" 100 settings $tls --rate 50
        scenario "large-exact-$tls" 10 settings $tls --concurrency 16 --body-bytes 220000 --prefixes 50
        scenario "large-estimate-$tls" 10 estimate $tls --concurrency 16 --body-bytes 220000 --prefixes 50 --model other
        scenario "events-$tls" 10 settings $tls --rate 20 --response-chunks 300 --warm-up 5s
        scenario "busy-events-$tls" 10 settings $tls --concurrency 16 --response-chunks 300 --chunk-interval 0ms
        scenario "long-$tls" 100 settings $tls --rate 100 --prompt-tokens 100000
        scenario "full-$tls" 10 settings $tls --concurrency 16
    done
    scenario idle-insecure 100 settings insecure --rate 0
done

python3 scripts/figures.py "$results"
