#!/bin/bash
# fresh.sh [FOLDER]: make test and make demo in a Debian 12 that has make and a shell and nothing else. FOLDER (default
# /var/tmp/tenon-fresh) keeps the bare system for the next time; the run uses a copy. Needs root and debootstrap.
# fresh.sh --quick-start [FOLDER]: clones the repository there instead and types the commands of docs/quick-start.md, each timed. Models come
# from a hub on this machine (tests/data/local_hub.py): random weights under the name of the page's model.
# Packages come from where this system's own come from; TENON_MIRROR names another mirror.
set -eu
cd "$(dirname "$0")/.."
quick_start=
[ "${1:-}" != --quick-start ] || { quick_start=1; shift; }
folder=${1:-/var/tmp/tenon-fresh}

# The first Debian archive in this system's package sources, in either of apt's two formats. Not a security archive: debootstrap needs the base.
system_mirror() {
    cat /etc/apt/sources.list.d/*.sources /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2> /dev/null |
        sed -nE 's/^URIs: *//p; s/^deb +(\[[^]]*\] +)?([^ ]+) .*/\2/p' | tr ' ' '\n' | grep -E '/debian/?$' | head -n 1
}
mirror=${TENON_MIRROR:-$(system_mirror)}
[ -n "$mirror" ] || { echo "no Debian archive in this system's package sources; set TENON_MIRROR" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "fresh.sh needs root (chroot)" >&2; exit 1; }
command -v debootstrap > /dev/null || { echo "apt-get install debootstrap" >&2; exit 1; }

if [ ! -e "$folder/bare/complete" ]; then
    rm -rf "$folder/bare"
    mkdir -p "$folder/bare"
    debootstrap --variant=minbase --include=make bookworm "$folder/bare" "$mirror" > "$folder/debootstrap.log" ||
        { tail "$folder/debootstrap.log"; exit 1; }
    touch "$folder/bare/complete"
fi
rm -rf "$folder/run"
cp -a "$folder/bare" "$folder/run"
cp /etc/resolv.conf "$folder/run/etc/resolv.conf"
# Nothing is mounted; only the devices that a compiler and a shell cannot do without are made.
for device in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9"; do
    set -- $device
    [ -e "$folder/run/dev/$1" ] || mknod -m 666 "$folder/run/dev/$1" c "$2" "$3" || true
done
ln -sfn /proc/self/fd "$folder/run/dev/fd"
inside() { # VARIABLE=VALUE… command…
    env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        http_proxy="${http_proxy:-}" https_proxy="${https_proxy:-}" chroot "$folder/run" /usr/bin/env "$@"
}
if [ -n "$quick_start" ]; then
    model=$folder/hub/Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf
    mkdir -p "${model%/*}"
    [ -e "$model" ] || build/bin/tenon synth "$model" --arch qwen3 --type q8_0 \
        --shape layers=28,width=1024,heads=16,kv=8,head=128,ffn=3072,vocab=32000,ctx=4096
    rm -f "$folder/port"
    python3 tests/data/local_hub.py "$folder/hub" "$folder/port" &
    hub=$!
    trap 'kill $hub; umount "$folder/run/proc" 2> /dev/null || true' EXIT
    mount -t proc proc "$folder/run/proc" || echo "note: /proc could not be mounted"
    until [ -s "$folder/port" ]; do sleep 0.1; done
    rm -rf "$folder/run/srv/tenon.git"
    git clone -q --bare . "$folder/run/srv/tenon.git"
    inside sh -c 'apt-get -q update && apt-get install -qy --no-install-recommends git make curl' > "$folder/packages.log" 2>&1 ||
        { tail "$folder/packages.log"; exit 1; }
    inside HF_ENDPOINT="http://127.0.0.1:$(cut -d' ' -f1 "$folder/port")" bash -c 'set -e
        time git -c safe.directory="*" clone -q /srv/tenon.git /home/tenon
        cd /home/tenon
        bash tests/data/type_page.sh docs/quick-start.md'
    exit
fi
mkdir -p "$folder/run/home/tenon"
tar --exclude='./build*' --exclude=./.git --exclude=./shared -cf - . | tar -C "$folder/run/home/tenon" -xf -
for goal in test demo; do
    echo "== make $goal"
    inside make -C /home/tenon "$goal"
done
rm -rf "$folder/run"
