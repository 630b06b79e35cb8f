#!/bin/bash
# Predicted speeds: remembered peaks, damaged files, given rates.
. "$(dirname "$0")/../support/checks.sh"
export XDG_CACHE_HOME=$work/cache
file=$work/cache/tenon/devices.json
"$tenon" synth "$work/m.gguf" --shape tiny --type q8_0 > /dev/null 2>&1 || failed "synth"

check "no peaks: no prediction" 0 'predicted: no speed.*not measured' "$tenon" plan "$work/m.gguf" --device cpu
check "no peaks in JSON" 0 '"predicted": null' "$tenon" plan "$work/m.gguf" --device cpu --json
check "given rates" 0 'predicted: prompt 512 .*decode .*at depth 0' \
    "$tenon" plan "$work/m.gguf" --device sim:24G,read=936G,f16=71T
check "given rates in JSON" 0 '"tokens_per_second"' \
    "$tenon" plan "$work/m.gguf" --device sim:24G,read=936G,f16=71T --json
check "devices: not measured" 0 'not measured' "$tenon" devices
mkdir -p "$work/cache/tenon"
check "a device that cannot be measured" 1 'cannot measure' "$tenon" devices --measure --device sim:64K,name=none
check "an unknown device" 1 'tenon: ' "$tenon" devices --measure --device nothing9

# Hostile files count as empty and are replaced.
for text in '' 'not JSON' '[]' '{"format": 4}' '{"format": 4, "devices": [1, null, {"name": "cpu"}]}' \
    '{"format": 1, "devices": []}'; do
    printf '%s' "$text" > "$file"
    check "damaged file '$text'" 0 'no speed' "$tenon" plan "$work/m.gguf" --device cpu
done
rm -f "$file" && mkdir "$file"
check "a folder instead of the file" 0 'no speed' "$tenon" plan "$work/m.gguf" --device cpu
rmdir "$file"
check "plan measures on request" 0 'predicted: prompt 512' "$tenon" plan "$work/m.gguf" --device cpu --measure
[ -f "$file" ] || failed "the peaks are remembered in $file"
check "devices: measured" 0 'measured +read' "$tenon" devices
check "the peaks are used afterwards" 0 'predicted: prompt 512' "$tenon" plan "$work/m.gguf" --device cpu
check "bench shows the prediction" 0 'predicted' "$tenon" bench "$work/m.gguf" --device cpu -p 16 -n 4 -r 1
for bad in '1e999' '-1' '"x"' '1e30' 'null'; do
    sed "s/\"read\": [0-9.e+]*/\"read\": $bad/" "$file" > "$file.new" && mv "$file.new" "$file.bad"
    cp "$file.bad" "$work/bad.json"
    mkdir -p "$work/other/tenon" && cp "$work/bad.json" "$work/other/tenon/devices.json"
    XDG_CACHE_HOME=$work/other check "a rate of $bad" 0 'no speed' "$tenon" plan "$work/m.gguf" --device cpu
done
# A simulated device computes on the CPU: the same again, and as long.
[ -z "${TENON_LONG:-}" ] || check "measuring a simulated device" 0 'measured +read' "$tenon" devices --measure --device sim:64M,name=small
finish
