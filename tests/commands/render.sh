#!/bin/bash
# tenon render: some golden renders through the program, its clock, and its errors.
. "$(dirname "$0")/../support/checks.sh"

echo '{"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": true}' > "$work/in.json"
printf '{%% for m in messages %%}[{{ m.role }}]{{ m.content }}{%% endfor %%}{{ strftime_now("%%Y-%%m-%%d %%H:%%M") }}' > "$work/t.jinja"
[ "$(TENON_NOW=2026-11-15T12:00:00 "$tenon" render "$work/t.jinja" "$work/in.json")" = "[user]Hi2026-11-15 12:00" ] || failed "a render with a fixed clock"
[ "$(TENON_NOW=2026-11-15T12:00:00 "$tenon" render "$work/t.jinja" - < "$work/in.json")" = "[user]Hi2026-11-15 12:00" ] || failed "input from standard input"
"$tenon" render "$work/t.jinja" --info | grep -q '^system_role  *yes$' || failed "--info"
"$tenon" render --formats | grep -qx 'qwen3-coder' || failed "--formats"
"$tenon" render > /dev/null 2>&1
[ $? = 2 ] || failed "a missing template is wrong usage"
echo '{% if %}' > "$work/bad.jinja"
"$tenon" render "$work/bad.jinja" "$work/in.json" 2>&1 | grep -q 'template line 1' || failed "a bad template names its line"
"$tenon" render "$work/t.jinja" > /dev/null 2>&1
[ $? = 2 ] || failed "a missing input is wrong usage"
echo '{' | "$tenon" render "$work/t.jinja" - > /dev/null 2>&1
[ $? = 1 ] || failed "bad JSON is an error"

golden=$golden/chat
if [ -d "$golden" ]; then
    export TENON_NOW=2026-11-15T12:00:00
    for template in Qwen-Qwen3-0.6B Kimi-K3 meta-llama-Llama-3.1-8B-Instruct; do
        for case in user dialog tools; do
            "$tenon" render "$golden/$template.jinja" "$golden/$case.json" | cmp -s - "$golden/$template.$case.txt" || failed "$template $case"
        done
    done
fi
finish
