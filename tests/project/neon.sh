#!/bin/bash
# Builds the kernels for ARM with the cross compiler and runs their tests under qemu: plain NEON and with matrix
# instructions. Exits 77 where the tools are missing.
build=${1:-build}
root=$(cd "$(dirname "$0")/../.." && pwd)
cc=aarch64-linux-gnu-gcc
for tool in $cc qemu-aarch64; do
    command -v $tool > /dev/null || { echo "skipped: no $tool"; exit 77; }
done
out=$build/neon
mkdir -p "$out" || exit 1
common="-std=gnu17 -O2 -D_GNU_SOURCE -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra -Wno-unused-parameter -Werror
    -I$root/include -I$root/src -I$root/tests/support -I$root/tests/support/cross"
kernels=$root/src/backend/cpu/kernels
objects=()
compile() { # flags, sources…
    local flags=$1 jobs=(); shift
    for source in "$@"; do
        local object=$out/$(echo "${source#"$root"/}" | tr / _).o
        # shellcheck disable=SC2086
        $cc $common $flags -c "$source" -o "$object" & jobs+=($!)
        objects+=("$object")
    done
    for job in "${jobs[@]}"; do wait "$job" || exit 1; done
}
compile "" "$root"/src/base/*.c "$root"/src/quant/*.c "$kernels"/*.c "$kernels"/generic/*.c "$root"/tests/support/support.c
compile "-O3 -march=armv8.2-a+dotprod+fp16" "$kernels"/neon/*.c
compile "-O3 -march=armv8.2-a+dotprod+fp16+i8mm" "$kernels"/neon_i8mm/*.c
# shellcheck disable=SC2086
$cc $common -static "$root/tests/unit/backend/test_kernels.c" "${objects[@]}" -lm -lpthread -o "$out/test_kernels" || exit 1
jobs=()
for cpu in cortex-a76 max; do # dot products; matrix instructions besides
    TENON_SHORT=1 qemu-aarch64 -cpu $cpu "$out/test_kernels" > "$out/$cpu.log" 2>&1 & jobs+=($!)
done
status=0
for job in "${jobs[@]}"; do wait "$job" || status=1; done
tail -n +1 "$out/cortex-a76.log" "$out/max.log"
exit $status
