/* tenon lora: merge LoRA adapters into a model. */
#include "cli/cli.h"
#include "cli/term.h"
#include "engine/adapter_options.h"
#include "files/output_file.h"
#include "files/tensor_writer.h"
#include "tenon/gguf.h"

#include <string.h>
#include <unistd.h>

struct lora_merge {
    tn_model *model;
    const tn_gguf *file;
    tn_adapter_use uses[TN_ADAPTERS_MOST];
    int n_uses;
    struct written_tensor *plan;
    size_t n_merged;
};

/* FILE:SCALE, or FILE with the scale 1. A file of the whole name counts first. */
static tn_status open_merged_adapter(struct lora_merge *m, const char *text) {
    char path[4096];
    size_t length = strlen(text);
    float scale = 1;
    if (access(text, F_OK) != 0) (void)split_scaled_path(text, length, &length, &scale);
    if (length >= sizeof path) return tn_fail(TN_E_INVALID, "the path '%.40s…' is too long", text);
    memcpy(path, text, length);
    path[length] = '\0';
    tn_adapter *adapter;
    TN_TRY(tn_adapter_open(m->model, path, &adapter));
    m->uses[m->n_uses++] = (tn_adapter_use){adapter, scale};
    return TN_OK;
}

static bool is_merged(const struct lora_merge *m, const char *name) {
    for (int i = 0; i < m->n_uses; i++)
        for (size_t k = 0; tn_adapter_weight(m->uses[i].adapter, k); k++)
            if (strcmp(tn_adapter_weight(m->uses[i].adapter, k), name) == 0) return true;
    return false;
}

/* Weights whose change would mean something else, or which cannot be written. */
static tn_status check_merged(const struct lora_merge *m, const tn_gguf_tensor *t, tn_type type) {
    char scale[256];
    const size_t length = strlen(t->name);
    if (strcmp(t->name, "token_embd.weight") == 0 && !tn_gguf_find_tensor(m->file, "output.weight"))
        return tn_fail(TN_E_UNSUPPORTED,
                       "an adapter changes token_embd.weight, which is the output matrix of this model as well: "
                       "merging would change both; use the adapter with --lora");
    if (length > 7 && (size_t)snprintf(scale, sizeof scale, "%.*s.scale", (int)length - 7, t->name) < sizeof scale &&
        tn_gguf_find_tensor(m->file, scale))
        return tn_fail(TN_E_UNSUPPORTED, "'%s' has a scale of its own (%s): use the adapter with --lora", t->name,
                       scale);
    if (!tn_type_can_read(t->type) || !tn_type_can_write(type))
        return tn_fail(TN_E_UNSUPPORTED, "'%s' is %s, which cannot be written: choose another type with --type",
                       t->name, tn_type_name(type));
    if (t->ne[0] % tn_type_block(type))
        return tn_fail(TN_E_SHAPE, "rows of '%s' do not divide into blocks of %s: choose another --type", t->name,
                       tn_type_name(type));
    return TN_OK;
}

static tn_status plan_merged(struct lora_merge *m, const char *type_name, tn_gguf_writer *w) {
    tn_type chosen = TN_TYPE_LIMIT;
    if (type_name) TN_TRY(tn_type_parse(type_name, &chosen));
    TN_TRY(tn_gguf_writer_copy_keys(w, m->file));
    for (uint64_t i = 0; i < tn_gguf_tensor_count(m->file); i++) {
        const tn_gguf_tensor *t = tn_gguf_tensor_at(m->file, i);
        const bool merged = is_merged(m, t->name);
        const tn_type type = merged && type_name ? chosen : t->type;
        if (merged) TN_TRY(check_merged(m, t, type));
        m->n_merged += merged;
        m->plan[i] = (struct written_tensor){.name = t->name,
                                             .type = type,
                                             .columns = t->ne[0],
                                             .rows = t->ne[1] * t->ne[2] * t->ne[3],
                                             .matrix_rows = t->ne[1],
                                             .raw = !merged};
        TN_TRY(tn_gguf_writer_add(w, t->name, type, t->n_dims, t->ne));
    }
    return TN_OK;
}

static tn_status read_merged_rows(void *user, size_t tensor, int64_t first, int64_t count, void *out) {
    const struct lora_merge *m = user;
    const tn_gguf_tensor *t = tn_gguf_tensor_at(m->file, tensor);
    const size_t row = (size_t)(t->ne[0] / tn_type_block(t->type)) * tn_type_bytes(t->type);
    if (m->plan[tensor].raw) return tn_gguf_read(m->file, t, (size_t)first * row, out, (size_t)count * row);
    void *raw = tn_malloc((size_t)count * row);
    tn_status status = raw ? tn_gguf_read(m->file, t, (size_t)first * row, raw, (size_t)count * row) : TN_E_NOMEM;
    if (status == TN_OK) status = tn_type_to_f32(t->type, raw, out, t->ne[0] * count);
    tn_free(raw);
    for (int i = 0; i < m->n_uses && status == TN_OK; i++)
        status =
            tn_adapter_merge(m->uses[i].adapter, t->name, m->uses[i].scale, first * t->ne[0], count * t->ne[0], out);
    return status;
}

static tn_status write_merged(struct lora_merge *m, const struct args *args, const char *out) {
    tn_gguf_writer *w;
    m->plan = tn_calloc((size_t)tn_gguf_tensor_count(m->file) + 1, sizeof *m->plan);
    if (!m->plan) return TN_E_NOMEM;
    if (!tn_gguf_has_data(m->file))
        return tn_fail(TN_E_STATE, "%s has no tensor data; it is only for planning", tn_gguf_path(m->file));
    TN_TRY(tn_gguf_writer_new(out, NULL, &w));
    tn_status status = plan_merged(m, args_text(args, "type"), w);
    if (status == TN_OK) status = tn_gguf_writer_begin(w);
    const struct tensor_writer task = {.tensors = m->plan,
                                       .tensor_count = (size_t)tn_gguf_tensor_count(m->file),
                                       .source = read_merged_rows,
                                       .user = m,
                                       .threads = (int)args_int(args, "threads"),
                                       .title = "merging"};
    if (status == TN_OK) status = write_tensors(w, &task);
    if (status == TN_OK) status = tn_gguf_writer_finish(w);
    tn_gguf_writer_free(w);
    return status;
}

static int run_lora(const struct args *args) {
    struct lora_merge m = {0};
    const char *out = args->values[args->count - 1];
    if (args->count - 2 > TN_ADAPTERS_MOST) return fail_usage(args, "more than %d adapters", TN_ADAPTERS_MOST);
    int code = check_output(out, args_flag(args, "force"), args->values, (size_t)args->count - 1);
    if (code) return code;
    tn_status status = tn_model_open(args->values[0], NULL, &m.model);
    for (int i = 1; i < args->count - 1 && status == TN_OK; i++) status = open_merged_adapter(&m, args->values[i]);
    if (status == TN_OK) {
        m.file = tn_model_file(m.model);
        status = write_merged(&m, args, out);
    }
    code = status == TN_OK ? EXIT_OK : fail_status(status, "lora");
    if (!code)
        printf("%s: %d adapter%s merged into %zu weights\n", out, m.n_uses, m.n_uses == 1 ? "" : "s", m.n_merged);
    for (int i = 0; i < m.n_uses; i++) tn_adapter_close((tn_adapter *)(uintptr_t)m.uses[i].adapter);
    tn_model_close(m.model);
    tn_free(m.plan);
    return code;
}

static const struct option options[] = {
    OPTION_THREADS,
    OPTION_FORCE,
    {.name = "type",
     .value = "TYPE",
     .kind = OPTION_TEXT,
     .help = "type of the changed weights, by default their current type"},
    {0},
};

const struct command command_lora = {
    .name = "lora",
    .summary = "merge LoRA adapters into a model",
    .section = SECTION_FILES,
    .arguments = "MODEL ADAPTER[:SCALE]… OUT",
    .min_arguments = 3,
    .max_arguments = -1,
    .options = options,
    .details =
        "Weights that an adapter changes are converted to floats, changed and written in their type again. The "
        "others are copied. Quantized weights lose precision a second time: merge into an f16, bf16 or f32 model and "
        "quantize the result where that matters, or use the adapter beside the model with --lora.\n\n"
        "Memory use does not grow with the size of the model. OUT appears when it is complete.",
    .examples = "tenon lora model.gguf poet.gguf merged.gguf\n"
                "tenon lora model.gguf poet.gguf:0.5 lawyer.gguf:1.5 merged.gguf --type f16\n",
    .run = run_lora,
};
