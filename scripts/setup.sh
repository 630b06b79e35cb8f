#!/bin/sh
# setup.sh build|lint|coverage|fuzz|peers: looks for what the goal needs from the system. What is missing is installed with
# apt-get when that is possible without asking (root, or sudo without a password); otherwise the one command to run
# is printed. Quick when nothing is missing. Assumes only a POSIX shell.
set -eu

missing=
need_program() { # program package
    command -v "$1" > /dev/null 2>&1 || missing="$missing $2"
}
need_library() { # pkg-config-module package
    if ! command -v pkg-config > /dev/null 2>&1 || ! pkg-config --exists "$1"; then
        case " $missing " in *" $2 "*) ;; *) missing="$missing $2" ;; esac
    fi
}

# The libraries are those of cmake/dependencies.cmake; the test suite compares the two lists.
need_program cc gcc
[ -e /usr/include/stdio.h ] || missing="$missing libc6-dev"
need_program cmake cmake
need_program ninja ninja-build
need_program pkg-config pkg-config
need_library libpcre2-8 libpcre2-dev
need_library libutf8proc libutf8proc-dev
need_library jansson libjansson-dev
need_library libevent libevent-dev
need_library libevent_pthreads libevent-dev
need_library libedit libedit-dev
need_library libcurl libcurl4-openssl-dev
need_library openssl libssl-dev
need_library cmocka libcmocka-dev
case ${1:-build} in
lint)
    need_program git git
    need_program python3 python3
    need_program clang-format clang-format
    need_program clang-tidy clang-tidy
    need_program cppcheck cppcheck
    ;;
coverage) need_program gcovr gcovr ;;
fuzz) need_program clang clang ;;
peers) need_program npm npm ;;
esac
[ -n "$missing" ] || exit 0

install="apt-get install -y --no-install-recommends$missing"
if ! command -v apt-get > /dev/null 2>&1; then
    echo "Missing:$missing (names of Debian packages). Install what they provide and try again." >&2
    exit 1
fi
if [ "$(id -u)" = 0 ]; then
    as_root="env DEBIAN_FRONTEND=noninteractive"
elif command -v sudo > /dev/null 2>&1 && sudo -n true 2> /dev/null; then
    as_root="sudo -n env DEBIAN_FRONTEND=noninteractive"
else
    echo "Some packages are missing. Install them with this command and try again:" >&2
    echo "  sudo apt-get update && sudo $install" >&2
    exit 1
fi
echo "Installing:$missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { $as_root apt-get -q update && $as_root $install; } > "$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "Installing the missing packages failed. The command was: apt-get update && $install" >&2
    exit 1
fi
