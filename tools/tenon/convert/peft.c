/* Conversion of a PEFT folder, a LoRA adapter of a Hugging Face model, to a GGUF adapter. */
#include "convert/convert.h"
#include "files/tensor_writer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool is_peft_folder(const char *folder) {
    char path[4096];
    return (size_t)snprintf(path, sizeof path, "%s/adapter_config.json", folder) < sizeof path &&
           access(path, R_OK) == 0;
}

struct peft_adapter {
    struct hf_model base;
    struct hf_weights *a, *b;
    tn_gguf_writer *keys; /* the base model's, which name its tensors; never written */
    tn_gguf_writer *writer;
    struct written_tensor *tensors; /* A and B of each in turns */
    size_t count, capacity;         /* weights */
};

/* alpha so that alpha / rank is the adapter's scale. */
static tn_status read_peft_config(const char *folder, float *alpha) {
    json_t *config;
    TN_TRY(hf_load_json(folder, "adapter_config.json", &config));
    const char *type = json_string_value(json_object_get(config, "peft_type"));
    const double rank = config_number(config, "r", 0), given = config_number(config, "lora_alpha", 0);
    const bool root = config_truth(config, "use_rslora", false);
    tn_status status = TN_OK;
    if (!type || strcmp(type, "LORA") != 0)
        status = tn_fail(TN_E_UNSUPPORTED, "%s: adapters of the type %s are not supported, only LORA", folder,
                         type ? type : "?");
    else if (config_truth(config, "use_dora", false))
        status = tn_fail(TN_E_UNSUPPORTED, "%s: use_dora is not supported", folder);
    else if (json_object_size(json_object_get(config, "alpha_pattern")) ||
             (root && json_object_size(json_object_get(config, "rank_pattern"))))
        status = tn_fail(TN_E_UNSUPPORTED, "%s: weights with scales of their own (alpha_pattern) are not supported",
                         folder);
    else if (!(rank >= 1) || !(rank <= 1 << 20) || !isfinite(given))
        status = tn_fail(TN_E_FORMAT, "%s/adapter_config.json: r is %g, lora_alpha %g", folder, rank, given);
    *alpha = (float)(root ? given * sqrt(rank) : given);
    json_decref(config);
    return status;
}

static tn_status add_peft_weight(void *user, const tn_arch_tensor *wanted) {
    struct peft_adapter *p = user;
    int64_t in, rank, a_rank, rows;
    tn_type raw;
    if (strncmp(wanted->name, "cls", 3) == 0) return TN_OK; /* heads of classifiers share names with the output */
    if (!hf_weights_shape(p->b, wanted->name, &rank, &rows)) return TN_OK;
    if (p->count == p->capacity) {
        const size_t capacity = p->capacity ? 2 * p->capacity : 256;
        struct written_tensor *tensors = tn_realloc(p->tensors, 2 * capacity * sizeof *tensors);
        if (!tensors) return TN_E_NOMEM;
        p->tensors = tensors;
        p->capacity = capacity;
    }
    if (wanted->n_dims != 2)
        return tn_fail(TN_E_UNSUPPORTED, "an adapter changes \"%s\": its conversion is not supported", wanted->name);
    /* A weight that is a part of the source's has rows of its own; others have those of the source. */
    const int64_t b_ne[2] = {rank, wanted->ne[1] > 0 ? wanted->ne[1] : rows};
    TN_TRY(hf_weights_add(p->b, wanted->name, 2, b_ne, &raw));
    TN_TRY(hf_weights_add_plain(p->a, wanted->name));
    if (!hf_weights_shape(p->a, wanted->name, &in, &a_rank) || a_rank != rank)
        return tn_fail(TN_E_SHAPE, "the matrices of \"%s\" have the ranks %lld and %lld", wanted->name,
                       (long long)a_rank, (long long)rank);
    const int64_t a_ne[2] = {in, rank};
    char name[160];
    snprintf(name, sizeof name, "%s.lora_a", wanted->name);
    TN_TRY(tn_gguf_writer_add(p->writer, name, TN_F32, 2, a_ne));
    snprintf(name, sizeof name, "%s.lora_b", wanted->name);
    TN_TRY(tn_gguf_writer_add(p->writer, name, TN_F32, 2, b_ne));
    struct written_tensor *t = &p->tensors[2 * p->count++];
    t[0] = (struct written_tensor){"of the adapter", TN_F32, in, rank, false, NULL, rank};
    t[1] = (struct written_tensor){"of the adapter", TN_F32, rank, b_ne[1], false, NULL, b_ne[1]};
    return TN_OK;
}

static tn_status read_peft_rows(void *user, size_t tensor, int64_t first, int64_t count, void *out) {
    struct peft_adapter *p = user;
    return hf_weights_rows(tensor % 2 ? p->b : p->a, tensor / 2, first, count, out);
}

static tn_status write_peft(struct peft_adapter *p, const char *folder, const char *base, const char *out,
                            int threads) {
    float alpha;
    TN_TRY(read_peft_config(folder, &alpha));
    TN_TRY(hf_model_open(base, &p->base));
    TN_TRY(hf_weights_open_lora(&p->base, folder, 'A', &p->a));
    TN_TRY(hf_weights_open_lora(&p->base, folder, 'B', &p->b));
    TN_TRY(tn_gguf_writer_new(out, NULL, &p->keys));
    TN_TRY(hf_model_keys(&p->base, p->keys));
    TN_TRY(tn_gguf_writer_new(out, NULL, &p->writer));
    TN_TRY(tn_gguf_writer_set_cstr(p->writer, "general.type", "adapter"));
    TN_TRY(tn_gguf_writer_set_cstr(p->writer, "general.architecture", p->base.layout.arch->name));
    TN_TRY(tn_gguf_writer_set_cstr(p->writer, "adapter.type", "lora"));
    TN_TRY(tn_gguf_writer_set_f32(p->writer, "adapter.lora.alpha", alpha));
    TN_TRY(layout_tensors(p->keys, add_peft_weight, p));
    const char *unused = hf_weights_unused(p->b) ? hf_weights_unused(p->b) : hf_weights_unused(p->a);
    if (unused)
        return tn_fail(TN_E_UNSUPPORTED, "%s: the adapter changes \"%s\", whose conversion is not supported", folder,
                       unused);
    if (!p->count) return tn_fail(TN_E_FORMAT, "%s: the adapter changes no weights", folder);
    TN_TRY(tn_gguf_writer_begin(p->writer));
    const struct tensor_writer task = {.tensors = p->tensors,
                                       .tensor_count = 2 * p->count,
                                       .source = read_peft_rows,
                                       .user = p,
                                       .threads = threads,
                                       .title = "converting"};
    TN_TRY(write_tensors(p->writer, &task));
    return tn_gguf_writer_finish(p->writer);
}

tn_status peft_convert(const char *folder, const char *base, const char *out, int threads, size_t *n_weights) {
    struct peft_adapter p = {0};
    const tn_status status = write_peft(&p, folder, base, out, threads);
    *n_weights = p.count;
    tn_gguf_writer_free(p.writer);
    tn_gguf_writer_free(p.keys);
    hf_weights_close(p.a);
    hf_weights_close(p.b);
    hf_model_close(&p.base);
    tn_free(p.tensors);
    return status;
}
