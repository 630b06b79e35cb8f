#!/bin/bash
# scaling.sh BUILD: the predicted tables of docs/scaling.md. Models are metadata only (tenon synth --no-data).
set -eu
build=$(realpath "${1:?folder of the build}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
nodes="8x8x h200,link=450G,link-latency=3us; net=50G,latency=5us"

table() { # title, options of tenon synth…
    local title=$1
    shift
    "$build/bin/tenon" synth "$work/model.gguf" --force --no-data --type Q4_K "$@" > "$work/synth.txt"
    "$build/bin/tenon" plan "$work/model.gguf" -c 8192 --nodes "$nodes" > "$work/plan.txt"
    printf '%s: %s\n\n' "$title" "$(sed -E 's/.*, ([0-9.]+) B parameters.*/\1 B parameters/' "$work/synth.txt")"
    python3 - "$work/plan.txt" << 'END'
import sys
rows = {}
for line in open(sys.argv[1]):
    words = line.split()
    if not words or not words[0].isdigit() or words[1] not in ('-', 'row', 'layer', 'pipeline'):
        continue
    if words[2] == 'cannot':
        continue
    bytes, fits = ' '.join(words[2:4]), words[6] == 'yes'
    prompt, decode, messages = words[7:10]
    rows.setdefault(int(words[0]), {})[words[1]] = (bytes, fits, float(prompt), float(decode), messages)
print('| GPUs | memory per rank (row) | row: prompt | row: decode | …of which messages | pipeline: prompt | pipeline: decode | layer: prompt | layer: decode |')
print('|---|---|---|---|---|---|---|---|---|')
def two(split):
    return f'{split[2]:,.0f} | {split[3]:.0f}' if split else '– | –'
for n, splits in rows.items():
    bytes, fits, prompt, decode, messages = splits.get('row') or splits['-']
    several = n > 8  # several machines of 8 devices; on one machine the split "layer" is what "pipeline" is on several
    pipeline = splits.get('pipeline' if several else 'layer') or splits.get('-')
    print(f'| {n} | {bytes}{"" if fits else ", does not fit"} | {prompt:,.0f} | {decode:.0f} | {messages} '
          f'| {two(pipeline)} | {two(splits.get("layer") if several else None)} |')
print()
END
}

table 70B --shape 70b
table 405B --shape 405b
# DeepSeek V3: latent attention, 256 experts of which 8 are used and a shared one, after three dense layers.
table 671B-A37B --arch deepseek2 --shape layers=61,width=7168,heads=128,kv=128,ffn=18432,experts=256,used=8,expert-ffn=2048,vocab=129280,ctx=163840 \
    --set attention.q_lora_rank=1536 --set attention.kv_lora_rank=512 --set attention.key_length=576 --set attention.value_length=512 \
    --set attention.key_length_mla=192 --set attention.value_length_mla=128 --set rope.dimension_count=64 \
    --set leading_dense_block_count=3 --set expert_shared_feed_forward_length=2048
