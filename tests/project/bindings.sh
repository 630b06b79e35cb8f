#!/bin/bash
# Generators of bindings read the public headers, and a program made with each of them calls the library: cffi, LuaJIT, SWIG and
# bindgen, those that are installed.
. "$(dirname "$0")/../support/checks.sh"
here=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "$build" && pwd)
library=$build/lib/libtenon-llm.so model=$here/models/tales.gguf headers=$here/include tried=
export LD_LIBRARY_PATH=$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
cd "$work" || exit 1

# cffi and LuaJIT read C without attributes and system headers.
printf '#include <%s>\n' stdarg.h stdbool.h stddef.h stdint.h stdio.h > all.c
printf 'int tenon_begins;\n#include <tenon/tenon.h>\n' >> all.c
cc -E -P -DTN_NO_ATTRIBUTES -I "$headers" all.c | sed '1,/int tenon_begins;/d' > tenon_plain.h || failed "the headers are preprocessed"
grep -q tn_session_next tenon_plain.h || failed "the headers"
grep -n __attribute__ tenon_plain.h && failed "TN_NO_ATTRIBUTES leaves attributes"

python=
for candidate in /usr/bin/python3 python3; do "$candidate" -c 'import cffi' 2> /dev/null && python=$candidate && break; done
if [ -n "$python" ]; then
    tried="$tried cffi"
    "$python" - "$library" "$model" > out 2>&1 << 'PY' || failed "cffi: $(cat out)"
import sys
import cffi
ffi = cffi.FFI()
ffi.cdef(open('tenon_plain.h', encoding='utf-8').read())
lib = ffi.dlopen(sys.argv[1])


def check(status):
    if status:
        raise RuntimeError(ffi.string(lib.tn_error()).decode())


def write(temperature):
    model, session, sampler = ffi.new('tn_model **'), ffi.new('tn_session **'), ffi.new('tn_sampler **')
    check(lib.tn_model_open(sys.argv[2].encode(), ffi.NULL, model))
    params = ffi.new('tn_session_params *', lib.tn_session_params_default())
    params.n_ctx = 64
    check(lib.tn_session_open(model[0], params, session))
    chain = ffi.new('tn_sampler_params *', lib.tn_sampler_params_default())
    chain.temperature = temperature
    check(lib.tn_sampler_new(chain, lib.tn_model_get_info(model[0]).n_vocab, sampler))
    check(lib.tn_session_prompt(session[0], 0, b'Once upon a time', 16))
    token, text = ffi.new('tn_token *'), b''
    for _ in range(8):
        check(lib.tn_session_next(session[0], 0, sampler[0], token))
        text += ffi.string(lib.tn_session_text(session[0], 0))
    lib.tn_sampler_free(sampler[0])
    lib.tn_session_free(session[0])
    lib.tn_model_close(model[0])
    return text


lines = []


@ffi.callback('void(void *, tn_log_level, const char *)')
def keep(_, level, text):
    lines.append((level, ffi.string(text)))


assert write(0) == b', there was a little girl named Lily', write(0)
assert lib.tn_model_open(b'/nowhere', ffi.NULL, ffi.new('tn_model **')) == lib.TN_E_IO
assert b'/nowhere: No such file' in ffi.string(lib.tn_error())
lib.tn_log_set(keep, ffi.NULL, lib.TN_LOG_ERROR)
lib.tn_log(lib.TN_LOG_ERROR, b'%s', ffi.new('char[]', b'a fox'))
assert lines == [(lib.TN_LOG_ERROR, b'a fox')], lines
PY
fi
if command -v luajit > /dev/null; then
    tried="$tried luajit"
    cat > program.lua << 'LUA'
local ffi = require 'ffi'
ffi.cdef('typedef struct FILE FILE;' .. io.open('tenon_plain.h'):read('*a'))
local lib, model = ffi.load(arg[1], true), ffi.new('tn_model *[1]')
assert(lib.tn_model_open(arg[2], nil, model) == 0, ffi.string(lib.tn_error()))
print(lib.tn_model_get_info(model[0]).n_vocab)
lib.tn_model_close(model[0])
LUA
    same "a program in Lua" 4096 "$(luajit program.lua "$library" "$model" 2>&1)"
fi
# SWIG and bindgen read the headers as they are.
python=
for candidate in /usr/bin/python3 python3; do
    include=$("$candidate" -c 'import sysconfig; print(sysconfig.get_paths()["include"])' 2> /dev/null)
    [ -e "$include/Python.h" ] && python=$candidate && break
done
if command -v swig > /dev/null && [ -n "$python" ]; then
    tried="$tried swig"
    {
        printf '%%module tenon_swig\n%%{\n#include <tenon/tenon.h>\n%%}\n%%include <stdint.i>\n'
        # SWIG follows no #include: what others need comes first.
        for name in base tensor graph backend pack placement plan token tokenizer sampler llm; do echo "%include <tenon/$name.h>"; done
        sed -n 's/^#include "\(tenon\/.*\)"/%include <\1>/p' "$headers/tenon/tenon.h"
    } > tenon.i
    swig -python -w314,451 -I"$headers" tenon.i > out 2>&1 || failed "swig"
    [ -s out ] && failed "swig warns: $(head -n 5 out)"
    cc -shared -fPIC -O0 -w -I"$include" -I"$headers" tenon_wrap.c -o _tenon_swig.so -L"$build/lib" -ltenon-llm -ltenon > out 2>&1 ||
        failed "swig's code: $(head -n 5 out)"
    same "a program by SWIG" "10 2048" "$("$python" -c 'import tenon_swig as t; print(t.TN_E_IO, t.tn_session_params_default().n_batch)' 2>&1)"
fi
if command -v bindgen > /dev/null; then
    tried="$tried bindgen"
    bindgen "$headers/tenon/tenon.h" --allowlist-function 'tn_.*' -- -I"$headers" > tenon.rs 2> err || failed "bindgen: $(head -n 5 err)"
    # Every function that the libraries export and a public header declares.
    for name in tn_session_next tn_tokenizer_encode tn_pack tn_sched_run tn_generator_new; do
        grep -q "pub fn $name(" tenon.rs || failed "bindgen: no $name"
    done
fi
[ -n "$tried" ] || skip "needs python3-cffi, luajit, swig or bindgen"
echo "tried:$tried"
finish
