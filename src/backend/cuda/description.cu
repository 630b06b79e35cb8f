// Device descriptions: presets, specifications and what follows from them.
#include "backend/cuda/description.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gpu_preset {
    const char *name;
    device_description figures;
};

#define KIB *((size_t)1 << 10)
#define MIB *((size_t)1 << 20)
#define GIB *((size_t)1 << 30)

// Figures of the CUDA programming guide (limits per capability) and of the vendor's data sheets (counts, sizes).
static const gpu_preset gpu_presets[] = {
    {"t4", {"Tesla T4", 7, 5, 40, 64 KIB, 64 KIB, 1024, 16, 4 MIB, 15 GIB, false, false, false, true}},
    {"a100", {"A100", 8, 0, 108, 163 KIB, 164 KIB, 2048, 32, 40 MIB, 80 GIB, false, false, false, true}},
    {"rtx3090", {"GeForce RTX 3090", 8, 6, 82, 99 KIB, 100 KIB, 1536, 16, 6 MIB, 24 GIB, false, false, false, true}},
    {"rtx4090",
     {"GeForce RTX 4090", 8, 9, 128, 99 KIB, 100 KIB, 1536, 24, 72 MIB, 24 GIB, false, false, false, true}},
    {"h200", {"H200", 9, 0, 132, 227 KIB, 228 KIB, 2048, 32, 50 MIB, 141 GIB, false, false, false, true}},
    {"rtx5090",
     {"GeForce RTX 5090", 12, 0, 170, 99 KIB, 100 KIB, 1536, 24, 96 MIB, 32 GIB, false, false, false, true}},
};

void description_set_features(device_description *d) {
    d->async_copies = d->major >= 8;
    d->bulk_copies = d->programmatic_launch = d->major >= 9;
}

int description_resident_blocks(const device_description &d, unsigned threads, size_t shared) {
    size_t reserved = d.major >= 8 ? RESERVED_SHARED : 0;
    size_t blocks = (size_t)d.blocks_per_multiprocessor, by_threads = (size_t)d.threads_per_multiprocessor / threads;
    if (by_threads < blocks) blocks = by_threads;
    if (shared + reserved && d.shared_per_multiprocessor / (shared + reserved) < blocks)
        blocks = d.shared_per_multiprocessor / (shared + reserved);
    return (int)blocks;
}

// ---- Specifications ----

static bool parse_spec_bytes(const char *text, size_t *bytes) {
    char *end;
    unsigned long long n = strtoull(text, &end, 10);
    int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    if (end == text || n == 0 || n > (unsigned long long)1 << (44 - shift) || end[shift != 0]) return false;
    *bytes = (size_t)n << shift;
    return true;
}
static bool parse_spec_count(const char *text, int most, int *count) {
    char *end;
    long n = strtol(text, &end, 10);
    if (end == text || *end || n < 1 || n > most) return false;
    *count = (int)n;
    return true;
}

// The preset of that capability, or of the highest one below it.
static const gpu_preset *preset_of_capability(int capability) {
    const gpu_preset *nearest = NULL;
    for (const gpu_preset &p : gpu_presets)
        if (p.figures.major * 10 + p.figures.minor <= capability) nearest = &p;
    return nearest;
}
static tn_status unknown_preset(const char *text) {
    char known[128] = "";
    for (const gpu_preset &p : gpu_presets) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", p.name);
    }
    return tn_fail(TN_E_INVALID, "unknown device '%s' in a cuda: specification; presets are %s", text, known);
}

static bool set_figure(device_description *d, const char *key, const char *value) {
    if (strcmp(key, "sms") == 0) return parse_spec_count(value, 4096, &d->multiprocessors);
    if (strcmp(key, "threads-sm") == 0) return parse_spec_count(value, 1 << 16, &d->threads_per_multiprocessor);
    if (strcmp(key, "blocks-sm") == 0) return parse_spec_count(value, 1 << 16, &d->blocks_per_multiprocessor);
    if (strcmp(key, "shared") == 0) return parse_spec_bytes(value, &d->shared_per_block);
    if (strcmp(key, "shared-sm") == 0) return parse_spec_bytes(value, &d->shared_per_multiprocessor);
    if (strcmp(key, "l2") == 0) return parse_spec_bytes(value, &d->l2_bytes);
    if (strcmp(key, "integrated") == 0) {
        d->integrated = strcmp(value, "1") == 0;
        return d->integrated || strcmp(value, "0") == 0;
    }
    if (strcmp(key, "memory") == 0) return parse_spec_bytes(value, &d->memory_bytes);
    return false;
}
static tn_status start_with_preset(device_description *d, const char *first) {
    int capability = 0;
    const gpu_preset *from = NULL;
    if (strncmp(first, "sm=", 3) == 0) {
        if (!parse_spec_count(first + 3, 999, &capability) || capability < 75)
            return tn_fail(TN_E_INVALID, "'%s': the compute capability is a number from 75 on, such as sm=90", first);
        from = preset_of_capability(capability);
    }
    for (const gpu_preset &p : gpu_presets)
        if (strcmp(first, p.name) == 0) from = &p;
    if (!from) return unknown_preset(first);
    *d = from->figures;
    if (strncmp(first, "sm=", 3) == 0) {
        d->major = capability / 10;
        d->minor = capability % 10;
        snprintf(d->chip, sizeof d->chip, "described GPU");
    }
    description_set_features(d);
    return TN_OK;
}

tn_status description_parse(const char *spec, device_description *d, char *name, size_t name_size) {
    char text[256], *rest = NULL;
    bool named = false;
    if ((size_t)snprintf(text, sizeof text, "%s", spec) >= sizeof text)
        return tn_fail(TN_E_INVALID, "a cuda: specification has at most %zu characters", sizeof text - 1);
    const char *first = strtok_r(text, ",", &rest);
    TN_TRY(start_with_preset(d, first ? first : ""));
    for (char *part = strtok_r(NULL, ",", &rest); part; part = strtok_r(NULL, ",", &rest)) {
        char *value = strchr(part, '=');
        if (value) *value++ = '\0';
        if (value && strcmp(part, "name") == 0 && *value && strlen(value) < name_size) {
            snprintf(name, name_size, "%s", value);
            named = true;
        } else if (!value || !set_figure(d, part, value)) {
            return tn_fail(
                TN_E_INVALID,
                "cuda:%s: '%s' is not understood; known are sms, shared, shared-sm, threads-sm, blocks-sm, "
                "l2, memory (a number with K, M or G for bytes), integrated (0 or 1) and name",
                spec, part);
        }
    }
    if (d->shared_per_multiprocessor < d->shared_per_block) d->shared_per_multiprocessor = d->shared_per_block;
    if (!named && (size_t)snprintf(name, name_size, "cuda:%s", spec) >= name_size)
        return tn_fail(TN_E_INVALID, "cuda:%s: add ,name= with at most %zu characters", spec, name_size - 1);
    return TN_OK;
}
