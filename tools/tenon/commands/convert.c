/* tenon convert: a Hugging Face model folder as a GGUF file. */
#include "convert/convert.h"
#include "cli/cli.h"
#include "cli/term.h"
#include "files/output_file.h"
#include "files/quant_mix.h"
#include "files/tensor_writer.h"

#include <stdio.h>
#include <string.h>

struct conversion {
    struct hf_model model, target; /* target: the model of an EAGLE-3 head */
    struct hf_weights *weights;
    const struct mix *mix;
    struct mix_model rules;
    tn_gguf_writer *writer;
    struct written_tensor *tensors;
    size_t count, capacity;
};

static tn_status add_converted_tensor(void *user, const tn_arch_tensor *wanted);

/* The dense feed-forward part of a layer, instead of the router that the metadata asks for. */
static tn_status add_dense_part(struct conversion *c, int layer) {
    static const char *const parts[] = {"gate", "up", "down"};
    const int64_t width = c->model.layout.width, ffn = c->model.layout.ffn;
    for (int i = 0; i < 3; i++) {
        char name[64];
        const bool down = i == 2;
        snprintf(name, sizeof name, "blk.%d.ffn_%s.weight", layer, parts[i]);
        const tn_arch_tensor part = {.name = name,
                                     .kind = TN_ARCH_MATRIX,
                                     .need = i == 0 ? TN_ARCH_USUAL : TN_ARCH_REQUIRED, /* some do without a gate */
                                     .n_dims = 2,
                                     .ne = {down ? ffn : width, down ? width : ffn, 1, 1}};
        TN_TRY(add_converted_tensor(c, &part));
    }
    return TN_OK;
}

static tn_status add_converted_tensor(void *user, const tn_arch_tensor *wanted) {
    struct conversion *c = user;
    int layer, skip = 0;
    if (sscanf(wanted->name, "blk.%d.%n", &layer, &skip) == 1 && strncmp(wanted->name + skip, "ffn_", 4) == 0 &&
        hf_weights_dense_layer(c->weights, layer)) {
        const char *part = wanted->name + skip;
        if (strcmp(part, "ffn_gate_inp.weight") == 0) return add_dense_part(c, layer);
        if (strstr(part, "_exps.") || strstr(part, "_shexp.") || strstr(part, "_inp.")) return TN_OK;
    }
    const char *name = wanted->name;
    tn_arch_tensor found = *wanted;
    tn_type raw;
    if (strcmp(name, "output.weight") == 0 && c->model.layout.traits & TN_ARCH_TIED) return TN_OK;
    if (wanted->need != TN_ARCH_REQUIRED && !hf_weights_has(c->weights, &found)) return TN_OK;
    const int64_t *full = found.ne;
    const int n_dims = found.n_dims;
    if (c->count == c->capacity) {
        size_t capacity = c->capacity ? c->capacity * 2 : 512;
        struct written_tensor *grown = tn_realloc(c->tensors, capacity * sizeof *grown);
        if (!grown) return TN_E_NOMEM;
        c->tensors = grown;
        c->capacity = capacity;
    }
    struct written_tensor *t = &c->tensors[c->count];
    *t = (struct written_tensor){.name = "of the model", .columns = full[0], .rows = full[1] * full[2] * full[3]};
    TN_TRY(hf_weights_add(c->weights, name, n_dims, full, &raw));
    t->raw = raw != TN_F32;
    t->type = t->raw ? raw : TN_F32;
    if (!t->raw && mix_quantizes(name, n_dims)) t->type = mix_type(c->mix, &c->rules, name, full);
    TN_TRY(tn_gguf_writer_add(c->writer, name, t->type, n_dims, full));
    c->count++;
    return TN_OK;
}

static tn_status convert_model(struct conversion *c, const struct args *args) {
    const char *type = args_text(args, "type"), *out = args->values[1];
    TN_TRY(hf_model_open(args->values[0], &c->model));
    const struct hf_model *vocabulary = &c->model;
    if (hf_is_eagle3(&c->model)) {
        const char *base = args_text(args, "base");
        if (!base)
            return tn_fail(TN_E_INVALID, "%s is an EAGLE-3 head: name the folder of its model with --base",
                           args->values[0]);
        TN_TRY(hf_model_open(base, &c->target));
        TN_TRY(hf_eagle3_target(&c->model, &c->target));
        vocabulary = &c->target;
    }
    if (args_flag(args, "vocab-only")) {
        TN_TRY(tn_gguf_writer_new(out, NULL, &c->writer));
        TN_TRY(hf_model_keys(&c->model, c->writer));
        TN_TRY(hf_vocab_keys(vocabulary, args_text(args, "pre"), c->writer));
        TN_TRY(tn_gguf_writer_begin(c->writer));
        return tn_gguf_writer_finish(c->writer);
    }
    c->model.task = args_text(args, "task");
    TN_TRY(hf_weights_open(&c->model, &c->weights));
    c->mix = mix_find(type ? type : tn_type_name(hf_weights_type(c->weights)));
    if (!c->mix || !tn_type_can_write(c->mix->type))
        return tn_fail(TN_E_INVALID, "unknown or read-only type \"%s\"", type ? type : "?");
    const struct layout *l = &c->model.layout;
    c->rules = (struct mix_model){.layers = l->layers,
                                  .experts = l->experts,
                                  .heads = l->heads,
                                  .kv_heads = l->kv_heads,
                                  .has_output = !(l->traits & (TN_ARCH_TIED | TN_ARCH_ENCODER)),
                                  .output_q8_0 = l->arch->output_q8_0};
    tn_gguf_writer_params params = {.part_bytes = args_size(args, "max-size")};
    TN_TRY(tn_gguf_writer_new(out, &params, &c->writer));
    TN_TRY(hf_model_keys(&c->model, c->writer));
    TN_TRY(hf_model_weight_keys(&c->model, c->weights, c->writer));
    TN_TRY(tn_gguf_writer_set_u32(c->writer, "general.file_type", c->mix->file_type));
    if (tn_type_is_quantized(c->mix->type))
        TN_TRY(tn_gguf_writer_set_u32(c->writer, "general.quantization_version", 2));
    TN_TRY(hf_vocab_keys(vocabulary, args_text(args, "pre"), c->writer));
    TN_TRY(layout_tensors(c->writer, add_converted_tensor, c));
    const tn_arch_tensor tokens = {
        .name = "d2t", .n_dims = 1, .ne = {hf_weights_guessed_tokens(c->weights), 1, 1, 1}};
    if (tokens.ne[0]) TN_TRY(add_converted_tensor(c, &tokens));
    TN_TRY(tn_gguf_writer_begin(c->writer));
    struct tensor_writer task = {.tensors = c->tensors,
                                 .tensor_count = c->count,
                                 .source = hf_weights_rows,
                                 .user = c->weights,
                                 .threads = (int)args_int(args, "threads"),
                                 .title = "converting"};
    TN_TRY(write_tensors(c->writer, &task));
    return tn_gguf_writer_finish(c->writer);
}

static int convert_adapter(const struct args *args) {
    const char *base = args_text(args, "base");
    size_t n = 0;
    if (!base) return fail_usage(args, "%s is an adapter: name the folder of its model with --base", args->values[0]);
    const tn_status status = peft_convert(args->values[0], base, args->values[1], (int)args_int(args, "threads"), &n);
    if (status != TN_OK) return fail_status(status, "convert");
    printf("%s: LoRA adapter of %zu weights\n", args->values[1], n);
    return EXIT_OK;
}

static int run_convert(const struct args *args) {
    struct conversion c = {0};
    char bytes[HUMAN_SIZE], count[HUMAN_SIZE];
    double parameters = 0;
    const bool force = args_flag(args, "force"), split = args_size(args, "max-size") > 0;
    int code = split ? check_split_output(args->values[1], force) : check_output(args->values[1], force, NULL, 0);
    if (code) return code;
    if (is_peft_folder(args->values[0])) return convert_adapter(args);
    tn_status status = convert_model(&c, args);
    if (status == TN_OK) {
        if (c.weights) hf_weights_report(c.weights);
        for (size_t i = 0; i < c.count; i++) parameters += (double)c.tensors[i].columns * (double)c.tensors[i].rows;
        printf("%s: %s, %s parameters in %zu tensors, %s\n", args->values[1], c.model.layout.arch->name,
               human_count(count, parameters), c.count, human_bytes(bytes, tn_gguf_writer_bytes(c.writer)));
    }
    tn_gguf_writer_free(c.writer);
    hf_weights_close(c.weights);
    hf_model_close(&c.model);
    if (c.target.folder) hf_model_close(&c.target);
    tn_free(c.tensors);
    return status == TN_OK ? EXIT_OK : fail_status(status, "convert");
}

static const struct option options[] = {
    {.name = "type",
     .value = "TYPE",
     .kind = OPTION_TEXT,
     .help = "type of the weights, as for tenon quantize; by default the type they have in FOLDER"},
    {.name = "pre",
     .value = "NAME",
     .kind = OPTION_TEXT,
     .help = "name of the pre-tokenizer, when it is not recognised"},
    {.name = "vocab-only",
     .help = "convert only metadata and vocabulary, enough for tokenize and detokenize; needs no weights",
     .kind = OPTION_FLAG},
    {.name = "max-size",
     .value = "SIZE",
     .kind = OPTION_SIZE,
     .help = "split the result into files of at most this size"},
    {.name = "task",
     .value = "NAME",
     .kind = OPTION_TEXT,
     .help = "of a folder with adapters for several tasks (Jina embeddings 3): add the adapter of this one to the "
             "weights"},
    {.name = "base",
     .value = "FOLDER",
     .kind = OPTION_TEXT,
     .aliases = "--target-model-dir",
     .help = "of a LoRA adapter or an EAGLE-3 head: the folder of its model"},
    OPTION_THREADS,
    OPTION_FORCE,
    {0},
};

const struct command command_convert = {
    .name = "convert",
    .summary = "turn a Hugging Face model folder into a GGUF file",
    .section = SECTION_FILES,
    .arguments = "FOLDER OUT",
    .min_arguments = 2,
    .max_arguments = 2,
    .options = options,
    .details = "FOLDER holds config.json, model.safetensors (or its shards with their index), tokenizer.json or "
               "tokenizer.model, and usually tokenizer_config.json and a chat template.\n\n"
               "tenon help --architectures lists the model classes that can be converted. "
               "Of vision models only the language model is converted.\n\n"
               "A PEFT folder, with adapter_config.json and adapter_model.safetensors, becomes a LoRA adapter for "
               "--lora and tenon lora. The folder of an EAGLE-3 head becomes a file for --model-draft; its tokenizer "
               "is that of its model.",
    .examples = "tenon convert ./Qwen3-0.6B qwen3.gguf\n"
                "tenon convert ./Llama-3.2-1B-Instruct llama.gguf --type Q4_K_M\n"
                "tenon convert ./my-adapter adapter.gguf --base ./Qwen3-0.6B\n"
                "tenon convert ./EAGLE3-LLaMA3.1 head.gguf --base ./Llama-3.1-8B-Instruct\n",
    .run = run_convert,
};
