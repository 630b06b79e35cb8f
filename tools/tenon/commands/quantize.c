/* tenon quantize: store the weights of a model in smaller types. */
#include "cli/cli.h"
#include "cli/term.h"
#include "files/importance.h"
#include "files/output_file.h"
#include "files/quant_mix.h"
#include "files/tensor_writer.h"
#include "tenon/gguf.h"

#include <inttypes.h>
#include <math.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

/* ---- Type of each tensor ---- */

struct type_override {
    regex_t regex;
    tn_type type;
};

struct quantization {
    const tn_gguf *file;
    const struct mix *mix;
    struct mix_model model;
    struct importance *importance;
    bool keep_output, pure;
    int threads;
    struct type_override *overrides;
    int override_count;
    struct written_tensor *plan;
    uint64_t from_blocks; /* tensors that are already quantized */
};

static tn_status parse_override(const char *text, struct type_override *out) {
    const char *equals = strrchr(text, '=');
    char pattern[512], message[128];
    if (!equals || equals == text || (size_t)(equals - text) >= sizeof pattern)
        return tn_fail(TN_E_INVALID, "--tensor-type %s: expected REGEX=TYPE", text);
    TN_TRY(tn_type_parse(equals + 1, &out->type));
    if (!tn_type_can_write(out->type))
        return tn_fail(TN_E_UNSUPPORTED, "--tensor-type %s: %s cannot be written", text, tn_type_name(out->type));
    snprintf(pattern, sizeof pattern, "%.*s", (int)(equals - text), text);
    int bad = regcomp(&out->regex, pattern, REG_EXTENDED | REG_NOSUB);
    if (bad) {
        regerror(bad, &out->regex, message, sizeof message);
        return tn_fail(TN_E_SYNTAX, "--tensor-type %s: %s", text, message);
    }
    return TN_OK;
}

/* The type of one tensor, which --output-tensor-type and --token-embedding-type name. */
static tn_status parse_named(const struct args *args, const char *option, const char *pattern,
                             struct type_override *overrides, int *count) {
    const char *type = args_text(args, option);
    char text[128];
    if (!type) return TN_OK;
    snprintf(text, sizeof text, "%s=%s", pattern, type);
    TN_TRY(parse_override(text, &overrides[*count]));
    ++*count;
    return TN_OK;
}

static tn_status choose_type(const struct quantization *q, const tn_gguf_tensor *t, tn_type *type) {
    *type = t->type;
    for (int i = q->override_count; i-- > 0;) { /* the last one given wins */
        if (regexec(&q->overrides[i].regex, t->name, 0, NULL, 0) != 0) continue;
        *type = q->overrides[i].type;
        if (t->ne[0] % tn_type_block(*type) == 0) return TN_OK;
        return tn_fail(TN_E_SHAPE, "tensor \"%s\": rows of %" PRId64 " do not divide into %s blocks of %" PRId64,
                       t->name, t->ne[0], tn_type_name(*type), tn_type_block(*type));
    }
    if (!mix_quantizes(t->name, t->n_dims)) return TN_OK;
    if (!tn_type_is_float(t->type) && !tn_type_is_quantized(t->type)) return TN_OK; /* integers are copied */
    if (q->keep_output && strcmp(t->name, q->model.has_output ? "output.weight" : "token_embd.weight") == 0)
        return TN_OK;
    *type = q->pure ? mix_fitting(q->mix->type, t->ne[0]) : mix_type(q->mix, &q->model, t->name, t->ne);
    return TN_OK;
}

static tn_status plan_tensor(struct quantization *q, size_t i) {
    const tn_gguf_tensor *t = tn_gguf_tensor_at(q->file, i);
    struct written_tensor *plan = &q->plan[i];
    *plan = (struct written_tensor){
        .name = t->name, .columns = t->ne[0], .rows = t->ne[1] * t->ne[2] * t->ne[3], .matrix_rows = t->ne[1]};
    TN_TRY(choose_type(q, t, &plan->type));
    plan->raw = plan->type == t->type;
    if (plan->raw) return TN_OK;
    if (!tn_type_can_read(t->type) || !tn_type_can_write(plan->type))
        return tn_fail(TN_E_UNSUPPORTED, "tensor \"%s\": %s cannot be converted to %s", t->name,
                       tn_type_name(t->type), tn_type_name(plan->type));
    q->from_blocks += tn_type_is_quantized(t->type);
    if (!tn_type_is_quantized(plan->type)) return TN_OK;
    return importance_find(q->importance, t->name, t->ne[0], t->ne[2] * t->ne[3], &plan->importance);
}

/* ---- Writing ---- */

static tn_status read_source_rows(void *user, size_t tensor, int64_t first, int64_t count, void *out) {
    const struct quantization *q = user;
    const tn_gguf_tensor *t = tn_gguf_tensor_at(q->file, tensor);
    size_t row = (size_t)(t->ne[0] / tn_type_block(t->type)) * tn_type_bytes(t->type);
    size_t offset = (size_t)first * row, size = (size_t)count * row;
    if (q->plan[tensor].raw || t->type == TN_F32) return tn_gguf_read(q->file, t, offset, out, size);
    void *raw = tn_malloc(size);
    if (!raw) return TN_E_NOMEM;
    tn_status status = tn_gguf_read(q->file, t, offset, raw, size);
    if (status == TN_OK) status = tn_type_to_f32(t->type, raw, out, t->ne[0] * count);
    tn_free(raw);
    return status;
}

static tn_status set_keys(const struct quantization *q, tn_gguf_writer *w) {
    TN_TRY(tn_gguf_writer_copy_keys(w, q->file));
    TN_TRY(tn_gguf_writer_set_u32(w, "general.file_type", q->mix->file_type));
    if (!tn_type_is_quantized(q->mix->type)) return TN_OK;
    return tn_gguf_writer_set_u32(w, "general.quantization_version", 2);
}

static tn_status write_quantized(struct quantization *q, const struct args *args, tn_gguf_writer *w, double *errors,
                                 double *squares) {
    size_t count = (size_t)tn_gguf_tensor_count(q->file);
    TN_TRY(set_keys(q, w));
    for (size_t i = 0; i < count; i++) {
        const tn_gguf_tensor *t = tn_gguf_tensor_at(q->file, i);
        TN_TRY(plan_tensor(q, i));
        TN_TRY(tn_gguf_writer_add(w, t->name, q->plan[i].type, t->n_dims, t->ne));
    }
    if (q->from_blocks && !args_flag(args, "requantize"))
        return tn_fail(TN_E_STATE,
                       "%" PRIu64
                       " tensors are already quantized and would lose precision twice; use an f16, bf16 or "
                       "f32 model, or pass --requantize",
                       q->from_blocks);
    TN_TRY(tn_gguf_writer_begin(w));
    struct tensor_writer task = {.tensors = q->plan,
                                 .tensor_count = count,
                                 .source = read_source_rows,
                                 .user = q,
                                 .threads = q->threads,
                                 .title = "quantizing",
                                 .squared_error = errors,
                                 .squared_values = squares};
    TN_TRY(write_tensors(w, &task));
    return tn_gguf_writer_finish(w);
}

static void print_quantized(const struct quantization *q, const tn_gguf_writer *w, const char *out, double seconds,
                            const double *errors, const double *squares) {
    char before[HUMAN_SIZE], after[HUMAN_SIZE], took[HUMAN_SIZE];
    uint64_t in_bytes = tn_gguf_file_bytes(q->file), out_bytes = tn_gguf_writer_bytes(w);
    double weights = 0, bits = 0;
    for (uint64_t i = 0; i < tn_gguf_tensor_count(q->file); i++) {
        double n = (double)q->plan[i].columns * (double)q->plan[i].rows;
        weights += n;
        bits += n * 8 * (double)tn_type_bytes(q->plan[i].type) / (double)tn_type_block(q->plan[i].type);
    }
    if (errors)
        for (uint64_t i = 0; i < tn_gguf_tensor_count(q->file); i++)
            if (!q->plan[i].raw)
                printf("%-40s  %-7s  relative error %.6f\n", q->plan[i].name, tn_type_name(q->plan[i].type),
                       squares[i] > 0 ? sqrt(errors[i] / squares[i]) : 0.0);
    printf("%s: %s → %s (%.1f %%), %.2f bits per weight, in %s\n", out, human_bytes(before, in_bytes),
           human_bytes(after, out_bytes), 100.0 * (double)out_bytes / (double)in_bytes,
           weights > 0 ? bits / weights : 0.0, human_seconds(took, seconds));
}

/* ---- Command ---- */

static int quantize(const struct args *args, struct quantization *q) {
    const char *out = args->values[1];
    size_t count = (size_t)tn_gguf_tensor_count(q->file);
    bool measure = args_flag(args, "error");
    double *errors = measure ? tn_calloc(count, sizeof *errors) : NULL;
    double *squares = measure ? tn_calloc(count, sizeof *squares) : NULL;
    q->plan = tn_calloc(count, sizeof *q->plan);
    tn_gguf_writer *w = NULL;
    uint64_t start = tn_time_ns();
    tn_status status = q->plan && (!measure || (errors && squares)) ? TN_OK : TN_E_NOMEM;
    if (status == TN_OK && !tn_gguf_has_data(q->file))
        status = tn_fail(TN_E_STATE, "%s has no tensor data; it is only for planning", tn_gguf_path(q->file));
    if (status == TN_OK) status = tn_gguf_writer_new(out, NULL, &w);
    if (status == TN_OK) status = write_quantized(q, args, w, errors, squares);
    if (status == TN_OK) print_quantized(q, w, out, (double)(tn_time_ns() - start) * 1e-9, errors, squares);
    tn_gguf_writer_free(w);
    tn_free(q->plan);
    tn_free(errors);
    tn_free(squares);
    return status == TN_OK ? EXIT_OK : fail_status(status, "quantize");
}

static int run_quantize(const struct args *args) {
    struct quantization q = {.keep_output = args_flag(args, "keep-output"),
                             .pure = args_flag(args, "pure"),
                             .mix = mix_find(args->values[2])};
    if (!q.mix) {
        fprintf(stderr, "Types:");
        for (const struct mix *mix = mix_table; mix->name; mix++)
            if (tn_type_can_write(mix->type)) fprintf(stderr, " %s", mix->name);
        fputc('\n', stderr);
        return fail_usage(args, "unknown type \"%s\"", args->values[2]);
    }
    char *end = NULL;
    q.threads = args->count > 3 ? (int)strtol(args->values[3], &end, 10) : (int)args_int(args, "threads");
    if (end && (end == args->values[3] || *end || q.threads < 0 || q.threads > 4096))
        return fail_usage(args, "unexpected argument \"%s\"", args->values[3]);
    if (!tn_type_can_write(q.mix->type)) return fail("%s can be read but not written", q.mix->name);
    struct type_override overrides[64 + 2];
    tn_gguf *file = NULL;
    tn_status status = TN_OK;
    const char *inputs[] = {args->values[0], args_text(args, "importance")};
    int code = check_output(args->values[1], args_flag(args, "force"), inputs, 2);
    if (code) return code;
    q.overrides = overrides;
    if (args_repeats(args, "tensor-type") > 64) return fail_usage(args, "--tensor-type was given more than 64 times");
    status = parse_named(args, "output-tensor-type", "^output\\.weight$", overrides, &q.override_count);
    if (status == TN_OK)
        status = parse_named(args, "token-embedding-type", "^token_embd\\.weight$", overrides, &q.override_count);
    for (int i = 0; status == TN_OK && i < args_repeats(args, "tensor-type"); i++) {
        status = parse_override(args_text_at(args, "tensor-type", i), &overrides[q.override_count]);
        if (status == TN_OK) q.override_count++;
    }
    if (status == TN_OK && mix_wants_importance(q.mix) && !args_text(args, "importance"))
        warn("%s without an importance matrix loses much more than with one; tenon imatrix measures it (--imatrix "
             "FILE)",
             q.mix->name);
    if (status == TN_OK && args_text(args, "importance"))
        status = importance_open(args_text(args, "importance"), &q.importance);
    if (status == TN_OK) status = tn_gguf_open(args->values[0], &(tn_gguf_params){.mode = TN_GGUF_META}, &file);
    if (status != TN_OK) {
        code = fail_status(status, "quantize");
    } else {
        q.file = file;
        q.model = mix_model_of(file, q.importance != NULL);
        code = quantize(args, &q);
    }
    tn_gguf_close(file);
    importance_free(q.importance);
    for (int i = 0; i < q.override_count; i++) regfree(&overrides[i].regex);
    return code;
}

static const struct option options[] = {
    OPTION_THREADS,
    OPTION_FORCE,
    {.name = "keep-output",
     .aliases = "--leave-output-tensor",
     .help = "keep the type of the output matrix",
     .kind = OPTION_FLAG},
    {.name = "pure", .help = "one type for all matrices instead of the mix", .kind = OPTION_FLAG},
    {.name = "output-tensor-type", .value = "TYPE", .kind = OPTION_TEXT, .help = "type of the output matrix"},
    {.name = "token-embedding-type", .value = "TYPE", .kind = OPTION_TEXT, .help = "type of the token embedding"},
    {.name = "tensor-type",
     .value = "REGEX=TYPE",
     .kind = OPTION_TEXT,
     .repeats = true,
     .help = "type for tensors whose names match REGEX; the last match wins"},
    {.name = "importance",
     .aliases = "--imatrix",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .help = "importance matrix: weights errors by how much each column matters"},
    {.name = "requantize",
     .aliases = "--allow-requantize",
     .help = "accept a model that is already quantized",
     .kind = OPTION_FLAG},
    {.name = "error", .help = "print the relative error of every tensor", .kind = OPTION_FLAG},
    {0},
};

const struct command command_quantize = {
    .name = "quantize",
    .summary = "make a model smaller by storing its weights in fewer bits",
    .section = SECTION_FILES,
    .arguments = "IN OUT TYPE [THREADS]",
    .min_arguments = 3,
    .max_arguments = 4,
    .options = options,
    .details =
        "TYPE is a mix by its usual name or number, or any type that can be written. Q4_K_M and Q5_K_M are good "
        "choices, Q8_0 "
        "is nearly lossless, Q2_K and Q3_K_S/M/L are for when memory is short, MXFP4 is for the experts of mixture "
        "models. IQ3_M down to IQ1_S need the fewest bits and an importance matrix (tenon imatrix, --imatrix). TQ1_0 "
        "and TQ2_0 are for models trained with ternary weights.\n\n"
        "Memory use does not grow with the size of the model. OUT appears when it is complete.",
    .examples = "tenon quantize model-f16.gguf model-q4.gguf Q4_K_M\n"
                "tenon quantize model-f16.gguf out.gguf Q4_K_M --tensor-type 'ffn_down=q6_K' --keep-output\n"
                "tenon quantize model-f16.gguf model-iq2.gguf IQ2_M --imatrix imatrix.gguf\n",
    .run = run_quantize,
};
