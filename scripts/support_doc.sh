#!/bin/bash
# support_doc.sh BUILD: prints docs/support.md. Every architecture is synthesized and planned for a described GPU; the CUDA backend may be
# the emulated one (build/cuda_on_cpu/80).
build=${1:-build}
[ -e "$build/lib/libtenon-cuda.so" ] || export TENON_BACKEND_PATH=$build/cuda_on_cpu/80
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat << 'END'
# Support by architecture

Every architecture of [the table](architectures.md) runs on the CPU. This page, which `scripts/support_doc.sh` writes from the program's own tables and plans, says what
else there is for each:

- **CUDA**: "whole" where all nodes of the prefill and decode graphs of a small model with f16 weights run on the GPU; otherwise the number of parts between which
  the graph changes the device.
- **convert**: `tenon convert` takes folders of its Hugging Face classes.

Tool calls and reasoning follow a model's chat template, not its architecture: [chat](chat.md) lists the formats.

| architecture | kind | CUDA | convert |
|---|---|---|---|
END
shape=layers=6,width=256,heads=4,kv=2,head=64,ffn=512,vocab=512,ctx=2048
experts=experts=8,used=2,expert-ffn=128
"$build/bin/tenon" help --architectures | sed -n 's/^| \([a-z0-9_.-]*\) | \([^|]*\) |\(.*\)|$/\1|\2|\3/p' |
    while IFS='|' read -r arch kind classes; do
        convert=yes
        [ -n "${classes// /}" ] || convert=–
        cuda='?'
        for try in "$shape" "$shape,$experts" "${shape/kv=2/kv=4}" "${shape/kv=2/kv=4},$experts"; do
            "$build/bin/tenon" synth "$work/m.gguf" --no-data --force --arch "$arch" --shape "$try" > /dev/null 2>&1 || continue
            splits=$("$build/bin/tenon" plan "$work/m.gguf" --device cuda:h200 2> /dev/null |
                sed -n 's/^graphs: .* nodes in \([0-9]*\) splits*, decode [0-9]* in \([0-9]*\).*/\1 \2/p;s/^graphs: [^,]* nodes in \([0-9]*\) splits*$/\1 \1/p')
            [ -n "$splits" ] || continue
            cuda="${splits/ / and } parts"
            [ "$splits" = "1 1" ] && cuda=whole
            break
        done
        echo "| $arch | $kind | $cuda | $convert |"
    done
