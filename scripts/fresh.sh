#!/bin/bash
# fresh.sh [FOLDER]: make test and make demo in a Debian 12 that has make and a shell and nothing else. FOLDER (default
# /var/tmp/tenon-fresh) keeps the bare system for the next time; the run uses a copy. Needs root and debootstrap.
# Packages come from where this system's own come from; TENON_MIRROR names another mirror.
set -eu
cd "$(dirname "$0")/.."
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
mkdir -p "$folder/run/home/tenon"
tar --exclude='./build*' --exclude=./.git --exclude=./shared -cf - . | tar -C "$folder/run/home/tenon" -xf -
cp /etc/resolv.conf "$folder/run/etc/resolv.conf"
# Nothing is mounted; only the devices that a compiler and a shell cannot do without are made.
for device in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9"; do
    set -- $device
    [ -e "$folder/run/dev/$1" ] || mknod -m 666 "$folder/run/dev/$1" c "$2" "$3" || true
done
ln -sfn /proc/self/fd "$folder/run/dev/fd"
for goal in test demo; do
    echo "== make $goal"
    env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        http_proxy="${http_proxy:-}" https_proxy="${https_proxy:-}" \
        chroot "$folder/run" make -C /home/tenon "$goal"
done
rm -rf "$folder/run"
