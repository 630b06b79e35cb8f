/* LoRA adapters and control vectors: the options, and opening the files that they name. */
#include "engine/adapter_options.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct option adapter_table[] = {
    {.name = "lora",
     .value = "FILE,…",
     .kind = OPTION_TEXT,
     .repeats = true,
     .help = "a LoRA adapter (GGUF), with the scale 1; several are separated by commas"},
    {.name = "lora-scaled",
     .value = "FILE:SCALE,…",
     .kind = OPTION_TEXT,
     .repeats = true,
     .help = "a LoRA adapter with a scale; several are separated by commas"},
    {.name = "lora-init-without-apply",
     .kind = OPTION_FLAG,
     .help = "load the adapters with the scale 0: requests to the server turn them on"},
    {.name = "control-vector",
     .value = "FILE,…",
     .kind = OPTION_TEXT,
     .repeats = true,
     .help = "a control vector (GGUF), with the scale 1; several are added up"},
    {.name = "control-vector-scaled",
     .value = "FILE:SCALE,…",
     .kind = OPTION_TEXT,
     .repeats = true,
     .help = "a control vector with a scale"},
    {.name = "control-vector-layer-range",
     .value = "START END",
     .kind = OPTION_TEXT,
     .pair = true,
     .help = "the layers that control vectors are added to, both included; by default all"},
    {0},
};
const struct option_group adapter_options = {"Adapters", adapter_table};

bool split_scaled_path(const char *text, size_t length, size_t *path_length, float *scale) {
    size_t colon = length;
    while (colon > 0 && text[colon - 1] != ':') colon--;
    if (colon < 2 || colon == length || length - colon > 30) return false;
    char number[32] = "", *end;
    memcpy(number, text + colon, length - colon);
    *scale = strtof(number, &end);
    *path_length = colon - 1;
    return !*end && isfinite(*scale);
}

/* ---- Opening ---- */

/* Calls `open` for every file of an option. */
typedef tn_status (*open_fn)(const tn_model *model, const char *path, float scale, struct opened_adapters *opened);

static tn_status open_adapter_file(const tn_model *model, const char *path, float scale,
                                   struct opened_adapters *opened) {
    if (opened->n_adapters == TN_ADAPTERS_MOST)
        return tn_fail(TN_E_INVALID, "more than %d adapters (--lora)", TN_ADAPTERS_MOST);
    tn_adapter *adapter;
    TN_TRY(tn_adapter_open(model, path, &adapter));
    opened->adapters[opened->n_adapters++] = (tn_adapter_use){adapter, scale};
    return TN_OK;
}
static tn_status open_control_file(const tn_model *model, const char *path, float scale,
                                   struct opened_adapters *opened) {
    if (opened->n_controls == TN_ADAPTERS_MOST)
        return tn_fail(TN_E_INVALID, "more than %d control vectors (--control-vector)", TN_ADAPTERS_MOST);
    tn_control_vector *vector;
    TN_TRY(tn_control_vector_open(model, path, &vector));
    opened->controls[opened->n_controls++] = (tn_control_use){vector, scale};
    return TN_OK;
}

static tn_status open_files(const struct args *args, const char *option, bool scaled, const tn_model *model,
                            open_fn open, struct opened_adapters *opened) {
    for (int i = 0; i < args_repeats(args, option); i++)
        for (const char *text = args_text_at(args, option, i); *text;) {
            const size_t whole = strcspn(text, ",");
            size_t length = whole;
            float scale = 1;
            char path[4096];
            if (scaled && !split_scaled_path(text, whole, &length, &scale))
                return tn_fail(TN_E_INVALID, "--%s takes FILE:SCALE, not '%.*s'", option, (int)whole, text);
            if (!length || length >= sizeof path)
                return tn_fail(TN_E_INVALID, "--%s: '%.40s' is no path", option, text);
            memcpy(path, text, length);
            path[length] = '\0';
            TN_TRY(open(model, path, scale, opened));
            text += whole + (text[whole] != '\0');
        }
    return TN_OK;
}

static tn_status read_layer_range(const struct args *args, tn_session_params *p) {
    const char *text = args_text(args, "control-vector-layer-range");
    char *end, *last = NULL;
    if (!text) return TN_OK;
    const long first = strtol(text, &end, 10);
    const long until = strtol(end + (*end == ',' || *end == ' ' || *end == '-'), &last, 10);
    if (end == text || !last || last == end || *last || first < 0 || until < first || until > INT32_MAX || !until)
        return tn_fail(TN_E_INVALID, "--control-vector-layer-range takes two numbers of layers, not '%s'", text);
    p->control_first = (int32_t)first;
    p->control_last = (int32_t)until;
    return TN_OK;
}

static tn_status open_all(const struct args *args, const tn_model *model, tn_session_params *params,
                          struct opened_adapters *opened) {
    TN_TRY(open_files(args, "lora", false, model, open_adapter_file, opened));
    TN_TRY(open_files(args, "lora-scaled", true, model, open_adapter_file, opened));
    TN_TRY(open_files(args, "control-vector", false, model, open_control_file, opened));
    TN_TRY(open_files(args, "control-vector-scaled", true, model, open_control_file, opened));
    return read_layer_range(args, params);
}

tn_status adapters_open(const struct args *args, const tn_model *model, tn_session_params *params,
                        struct opened_adapters *opened) {
    *opened = (struct opened_adapters){0};
    const tn_status status = open_all(args, model, params, opened);
    if (status != TN_OK) {
        adapters_close(opened);
        return status;
    }
    for (size_t i = 0; i < opened->n_adapters && args_flag(args, "lora-init-without-apply"); i++)
        opened->adapters[i].scale = 0;
    params->adapters = opened->adapters;
    params->n_adapters = opened->n_adapters;
    params->controls = opened->controls;
    params->n_controls = opened->n_controls;
    return TN_OK;
}

void adapters_close(struct opened_adapters *opened) {
    for (size_t i = 0; i < opened->n_adapters; i++)
        tn_adapter_close((tn_adapter *)(uintptr_t)opened->adapters[i].adapter);
    for (size_t i = 0; i < opened->n_controls; i++)
        tn_control_vector_close((tn_control_vector *)(uintptr_t)opened->controls[i].vector);
    *opened = (struct opened_adapters){0};
}
