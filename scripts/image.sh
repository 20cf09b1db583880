#!/usr/bin/env bash
# Packs a built binary into an image with nothing else in it, without a container runtime.
#
#   scripts/image.sh --root FOLDER BINARY     the file system, in a new folder
#   scripts/image.sh --oci FILE BINARY        an archive that `docker load`, `podman load` and `ctr images import` take
#
# BINARY was built on this machine: its shared libraries are taken from here. The same BINARY gives the same bytes;
# the variable SOURCE_DATE_EPOCH is the time that the archive tells, by default 0, and TAG its name, by default
# warmpath:VERSION.
#
# What is left out on purpose:
#   a shell          nothing to run for whoever gets in; debug with an ephemeral container (kubectl debug)
#   CA certificates  those for the hub are in the binary, that of the API server is mounted into every Pod. Only a
#                    kubeconfig without an authority of its own needs /etc/ssl/certs: mount it.
#   time zones       chat templates that ask for the date get it in UTC
set -euo pipefail
# Names are sorted alike everywhere.
export LC_ALL=C

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
say() { printf 'warmpath image: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }
usage() { fail "usage: $0 --root FOLDER BINARY | --oci FILE BINARY"; }

# The number of distroless's "nonroot": whoever changes from one image to the other changes no permission.
user=65532

# libraries BINARY: the loader and every shared object that it would load for the binary, one path a line.
libraries() {
    local lines
    lines="$(ldd "$1")" || fail "ldd cannot read $1: was it built for this machine?"
    case "$lines" in *"not found"*) fail "a shared library is missing: $lines" ;; esac
    printf '%s\n' "$lines" | sed -n 's|^[^/]*\(/[^ ]*\) (0x.*$|\1|p'
}

# assemble FOLDER BINARY: the file system, with this user as the owner of everything.
assemble() {
    local root="$1" binary="$2" library
    umask 022
    mkdir -p "$root"/{etc,tmp,home/nonroot,usr/local/bin,usr/share/doc/warmpath}
    # As in deploy/Dockerfile: the names of functions stay, for backtraces.
    strip --strip-debug -o "$root/usr/local/bin/warmpath" "$binary"
    chmod 755 "$root/usr/local/bin/warmpath"
    # Each where the loader looks for it without a cache: at its own place.
    libraries "$binary" | while read -r library; do
        mkdir -p "$root$(dirname "$library")"
        install -m 755 "$(readlink -f "$library")" "$root$library"
    done
    install -m 644 "$here/../LICENSE" "$root/usr/share/doc/warmpath/LICENSE"
    printf 'root:x:0:0:root:/:/sbin/nologin\nnonroot:x:%d:%d:nonroot:/home/nonroot:/sbin/nologin\n' "$user" "$user" >"$root/etc/passwd"
    printf 'root:x:0:\nnonroot:x:%d:\n' "$user" >"$root/etc/group"
    # Files before DNS, whatever this C library does by default, so that hostAliases of a Pod count.
    printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
    # The hub's files go below the home, unless HF_HOME says otherwise.
    chmod 700 "$root/home/nonroot"
    chmod 1777 "$root/tmp"
}

sha256() { sha256sum "$1" | cut -d' ' -f1; }
size() { stat -c %s "$1"; }

# architecture BINARY: in the words of the image specification.
architecture() {
    local machine
    machine="$(readelf -h "$1" | sed -n 's/^ *Machine: *//p')"
    case "$machine" in
        *X86-64*) echo amd64 ;;
        *AArch64*) echo arm64 ;;
        *) fail "no image is made for $machine" ;;
    esac
}

# pack FILE FOLDER OWNER OPTION... NAME...: adds to an archive that depends on nothing but names, contents and modes.
pack() {
    local file="$1" folder="$2" owner="$3"
    shift 3
    tar --append --file "$file" --directory "$folder" --format ustar --sort name --mtime "@$epoch" --numeric-owner \
        --owner "$owner" --group "$owner" "$@"
}

# add_blob FILE: moves it to where its digest says, and prints the digest.
add_blob() {
    local digest
    digest="$(sha256 "$1")"
    mv "$1" "$work/image/blobs/sha256/$digest"
    echo "$digest"
}

# full_name TAG: with the registry and folder that Docker understands where none are named.
full_name() {
    case "$1" in
        *.*/* | *:*/* | localhost/*) echo "$1" ;;
        */*) echo "docker.io/$1" ;;
        *) echo "docker.io/library/$1" ;;
    esac
}

# archive FILE BINARY: one layer, its configuration and its manifest, with the indexes of both kinds of reader.
archive() {
    local file="$1" binary="$2" version created layer layer_size config config_size manifest manifest_size tag
    epoch="${SOURCE_DATE_EPOCH:-0}"
    version="$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/../Cargo.toml" | head -n 1)"
    created="$(date -u -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)"
    tag="${TAG:-warmpath:$version}"
    case "${tag##*/}" in *?:?*) ;; *) fail "TAG is $tag: write NAME:VERSION" ;; esac
    mkdir -p "$work/image/blobs/sha256"

    assemble "$work/root" "$binary"
    (cd "$work/root" && printf '%s\n' *) >"$work/names"
    pack "$work/layer" "$work/root" 0 --exclude home/nonroot --files-from "$work/names"
    # Nothing else belongs to the user.
    pack "$work/layer" "$work/root" "$user" home/nonroot
    layer_size="$(size "$work/layer")"
    layer="$(add_blob "$work/layer")"

    # The same as in deploy/Dockerfile; a test compares them.
    cat >"$work/config" <<JSON
{"architecture":"$(architecture "$binary")","os":"linux","created":"$created","config":{"User":"$user:$user","ExposedPorts":{"9002/tcp":{},"9003/tcp":{},"9090/tcp":{}},"Entrypoint":["/usr/local/bin/warmpath","serve"],"WorkingDir":"/","Labels":{"org.opencontainers.image.title":"warmpath","org.opencontainers.image.description":"An endpoint picker for the Gateway API Inference Extension","org.opencontainers.image.licenses":"Apache-2.0","org.opencontainers.image.version":"$version"}},"rootfs":{"type":"layers","diff_ids":["sha256:$layer"]},"history":[{"created":"$created","created_by":"scripts/image.sh"}]}
JSON
    config_size="$(size "$work/config")"
    config="$(add_blob "$work/config")"
    cat >"$work/manifest" <<JSON
{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:$config","size":$config_size},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:$layer","size":$layer_size}]}
JSON
    manifest_size="$(size "$work/manifest")"
    manifest="$(add_blob "$work/manifest")"
    printf '{"imageLayoutVersion":"1.0.0"}' >"$work/image/oci-layout"
    cat >"$work/image/index.json" <<JSON
{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:$manifest","size":$manifest_size,"annotations":{"io.containerd.image.name":"$(full_name "$tag")","org.opencontainers.image.ref.name":"${tag##*:}"}}]}
JSON
    # For Docker without the containerd image store, which does not read index.json.
    cat >"$work/image/manifest.json" <<JSON
[{"Config":"blobs/sha256/$config","RepoTags":["$tag"],"Layers":["blobs/sha256/$layer"]}]
JSON
    pack "$work/archive" "$work/image" 0 blobs index.json manifest.json oci-layout
    mv "$work/archive" "$file"
    say "$file holds $tag, $(($(size "$file") / 1048576)) MiB"
}

[ $# -eq 3 ] || usage
binary="$3"
[ -f "$binary" ] || fail "there is no $binary: cargo build --release"
case "$1" in
    --root)
        if [ -e "$2" ]; then fail "$2 exists: name a new folder"; fi
        assemble "$2" "$binary"
        # Anybody else cannot give files away, and runs it as themselves.
        if [ "$(id -u)" -eq 0 ]; then chown "$user:$user" "$2/home/nonroot"; fi
        ;;
    --oci)
        work="$(mktemp -d)"
        trap 'rm -rf "$work"' EXIT
        archive "$2" "$binary"
        ;;
    *) usage ;;
esac
