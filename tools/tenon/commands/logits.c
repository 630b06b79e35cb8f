/* tenon logits: the logits after each token of a list, as raw floats. */
#include "cli/text_buffer.h"
#include "cli/text_input.h"
#include "files/output_file.h"

#include "tenon/llm.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Numbers, separated by any other characters. */
static int parse_tokens(const char *text, tn_tokens *out) {
    for (const char *p = text; *p;) {
        char *end;
        if (!isdigit((unsigned char)*p) && *p != '-') {
            p++;
            continue;
        }
        long value = strtol(p, &end, 10);
        if (end == p || value < 0 || value > INT32_MAX) return fail("'%.20s' is not a token id", p);
        tn_token token = (tn_token)value;
        if (tokens_append(out, &token, 1) != TN_OK) return fail_status(TN_E_NOMEM, "tokens");
        p = end;
    }
    return out->count ? EXIT_OK : fail("the list of tokens is empty");
}

static bool write_row(void *user, int32_t position, const float *logits, int32_t n_vocab) {
    (void)position;
    return fwrite(logits, sizeof *logits, (size_t)n_vocab, user) == (size_t)n_vocab && !interrupted();
}

static int run_logits(const struct args *args) {
    const char *list = args_text(args, "tokens"), *path = args_text(args, "out");
    if (!list || !path) return fail_usage(args, "--tokens and --out are required");
    char *text = NULL;
    size_t size;
    if (list[0] == '@' && read_text_file(list + 1, &text, &size)) return EXIT_ERROR;
    tn_tokens tokens = {0};
    tn_model *model = NULL;
    tn_session *session = NULL;
    FILE *out = NULL;
    struct output_file to = {0};
    tn_status status;
    int code = parse_tokens(text ? text : list, &tokens);
    free(text);
    if (code) goto out;
    if ((status = tn_model_open(args->values[0], NULL, &model)) != TN_OK) {
        code = fail_status(status, "%s", "");
        goto out;
    }
    tn_session_params p = tn_session_params_default();
    p.n_ctx = (int32_t)tokens.count;
    p.n_batch = p.n_ubatch = (int32_t)args_int(args, "batch");
    p.n_outputs = p.n_batch < 64 ? p.n_batch : 64;
    p.n_threads = (int)args_int(args, "threads");
    p.abort = interrupted_callback;
    if ((status = tn_cache_type_parse(args_text(args, "cache-type"), &p.cache_k)) != TN_OK) {
        code = fail_status(status, "--cache-type");
        goto out;
    }
    p.cache_v = p.cache_k;
    if ((status = tn_session_open(model, &p, &session)) != TN_OK) {
        code = fail_status(status, "%s", "");
        goto out;
    }
    if ((code = output_open(&to, path, args_flag(args, "force"), args->values, 1))) goto out;
    out = fopen(to.path, "wb");
    if (!out) {
        code = fail("cannot write %s", path);
        goto out;
    }
    status = tn_session_score(session, 0, tokens.ids, (int32_t)tokens.count, write_row, out);
    if (status != TN_OK) code = fail_status(status, "%s", "");
out:
    if (out && fclose(out) != 0 && !code) code = fail("cannot write %s", path);
    if (out && output_close(&to, !code) && !code) code = EXIT_ERROR;
    tn_session_free(session);
    tn_model_close(model);
    tn_tokens_free(&tokens);
    return code;
}

static const struct option options[] = {
    OPTION_FORCE,
    {.name = "tokens",
     .value = "LIST",
     .kind = OPTION_TEXT,
     .help = "token ids separated by commas or spaces, or @FILE to read them from FILE"},
    {.name = "out",
     .letter = "o",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .help = "output: little-endian f32, one row of vocabulary size per token"},
    {.name = "batch",
     .letter = "b",
     .value = "N",
     .kind = OPTION_INT,
     .min = 1,
     .max = 1 << 20,
     .fallback = "512",
     .help = "tokens per batch"},
    {.name = "cache-type",
     .letter = "ctk",
     .value = "TYPE",
     .kind = OPTION_TEXT,
     .fallback = "f32",
     .help = "type of the KV cache"},
    OPTION_THREADS,
    {0},
};

const struct command command_logits = {
    .name = "logits",
    .summary = "write the logits for a list of tokens",
    .arguments = "MODEL",
    .options = options,
    .examples = "tenon logits model.gguf --tokens 1,403,407 --out logits.f32\n"
                "tenon logits model.gguf --tokens @ids.txt --out logits.f32 --batch 16",
    .section = SECTION_TEXT,
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run_logits,
};
