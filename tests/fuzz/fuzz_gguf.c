/* Fuzzes the GGUF reader: any bytes open or give an error, and everything that an open file returns is readable.
 *
 *   cmake --preset fuzz && ninja -C build-fuzz fuzz_gguf
 *   build-fuzz/fuzz/fuzz_gguf -max_len=20000 -timeout=1 -rss_limit_mb=512 CORPUS tests/fuzz/corpus/gguf */
#include "tenon/gguf.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static volatile uint64_t sink;

static void touch(const tn_gguf_value *value) {
    double number;
    if (value->type == TN_GGUF_STR) sink += strlen(value->str.data) + (uint64_t)value->str.data[value->str.size];
    if (tn_gguf_value_f64(value, &number)) sink++;
    if (value->type != TN_GGUF_ARR) return;
    tn_gguf_value element;
    for (uint64_t i = 0; tn_gguf_arr_at(&value->arr, i, &element); i++) touch(&element);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    tn_gguf *file;
    tn_gguf_params params = {.mode = size && bytes[size - 1] & 1 ? TN_GGUF_READ : TN_GGUF_MAP};
    if (!bytes || tn_gguf_open_memory(bytes, size, &params, &file) != TN_OK) return 0;
    for (uint64_t i = 0; i < tn_gguf_key_count(file); i++) {
        const tn_gguf_kv *kv = tn_gguf_key_at(file, i);
        if (tn_gguf_find(file, kv->key.data) != &kv->value) __builtin_trap();
        sink += tn_gguf_get_u32_at(file, kv->key.data, i, 0);
        touch(&kv->value);
    }
    for (uint64_t i = 0; i < tn_gguf_tensor_count(file); i++) {
        const tn_gguf_tensor *tensor = tn_gguf_tensor_at(file, i);
        if (tn_gguf_find_tensor(file, tensor->name) != tensor || tensor->size == 0) __builtin_trap();
        const uint8_t *data = tensor->data;
        for (size_t at = 0; data && at < tensor->size; at++) sink += data[at];
        if (!data) continue;
        uint8_t last;
        if (tn_gguf_read(file, tensor, tensor->size - 1, &last, 1) != TN_OK) __builtin_trap();
        if (last != data[tensor->size - 1]) __builtin_trap();
    }
    tn_gguf_close(file);
    return 0;
}
