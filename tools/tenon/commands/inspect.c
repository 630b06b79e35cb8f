/* tenon inspect: summary, metadata and tensors of a GGUF file. */
#include "cli/cli.h"
#include "cli/term.h"
#include "files/metadata_text.h"
#include "files/output_file.h"
#include "tenon/gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Totals ---- */

struct totals {
    double parameters;
    uint64_t bytes;
    struct {
        uint64_t tensors, bytes;
    } type[TN_TYPE_LIMIT];
};

static double element_count(const tn_gguf_tensor *t) {
    return (double)t->ne[0] * (double)t->ne[1] * (double)t->ne[2] * (double)t->ne[3];
}

static struct totals count_totals(const tn_gguf *file) {
    struct totals sum = {0};
    for (uint64_t i = 0; i < tn_gguf_tensor_count(file); i++) {
        const tn_gguf_tensor *t = tn_gguf_tensor_at(file, i);
        sum.parameters += element_count(t);
        sum.bytes += t->size;
        sum.type[t->type].tensors++;
        sum.type[t->type].bytes += t->size;
    }
    return sum;
}

/* The value of a key with the architecture in front: "llama.context_length". */
static const tn_gguf_value *arch_key(const tn_gguf *file, const char *name) {
    char key[256];
    snprintf(key, sizeof key, "%.100s.%s", tn_gguf_get_cstr(file, "general.architecture", ""), name);
    return tn_gguf_find(file, key);
}

/* ---- Text ---- */

static void print_label(const char *name) {
    printf("%s%-16s%s", style(stdout, STYLE_BOLD), name, style(stdout, STYLE_NONE));
}

static void line_text(const tn_gguf *file, const char *name, const char *key) {
    tn_gguf_str text = tn_gguf_get_str(file, key);
    if (!text.data || text.size == 0) return;
    print_label(name);
    show_text(stdout, text, 100);
    putchar('\n');
}

static void line_arch(const tn_gguf *file, const char *name, const char *key) {
    const tn_gguf_value *value = arch_key(file, key);
    uint64_t number;
    if (!value || (tn_gguf_value_u64(value, &number) && number == 0)) return;
    print_label(name);
    show_value(stdout, value, 100);
    putchar('\n');
}

static void print_tokenizer(const tn_gguf *file) {
    const char *model = tn_gguf_get_cstr(file, "tokenizer.ggml.model", NULL);
    print_label("tokenizer");
    if (!model) {
        puts("none");
    } else {
        const tn_gguf_arr *tokens = tn_gguf_get_arr(file, "tokenizer.ggml.tokens");
        show_text(stdout, tn_gguf_get_str(file, "tokenizer.ggml.model"), 60);
        tn_gguf_str pre = tn_gguf_get_str(file, "tokenizer.ggml.pre");
        if (pre.data) {
            fputs(", pre-tokenizer ", stdout);
            show_text(stdout, pre, 60);
        }
        printf(", %" PRIu64 " tokens\n", tokens ? tokens->count : 0);
    }
    tn_gguf_str chat = tn_gguf_get_str(file, "tokenizer.chat_template");
    print_label("chat template");
    if (chat.data)
        printf("yes, %zu bytes\n", chat.size);
    else
        puts("no");
}

static void print_model_summary(const tn_gguf *file) {
    struct totals sum = count_totals(file);
    char bytes[HUMAN_SIZE], count[HUMAN_SIZE];
    print_label("file");
    printf("%s, %s, GGUF %" PRIu32, tn_gguf_path(file), human_bytes(bytes, tn_gguf_file_bytes(file)),
           tn_gguf_version(file));
    if (tn_gguf_part_count(file) > 1) printf(", %d parts", tn_gguf_part_count(file));
    puts(tn_gguf_has_data(file) ? "" : ", without data (for planning)");
    line_text(file, "architecture", "general.architecture");
    line_text(file, "name", "general.name");
    if (sum.parameters > 0) {
        print_label("parameters");
        printf("%s in %" PRIu64 " tensors, %s, %.2f bits per weight\n", human_count(count, sum.parameters),
               tn_gguf_tensor_count(file), human_bytes(bytes, sum.bytes), (double)sum.bytes * 8 / sum.parameters);
        print_label("size by type");
        const char *comma = "";
        for (int type = 0; type < TN_TYPE_LIMIT; type++) {
            if (!sum.type[type].tensors) continue;
            printf("%s%s %s (%" PRIu64 ")", comma, tn_type_name((tn_type)type),
                   human_bytes(bytes, sum.type[type].bytes), sum.type[type].tensors);
            comma = ", ";
        }
        putchar('\n');
    }
    line_arch(file, "context", "context_length");
    line_arch(file, "layers", "block_count");
    line_arch(file, "width", "embedding_length");
    line_arch(file, "feed forward", "feed_forward_length");
    line_arch(file, "heads", "attention.head_count");
    line_arch(file, "KV heads", "attention.head_count_kv");
    line_arch(file, "window", "attention.sliding_window");
    line_arch(file, "experts", "expert_count");
    line_arch(file, "experts used", "expert_used_count");
    print_tokenizer(file);
}

static void print_metadata(const tn_gguf *file) {
    int width = 0;
    for (uint64_t i = 0; i < tn_gguf_key_count(file); i++) {
        int size = (int)(tn_gguf_key_at(file, i)->key.size < 48 ? tn_gguf_key_at(file, i)->key.size : 48);
        if (size > width) width = size;
    }
    printf("\n%s%" PRIu64 " metadata keys%s\n", style(stdout, STYLE_BOLD), tn_gguf_key_count(file),
           style(stdout, STYLE_NONE));
    for (uint64_t i = 0; i < tn_gguf_key_count(file); i++) {
        const tn_gguf_kv *kv = tn_gguf_key_at(file, i);
        fputs("  ", stdout);
        show_text(stdout, kv->key, SIZE_MAX);
        int gap = width - (int)(kv->key.size < 1000 ? kv->key.size : 1000);
        printf("%*s  %s%-4s%s  ", gap > 0 ? gap : 0, "", style(stdout, STYLE_DIM), tn_gguf_type_name(kv->value.type),
               style(stdout, STYLE_NONE));
        show_value(stdout, &kv->value, 120);
        putchar('\n');
    }
}

static void print_tensors(const tn_gguf *file) {
    char shape[128], bytes[HUMAN_SIZE];
    printf("\n%s%" PRIu64 " tensors%s\n", style(stdout, STYLE_BOLD), tn_gguf_tensor_count(file),
           style(stdout, STYLE_NONE));
    for (uint64_t i = 0; i < tn_gguf_tensor_count(file); i++) {
        const tn_gguf_tensor *t = tn_gguf_tensor_at(file, i);
        fputs("  ", stdout);
        show_text(stdout, (tn_gguf_str){t->name, strlen(t->name)}, SIZE_MAX);
        int gap = 40 - (int)strlen(t->name);
        printf("%*s  %-7s  %-24s  %10s  at %" PRIu64, gap > 0 ? gap : 0, "", tn_type_name(t->type),
               show_shape(shape, sizeof shape, t->n_dims, t->ne), human_bytes(bytes, t->size), t->file_offset);
        if (tn_gguf_part_count(file) > 1) printf(" of part %d", t->part + 1);
        putchar('\n');
    }
}

/* ---- JSON ---- */

static json_t *tensors_json(const tn_gguf *file) {
    json_t *list = json_array();
    for (uint64_t i = 0; i < tn_gguf_tensor_count(file); i++) {
        const tn_gguf_tensor *t = tn_gguf_tensor_at(file, i);
        json_t *shape = json_array(), *row = json_object();
        for (int d = 0; d < t->n_dims; d++) json_array_append_new(shape, json_integer(t->ne[d]));
        json_object_set_new(row, "name", show_json_text((tn_gguf_str){t->name, strlen(t->name)}));
        json_object_set_new(row, "type", json_string(tn_type_name(t->type)));
        json_object_set_new(row, "type_id", json_integer((json_int_t)t->type));
        json_object_set_new(row, "shape", shape);
        json_object_set_new(row, "bytes", json_integer((json_int_t)t->size));
        json_object_set_new(row, "offset", json_integer((json_int_t)t->file_offset));
        json_object_set_new(row, "part", json_integer(t->part));
        json_array_append_new(list, row);
    }
    return list;
}

static int print_model_json(const tn_gguf *file) {
    struct totals sum = count_totals(file);
    json_t *root = json_object(), *keys = json_object(), *types = json_object(), *by_type = json_object();
    for (uint64_t i = 0; i < tn_gguf_key_count(file); i++) {
        const tn_gguf_kv *kv = tn_gguf_key_at(file, i);
        json_t *name = show_json_text(kv->key);
        const char *text = json_string_value(name);
        char type[32];
        if (kv->value.type == TN_GGUF_ARR)
            snprintf(type, sizeof type, "%s[]", tn_gguf_type_name(kv->value.arr.type));
        else
            snprintf(type, sizeof type, "%s", tn_gguf_type_name(kv->value.type));
        json_object_set_new(keys, text, show_json(&kv->value));
        json_object_set_new(types, text, json_string(type));
        json_decref(name);
    }
    for (int type = 0; type < TN_TYPE_LIMIT; type++)
        if (sum.type[type].tensors)
            json_object_set_new(by_type, tn_type_name((tn_type)type),
                                json_pack("{s:I,s:I}", "tensors", (json_int_t)sum.type[type].tensors, "bytes",
                                          (json_int_t)sum.type[type].bytes));
    json_object_set_new(root, "path", show_json_text((tn_gguf_str){tn_gguf_path(file), strlen(tn_gguf_path(file))}));
    json_object_set_new(root, "version", json_integer(tn_gguf_version(file)));
    json_object_set_new(root, "alignment", json_integer(tn_gguf_alignment(file)));
    json_object_set_new(root, "file_bytes", json_integer((json_int_t)tn_gguf_file_bytes(file)));
    json_object_set_new(root, "parts", json_integer(tn_gguf_part_count(file)));
    json_object_set_new(root, "has_data", json_boolean(tn_gguf_has_data(file)));
    json_object_set_new(root, "parameters", json_integer((json_int_t)sum.parameters));
    json_object_set_new(root, "tensor_bytes", json_integer((json_int_t)sum.bytes));
    json_object_set_new(root, "types", by_type);
    json_object_set_new(root, "metadata", keys);
    json_object_set_new(root, "metadata_types", types);
    json_object_set_new(root, "tensors", tensors_json(file));
    int bad = json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    json_decref(root);
    putchar('\n');
    return bad ? fail("cannot write the JSON: %m") : EXIT_OK;
}

/* ---- One tensor ---- */

enum { PIECE_ELEMENTS = 1 << 16 }; /* a multiple of every block size */

struct statistics {
    double sum, squares, min, max;
    uint64_t count, not_finite;
};

static void add_piece(struct statistics *s, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) {
            s->not_finite++;
            continue;
        }
        if (s->count == 0 || x[i] < s->min) s->min = x[i];
        if (s->count == 0 || x[i] > s->max) s->max = x[i];
        s->sum += x[i];
        s->squares += (double)x[i] * x[i];
        s->count++;
    }
}

/* Converts a tensor in pieces, so that memory use does not depend on its size. */
static tn_status convert_tensor(const tn_gguf *file, const tn_gguf_tensor *t, FILE *out, struct statistics *s) {
    int64_t block = tn_type_block(t->type), total = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    size_t piece_bytes = PIECE_ELEMENTS / (size_t)block * tn_type_bytes(t->type);
    void *raw = tn_malloc(piece_bytes);
    float *values = tn_malloc(PIECE_ELEMENTS * sizeof *values);
    tn_status status = raw && values ? TN_OK : TN_E_NOMEM;
    size_t offset = 0;
    for (int64_t done = 0; done < total && status == TN_OK;) {
        int64_t n = total - done < PIECE_ELEMENTS ? total - done : PIECE_ELEMENTS;
        size_t size = (size_t)(n / block) * tn_type_bytes(t->type);
        status = tn_gguf_read(file, t, offset, raw, size);
        if (status == TN_OK) status = tn_type_to_f32(t->type, raw, values, n);
        if (status != TN_OK) break;
        add_piece(s, values, n);
        if (out && fwrite(values, sizeof *values, (size_t)n, out) != (size_t)n)
            status = tn_fail(TN_E_IO, "cannot write: %m");
        done += n;
        offset += size;
        if (interrupted()) status = tn_fail(TN_E_ABORTED, "interrupted");
    }
    tn_free(raw);
    tn_free(values);
    return status;
}

static int inspect_tensor(const struct args *args, const tn_gguf *file) {
    const char *name = args_text(args, "tensor"), *path = args_text(args, "out");
    const tn_gguf_tensor *t = tn_gguf_find_tensor(file, name);
    if (!t) return fail("%s: no tensor \"%s\"; --tensors lists them", tn_gguf_path(file), name);
    struct output_file to = {0};
    const char *inputs[] = {tn_gguf_path(file)};
    int code = path ? output_open(&to, path, args_flag(args, "force"), inputs, 1) : EXIT_OK;
    if (code) return code;
    FILE *out = path ? fopen(to.path, "wb") : NULL;
    if (path && !out) return fail("%s: %m", path);
    struct statistics s = {0};
    tn_status status = convert_tensor(file, t, out, &s);
    if (out && fclose(out) != 0 && status == TN_OK) status = tn_fail(TN_E_IO, "cannot write: %m");
    if (status != TN_OK) {
        if (path) output_close(&to, false);
        return fail_status(status, "%s", path ? path : name);
    }
    if (path && (code = output_close(&to, true))) return code;
    char shape[128], bytes[HUMAN_SIZE];
    printf("%s  %s  %s  %s\n", name, tn_type_name(t->type), show_shape(shape, sizeof shape, t->n_dims, t->ne),
           human_bytes(bytes, t->size));
    if (s.count)
        printf("min %.6g  max %.6g  mean %.6g  rms %.6g\n", s.min, s.max, s.sum / (double)s.count,
               sqrt(s.squares / (double)s.count));
    if (s.not_finite) printf("%" PRIu64 " values are infinite or NaN\n", s.not_finite);
    if (path) printf("written to %s as little-endian f32\n", path);
    return EXIT_OK;
}

/* ---- Command ---- */

static int run_inspect(const struct args *args) {
    tn_gguf *file;
    const char *key = args_text(args, "key");
    if (args_text(args, "out") && !args_text(args, "tensor"))
        return fail_usage(args, "--out needs --tensor NAME to say which tensor to write");
    tn_gguf_params params = {.mode = TN_GGUF_META, .one_part = args_flag(args, "part")};
    tn_status status = tn_gguf_open(args->values[0], &params, &file);
    if (status != TN_OK) return fail_status(status, "inspect");
    int code = EXIT_OK;
    if (key) {
        const tn_gguf_value *value = tn_gguf_find(file, key);
        if (!value) {
            code = fail("%s: no metadata key \"%s\"", args->values[0], key);
        } else if (args_flag(args, "json")) {
            json_t *json = show_json(value);
            json_dumpf(json, stdout, JSON_ENCODE_ANY | JSON_INDENT(1) | JSON_REAL_PRECISION(17));
            putchar('\n');
            json_decref(json);
        } else {
            show_whole(stdout, value);
        }
    } else if (args_text(args, "tensor")) {
        code = inspect_tensor(args, file);
    } else if (args_flag(args, "json")) {
        code = print_model_json(file);
    } else {
        print_model_summary(file);
        print_metadata(file);
        if (args_flag(args, "tensors")) print_tensors(file);
    }
    tn_gguf_close(file);
    return code;
}

static const struct option options[] = {
    OPTION_JSON,
    {.name = "tensors", .help = "also list all tensors with type, shape, size and file offset", .kind = OPTION_FLAG},
    {.name = "key", .value = "K", .kind = OPTION_TEXT, .help = "print only the value of this metadata key, in full"},
    {.name = "tensor", .value = "NAME", .kind = OPTION_TEXT, .help = "print statistics of one tensor"},
    OPTION_FORCE,
    {.name = "out",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .help = "with --tensor: write it to FILE as little-endian f32"},
    {.name = "part", .help = "inspect only this file of a split model", .kind = OPTION_FLAG},
    {0},
};

const struct command command_inspect = {
    .name = "inspect",
    .summary = "show summary, metadata and tensors of a model file",
    .section = SECTION_FILES,
    .arguments = "FILE",
    .min_arguments = 1,
    .max_arguments = 1,
    .options = options,
    .details =
        "Reads only the metadata, so it is quick for files of any size. For a split model, give any of its files.",
    .examples = "tenon inspect model.gguf\n"
                "tenon inspect model.gguf --tensors\n"
                "tenon inspect model.gguf --key tokenizer.chat_template  # the template in full\n"
                "tenon inspect model.gguf --tensor token_embd.weight --out embedding.f32\n",
    .run = run_inspect,
};
