/* tenon run: continue a text. */
#include "cli/term.h"
#include "cli/text_buffer.h"
#include "cli/text_input.h"
#include "engine/context_shift.h"
#include "engine/loaded_model.h"
#include "engine/options.h"
#include "engine/sampling.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The text: printed as it grows, or kept for the JSON at the end. */
struct run_output {
    bool keep;
    tn_text text;
};

static tn_status output_text(struct run_output *out, const char *bytes, size_t length) {
    if (!out->keep) {
        term_write(stdout, bytes, length);
        return fflush(stdout) == 0 ? TN_OK : tn_fail(TN_E_IO, "standard output is closed");
    }
    return text_append(&out->text, bytes, length);
}

enum run_end { END_OF_TEXT, END_LIMIT, END_CONTEXT, END_INTERRUPTED };
static const char *const run_end_names[] = {"stop", "limit", "context", "interrupted"};

/* Generates up to `limit` tokens; negative: until the model ends the text or the context is full. A full context is
 * shifted where `keep` is not negative. */
static int generate(tn_session *session, tn_sampler *sampler, int64_t limit, int32_t keep, struct run_output *out,
                    enum run_end *end) {
    int32_t n_ctx = tn_session_get_params(session).n_ctx;
    *end = END_LIMIT;
    for (int64_t i = 0; limit < 0 || i < limit; i++) {
        if (tn_session_seq_last(session, 0) + 1 >= n_ctx) {
            if (keep < 0) {
                *end = END_CONTEXT;
                break;
            }
            tn_status status = tn_session_context_shift(session, 0, keep, NULL);
            if (status != TN_OK) return fail_status(status, "context shift");
        }
        tn_status next = tn_session_next(session, 0, sampler, NULL);
        if ((next != TN_OK && next != TN_END) || interrupted()) {
            *end = END_INTERRUPTED;
            if (!interrupted() && !out->keep) putchar('\n');
            return interrupted() ? EXIT_INTERRUPTED : fail("%s", tn_error());
        }
        const char *text = tn_session_text(session, 0);
        tn_status status = output_text(out, text, strlen(text));
        if (status != TN_OK) return fail_status(status, "%s", "");
        if (next == TN_END) {
            *end = END_OF_TEXT;
            break;
        }
    }
    return EXIT_OK;
}

static int read_prompt(const struct args *args, char **prompt, size_t *size) {
    const char *file = args_text(args, "file"), *text = args_text(args, "prompt");
    bool dash = args->count > 0 && strcmp(args->values[args->count - 1], "-") == 0;
    if ((file != NULL) + (text != NULL) + dash > 1) return fail_usage(args, "give only one of -p, -f and -");
    if (file) return read_text_file(file, prompt, size);
    if (dash || (text && strcmp(text, "-") == 0)) return read_input(prompt, size);
    *prompt = strdup(text ? text : "Once upon a time");
    if (!*prompt) return fail("out of memory");
    *size = strlen(*prompt);
    return EXIT_OK;
}

/* Decodes the prompt in chunks, so that a long one can show its progress. */
static tn_status prefill(tn_session *session, const tn_tokens *tokens) {
    struct progress progress;
    size_t piece = 0;
    uint64_t ns = 0;
    tn_status status = TN_OK;
    progress_start(&progress, "prefill", tokens->count, PROGRESS_ITEMS);
    for (size_t done = 0; done < tokens->count && status == TN_OK; done += piece) {
        piece = prompt_chunk(session, piece, ns);
        size_t n = tokens->count - done < piece ? tokens->count - done : piece;
        uint64_t begin = tn_time_ns();
        status = tn_session_prompt_tokens(session, 0, tokens->ids + done, (int32_t)n);
        ns = tn_time_ns() - begin;
        progress_update(&progress, done + n);
    }
    progress_end(&progress);
    return status;
}

/* Decodes the prompt. The sampler accepts its tokens, which count for its penalties, before it gets the grammar. */
static int decode_prompt(const struct args *args, tn_session *session, tn_sampler *sampler, const char *text,
                         size_t size) {
    tn_model *model = tn_session_model(session);
    tn_tokens tokens = {0};
    tn_status status = tn_tokenizer_encode(tn_model_tokenizer(model), text, size, TN_ENCODE_ADD_SPECIAL, &tokens);
    int cells = tn_session_get_params(session).n_ctx, code = EXIT_OK;
    if (status == TN_OK && tokens.count >= (size_t)cells)
        code = fail("the prompt has %zu tokens, the context only %d: use -c %zu or more", tokens.count, cells,
                    tokens.count + 256);
    else if (status == TN_OK && tokens.count == 0)
        code = fail("the prompt is empty, and the model has no beginning-of-text token");
    else if (status == TN_OK)
        status = prefill(session, &tokens);
    for (size_t i = 0; i < tokens.count && status == TN_OK; i++) status = tn_sampler_accept(sampler, tokens.ids[i]);
    tn_tokens_free(&tokens);
    if (status != TN_OK) return fail_status(status, "%s", "");
    return code ? code : sampling_grammar(args, model, sampler);
}

/* Bans every token that ends a text. */
static int ban_ends(const tn_model *model, tn_sampler_params *p, tn_logit_bias **biases) {
    const tn_tokenizer *tokenizer = tn_model_tokenizer(model);
    int32_t n = tokenizer ? tn_tokenizer_size(tokenizer) : 0;
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1 && !(*biases = tn_calloc(p->n_logit_bias + 1, sizeof **biases))) return fail("out of memory");
        p->n_logit_bias = 0;
        for (tn_token t = 0; t < n; t++) {
            if (!tn_token_is_end(tokenizer, t)) continue;
            if (pass == 1) (*biases)[p->n_logit_bias] = (tn_logit_bias){t, -INFINITY};
            p->n_logit_bias++;
        }
    }
    p->logit_bias = *biases;
    return EXIT_OK;
}

static int print_json(const struct loaded_model *loaded, struct run_output *out, enum run_end end, uint64_t seed) {
    tn_session_stats s = tn_session_get_stats(loaded->session);
    struct memory_use m;
    if (!loaded_model_memory(loaded, &m)) return EXIT_ERROR;
    json_t *text = json_stringn(out->text.bytes ? out->text.bytes : "", out->text.length);
    json_t *root =
        json_pack("{s:o?, s:s, s:I, s:I, s:f, s:I, s:f, s:I, s:I, s:I}", "text", text, "end", run_end_names[end],
                  "seed", (json_int_t)seed, "prompt_tokens", (json_int_t)s.prompt_tokens, "prompt_seconds",
                  (double)s.prompt_ns * 1e-9, "generated_tokens", (json_int_t)s.generated_tokens, "generated_seconds",
                  (double)s.generated_ns * 1e-9, "memory_planned", (json_int_t)m.planned, "memory_used",
                  (json_int_t)m.used, "memory_mapped", (json_int_t)m.mapped);
    if (!root) return fail("out of memory, or the prompt is not valid UTF-8");
    json_dumpf(root, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(root);
    return EXIT_OK;
}

static int run_run(const struct args *args) {
    char buffer[4096], *prompt = NULL;
    const char *path = NULL;
    struct loaded_model loaded = {0};
    tn_sampler *sampler = NULL;
    tn_session_params params;
    tn_sampler_params sampling;
    tn_logit_bias *biases = NULL;
    struct run_output out = {.keep = args_flag(args, "json")};
    enum run_end end = END_INTERRUPTED;
    size_t size = 0;
    if (args->count == 2 && strcmp(args->values[1], "-") != 0)
        return fail_usage(args, "unexpected argument \"%s\": give the text to continue with -p", args->values[1]);
    if (!(path = find_model(args, buffer, sizeof buffer))) return EXIT_ERROR;
    int code = session_params_from(args, &params);
    if (code || (code = read_prompt(args, &prompt, &size))) return code;
    if ((code = loaded_model_open(args, path, &params, &loaded))) goto out;
    sampling_params(args, &sampling);
    if (args_flag(args, "ignore-eos") && (code = ban_ends(loaded.model, &sampling, &biases))) goto out;
    if ((code = sampling_new(&sampling, loaded.model, &sampler))) goto out;
    code = decode_prompt(args, loaded.session, sampler, prompt, size);
    tn_status status = !code && args_flag(args, "echo") ? output_text(&out, prompt, size) : TN_OK;
    if (status != TN_OK) code = fail_status(status, "%s", "");
    if (!code) {
        const int32_t n_prompt = tn_session_seq_last(loaded.session, 0) + 1;
        const int32_t keep = context_shift_keep((int32_t)args_int(args, "keep"), n_prompt,
                                                tn_session_get_params(loaded.session).n_ctx);
        const bool shifts = context_shift_wanted(args, loaded.session);
        code = generate(loaded.session, sampler, args_int(args, "predict"), shifts ? keep : -1, &out, &end);
    }
    if (out.keep && code != EXIT_ERROR) {
        int printed = print_json(&loaded, &out, end, tn_sampler_seed(sampler));
        if (printed) code = printed;
    } else if (code != EXIT_ERROR) {
        putchar('\n');
        fflush(stdout);
        if (end == END_CONTEXT)
            warn("the context of %d tokens is full; -c sets a longer one, --context-shift goes on without the oldest",
                 tn_session_get_params(loaded.session).n_ctx);
        print_closing_line(&loaded);
    }
out:
    free(prompt);
    tn_free(biases);
    tn_text_free(&out.text);
    tn_sampler_free(sampler);
    loaded_model_close(&loaded);
    return code;
}

static const struct option options[] = {
    {.name = "prompt",
     .letter = "p",
     .value = "TEXT",
     .kind = OPTION_TEXT,
     .help = "the text to continue, - to read standard input"},
    {.name = "file", .letter = "f", .value = "FILE", .kind = OPTION_TEXT, .help = "read the text from FILE"},
    {.name = "predict",
     .letter = "n",
     .aliases = "--n-predict",
     .value = "N",
     .kind = OPTION_INT,
     .min = -1,
     .max = 1e9,
     .fallback = "256",
     .help = "max tokens to generate, -1 until the model stops or the context is full (see --context-shift)",
     .env = "LLAMA_ARG_N_PREDICT"},
    OPTIONS_CONTEXT_SHIFT(NULL, "0"),
    {.name = "ignore-eos", .kind = OPTION_FLAG, .help = "continue when the model would end the text"},
    {.name = "echo",
     .kind = OPTION_FLAG,
     .fallback = "on",
     .aliases = "--display-prompt",
     .help = "print the prompt before its continuation"},
    OPTION_JSON,
    {0},
};
static const struct option_group *const groups[] = {&model_options, &sampling_options, NULL};

const struct command command_run = {
    .name = "run",
    .summary = "continue a text",
    .arguments = "[MODEL] [-]",
    .options = options,
    .groups = groups,
    .details =
        "Without MODEL the default model writes a story. The text to continue comes from -p, from a file, or from "
        "standard input where - is given; without any of them it is \"Once upon a time\".",
    .examples = "tenon run\n"
                "tenon run model.gguf -p \"The capital of France is\" -n 20 --temp 0\n"
                "tenon run model.gguf -f letter.txt -c 8192\n"
                "date | tenon run model.gguf -                         # from standard input\n"
                "tenon run model.gguf -p \"Is a fox red?\" --grammar 'root ::= \" yes\" | \" no\"'\n"
                "tenon run model.gguf -p \"A fox:\" -jf fox-schema.json      # JSON that follows a schema",
    .section = SECTION_USE,
    .min_arguments = 0,
    .max_arguments = 2,
    .run = run_run,
};
