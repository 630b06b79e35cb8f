/* tenon convert: a Hugging Face model folder as a GGUF file. */
#include "convert/convert.h"
#include "cli/cli.h"
#include "cli/term.h"
#include "files/quant_mix.h"
#include "files/tensor_writer.h"

#include <string.h>

struct job {
    struct hf_model model;
    struct hf_weights *weights;
    const struct mix *mix;
    struct mix_model rules;
    tn_gguf_writer *writer;
    struct stream_tensor *tensors;
    size_t count, capacity;
};

static tn_status add_tensor(void *user, const char *name, enum layout_kind kind, int n_dims, const int64_t *ne) {
    struct job *job = user;
    int64_t full[4] = {1, 1, 1, 1};
    tn_type raw;
    for (int i = 0; i < n_dims; i++) full[i] = ne[i];
    if (job->count == job->capacity) {
        size_t capacity = job->capacity ? job->capacity * 2 : 512;
        struct stream_tensor *grown = tn_realloc(job->tensors, capacity * sizeof *grown);
        if (!grown) return TN_E_NOMEM;
        job->tensors = grown;
        job->capacity = capacity;
    }
    struct stream_tensor *t = &job->tensors[job->count];
    *t = (struct stream_tensor){.name = "of the model", .columns = full[0], .rows = full[1] * full[2] * full[3]};
    TN_TRY(hf_weights_add(job->weights, name, n_dims, ne, &raw));
    t->raw = raw != TN_F32;
    t->type = t->raw ? raw : TN_F32;
    if (!t->raw && mix_quantizes(name, n_dims)) t->type = mix_type(job->mix, &job->rules, name, full);
    TN_TRY(tn_gguf_writer_add(job->writer, name, t->type, n_dims, ne));
    job->count++;
    return TN_OK;
}

static tn_status convert(struct job *job, const struct args *args) {
    const char *type = args_text(args, "type"), *out = args->values[1];
    TN_TRY(hf_model_open(args->values[0], &job->model));
    if (args_flag(args, "vocab-only")) {
        TN_TRY(tn_gguf_writer_new(out, NULL, &job->writer));
        TN_TRY(hf_model_keys(&job->model, job->writer));
        TN_TRY(hf_vocab_keys(&job->model, args_text(args, "pre"), job->writer));
        TN_TRY(tn_gguf_writer_begin(job->writer));
        return tn_gguf_writer_finish(job->writer);
    }
    TN_TRY(hf_weights_open(&job->model, &job->weights));
    job->mix = mix_find(type ? type : tn_type_name(hf_weights_type(job->weights)));
    if (!job->mix || !tn_type_can_write(job->mix->type))
        return tn_fail(TN_E_INVALID, "no type that can be written is called \"%s\"", type ? type : "?");
    const struct layout *l = &job->model.layout;
    job->rules = (struct mix_model){.layers = l->layers,
                                    .experts = l->experts,
                                    .heads = l->heads,
                                    .kv_heads = l->kv_heads,
                                    .has_output = !(l->features & (L_TIED | L_ENCODER)),
                                    .falcon = strcmp(l->arch->name, "falcon") == 0};
    TN_TRY(
        tn_gguf_writer_new(out, &(tn_gguf_writer_params){.part_bytes = args_size(args, "max-size")}, &job->writer));
    TN_TRY(hf_model_keys(&job->model, job->writer));
    TN_TRY(tn_gguf_writer_set_u32(job->writer, "general.file_type", job->mix->file_type));
    if (tn_type_is_quantized(job->mix->type))
        TN_TRY(tn_gguf_writer_set_u32(job->writer, "general.quantization_version", 2));
    TN_TRY(hf_vocab_keys(&job->model, args_text(args, "pre"), job->writer));
    TN_TRY(layout_tensors(l, add_tensor, job));
    TN_TRY(tn_gguf_writer_begin(job->writer));
    struct stream stream = {.tensors = job->tensors,
                            .tensor_count = job->count,
                            .source = hf_weights_rows,
                            .user = job->weights,
                            .threads = (int)args_int(args, "threads"),
                            .title = "converting"};
    TN_TRY(stream_write(job->writer, &stream));
    return tn_gguf_writer_finish(job->writer);
}

static int run_convert(const struct args *args) {
    struct job job = {0};
    char bytes[HUMAN_SIZE], count[HUMAN_SIZE];
    double parameters = 0;
    tn_status status = convert(&job, args);
    if (status == TN_OK) {
        if (job.weights) hf_weights_report(job.weights);
        for (size_t i = 0; i < job.count; i++)
            parameters += (double)job.tensors[i].columns * (double)job.tensors[i].rows;
        printf("%s: %s, %s parameters in %zu tensors, %s\n", args->values[1], job.model.class->arch,
               human_count(count, parameters), job.count, human_bytes(bytes, tn_gguf_writer_bytes(job.writer)));
    }
    tn_gguf_writer_free(job.writer);
    hf_weights_close(job.weights);
    hf_model_close(&job.model);
    tn_free(job.tensors);
    return status == TN_OK ? EXIT_OK : fail_status(status, "convert");
}

static const struct option options[] = {
    {.name = "type",
     .value = "TYPE",
     .kind = OPTION_TEXT,
     .help = "type or mix of the weights, as for quantize; else the type they have in the folder"},
    {.name = "pre",
     .value = "NAME",
     .kind = OPTION_TEXT,
     .help = "name of the pre-tokenizer, where it is not recognised"},
    {.name = "vocab-only",
     .help = "only the metadata and the vocabulary, for tokenize and detokenize; needs no weights",
     .kind = OPTION_FLAG},
    {.name = "max-size",
     .value = "SIZE",
     .kind = OPTION_SIZE,
     .help = "split the result into files of at most this size"},
    OPTION_THREADS,
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
    .details =
        "FOLDER holds config.json, model.safetensors (or its shards with their index), tokenizer.json or "
        "tokenizer.model, and usually tokenizer_config.json and a chat template.\n\n"
        "Model classes: LlamaForCausalLM, MistralForCausalLM, MixtralForCausalLM, Ministral3ForCausalLM, "
        "Qwen2ForCausalLM, Qwen2MoeForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM, GemmaForCausalLM, "
        "Gemma2ForCausalLM, Gemma3ForCausalLM, PhiForCausalLM, Phi3ForCausalLM, GPT2LMHeadModel, GPTNeoXForCausalLM, "
        "FalconForCausalLM, MptForCausalLM, GPTBigCodeForCausalLM, Starcoder2ForCausalLM, StableLmForCausalLM, "
        "SmolLM3ForCausalLM, OlmoForCausalLM, Olmo2ForCausalLM, OlmoeForCausalLM, GraniteForCausalLM, "
        "GraniteMoeForCausalLM, GptOssForCausalLM, InternLM2ForCausalLM, CohereForCausalLM, BertModel, "
        "NomicBertModel. "
        "Of models with vision, the language model is taken.",
    .examples = "tenon convert ./Qwen3-0.6B qwen3.gguf\n"
                "tenon convert ./Llama-3.2-1B-Instruct llama.gguf --type Q4_K_M\n",
    .run = run_convert,
};
