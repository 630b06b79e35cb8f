/* tenon run: continue a text. */
#include "chat/conversation.h"
#include "cli/term.h"
#include "cli/text_buffer.h"
#include "cli/text_input.h"
#include "engine/context_shift.h"
#include "engine/load_options.h"
#include "engine/loaded_model.h"
#include "engine/options.h"
#include "engine/sampling.h"
#include "speculate/speculation.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* The text: printed as it grows, or kept for the JSON at the end. */
struct run_output {
    bool keep;
    tn_text text;
};

/* Whether the text now ends with, or has just passed, a string of --reverse-prompt. */
struct reverse_prompts {
    const char **texts;
    int count;
    char tail[1024];
    size_t length;
};

static bool reverse_prompts_read(const struct args *args, struct reverse_prompts *r) {
    *r = (struct reverse_prompts){.count = args_repeats(args, "reverse-prompt")};
    r->texts = args_keep(args, NULL, (size_t)r->count * sizeof *r->texts);
    for (int i = 0; r->texts && i < r->count; i++)
        if (!(r->texts[i] = escaped_text_at(args, "reverse-prompt", i))) return false;
    return r->texts != NULL;
}

static bool reverse_prompt_reached(struct reverse_prompts *r, const char *text) {
    const size_t n = strlen(text), most = sizeof r->tail - 1;
    if (!r->count || !n) return false;
    if (n >= most) return strstr(text, r->texts[0]) != NULL;
    if (r->length + n > most) {
        const size_t drop = r->length + n - most;
        memmove(r->tail, r->tail + drop, r->length - drop);
        r->length -= drop;
    }
    memcpy(r->tail + r->length, text, n + 1);
    r->length += n;
    for (int i = 0; i < r->count; i++) {
        const char *wanted = r->texts[i];
        const size_t size = strlen(wanted) + n; /* it ends within the new text */
        if (size > n && strstr(r->tail + (r->length > size ? r->length - size : 0), wanted)) return true;
    }
    return false;
}

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
static int generate(const struct args *args, tn_session *session, tn_sampler *sampler, int32_t keep,
                    struct run_output *out, enum run_end *end) {
    const int64_t limit = args_int(args, "predict");
    struct reverse_prompts reverse;
    if (!reverse_prompts_read(args, &reverse)) return fail("out of memory");
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
        if (next == TN_END || reverse_prompt_reached(&reverse, text)) {
            *end = END_OF_TEXT;
            break;
        }
    }
    return EXIT_OK;
}

static int read_prompt(const struct args *args, char **prompt, size_t *size) {
    const char *file = args_text(args, "file"), *text = args_text(args, "prompt");
    const char *binary = args_text(args, "binary-file");
    bool dash = args->count > 0 && strcmp(args->values[args->count - 1], "-") == 0;
    if ((file != NULL) + (text != NULL) + (binary != NULL) + dash > 1)
        return fail_usage(args, "give only one of -p, -f, -bf and -");
    if (binary) return read_text_file(binary, prompt, size);
    int code = EXIT_OK;
    if (file)
        code = read_text_file(file, prompt, size);
    else if (dash || (text && strcmp(text, "-") == 0))
        code = read_input(prompt, size);
    if (code) return code;
    if (*prompt) {
        drop_last_newline(*prompt, size);
        return EXIT_OK;
    }
    if (!text && (code = read_piped_input(prompt, size))) return code;
    if (*prompt) return EXIT_OK;
    *prompt = strdup(text ? text : "Once upon a time");
    if (!*prompt) return fail("out of memory");
    *size = strlen(*prompt);
    if (text && args_flag(args, "escape")) replace_escapes(*prompt, size);
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

static int print_json(const struct loaded_model *loaded, struct run_output *out, enum run_end end, uint64_t seed,
                      const tn_speculator *speculator) {
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
    if (speculator) {
        const tn_spec_stats x = tn_speculator_stats(speculator);
        json_object_set_new(root, "draft_tokens", json_integer((json_int_t)x.guessed));
        json_object_set_new(root, "draft_accepted", json_integer((json_int_t)x.accepted));
        json_object_set_new(root, "draft_acceptance", speculation_acceptance(&x));
        json_object_set_new(root, "tokens_per_step", json_real(speculation_tokens_per_step(&x)));
        json_object_set_new(root, "saved_seconds", json_real((double)x.saved_ns * 1e-9));
    }
    json_dumpf(root, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(root);
    return EXIT_OK;
}

/* People expect a chat model to answer. */
static void note_chat_model(const struct args *args, const tn_model *model) {
    if (tn_model_get_info(model).chat_template && !args_given(args, "conversation") && !args_flag(args, "json"))
        fprintf(stderr,
                "%sThis model has a chat template: tenon chat, or run -cnv, uses it; run continues the text as it "
                "is.%s\n",
                style(stderr, STYLE_DIM), style(stderr, STYLE_NONE));
}

/* Options that only a conversation has ask for one. */
static bool wants_conversation(const struct args *args) {
    static const char *const only[] = {"system", "system-file", "single-turn"};
    const char *given = NULL;
    for (size_t i = 0; i < sizeof only / sizeof *only && !given; i++)
        if (args_given(args, only[i])) given = only[i];
    if (!args_given(args, "conversation")) return given != NULL;
    if (given && !args_flag(args, "conversation")) warn("--%s has no effect without a conversation", given);
    return args_flag(args, "conversation");
}

static int run_run(const struct args *args) {
    char buffer[4096], *prompt = NULL;
    const char *path = NULL, *extra = NULL;
    struct loaded_model loaded = {0};
    struct speculation speculation = {0};
    tn_sampler *sampler = NULL;
    tn_session_params params;
    tn_sampler_params sampling;
    struct run_output out = {.keep = args_flag(args, "json")};
    enum run_end end = END_INTERRUPTED;
    size_t size = 0;
    if (wants_conversation(args)) return converse_with(args);
    if (!(path = find_model_and_question(args, &extra, buffer, sizeof buffer))) return EXIT_ERROR;
    if (extra)
        return fail_usage(args,
                          "unexpected argument \"%s\": -p gives the text to continue; tenon chat MODEL \"…\" asks a "
                          "question",
                          extra);
    int code = session_params_from(args, &params);
    if (!code) code = speculation_prepare(args, &params);
    if (code || (code = read_prompt(args, &prompt, &size))) return code;
    if ((code = loaded_model_open(args, path, &params, &loaded))) goto out;
    if ((code = speculation_open(args, loaded.session, loaded.threads, &speculation))) goto out;
    tn_session_set_speculator(loaded.session, speculation.speculator);
    note_chat_model(args, loaded.model);
    if ((code = sampling_params(args, &sampling))) goto out;
    if ((code = sampling_new(args, &sampling, loaded.model, &sampler))) goto out;
    code = decode_prompt(args, loaded.session, sampler, prompt, size);
    tn_status status = !code && args_flag(args, "echo") ? output_text(&out, prompt, size) : TN_OK;
    if (status != TN_OK) code = fail_status(status, "%s", "");
    if (!code) {
        const int32_t n_prompt = tn_session_seq_last(loaded.session, 0) + 1;
        const int32_t keep = context_shift_keep((int32_t)args_int(args, "keep"), n_prompt,
                                                tn_session_get_params(loaded.session).n_ctx);
        const bool shifts = context_shift_wanted(args, loaded.session);
        code = generate(args, loaded.session, sampler, shifts ? keep : -1, &out, &end);
    }
    if (loaded.session) (void)tn_session_settle(loaded.session, 0); /* the figures count all guesses */
    if (out.keep && code != EXIT_ERROR) {
        int printed = print_json(&loaded, &out, end, tn_sampler_seed(sampler), speculation.speculator);
        if (printed) code = printed;
    } else if (code != EXIT_ERROR) {
        putchar('\n');
        fflush(stdout);
        if (end == END_CONTEXT)
            warn("the context of %d tokens is full; -c sets a longer one, --context-shift goes on without the oldest",
                 tn_session_get_params(loaded.session).n_ctx);
        if (args_flag(args, "show-timings")) print_closing_line(&loaded, speculation.speculator);
    }
    if (args_flag(args, "stats") && code != EXIT_ERROR) speculation_print_stats(speculation.speculator);
out:
    free(prompt);
    tn_text_free(&out.text);
    tn_sampler_free(sampler);
    tn_session_set_speculator(loaded.session, NULL);
    speculation_close(&speculation);
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
     .words = "-2=-1",
     .help = "max tokens to generate, -1 until the model stops or the context is full (see --context-shift)",
     .env = "LLAMA_ARG_N_PREDICT"},
    OPTIONS_CONTEXT_SHIFT(NULL, "0"),
    OPTIONS_CONVERSATION,
    {.name = "binary-file",
     .letter = "bf",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .help = "read the text from FILE as it is; -f drops its last line end"},
    {.name = "conversation",
     .letter = "cnv",
     .value = "[on|off|auto]",
     .kind = OPTION_FLAG,
     .help = "hold a conversation with the model's chat template, as tenon chat does; -p is the first message"},
    {.name = "echo",
     .kind = OPTION_FLAG,
     .fallback = "on",
     .aliases = "--display-prompt",
     .help = "print the prompt before its continuation"},
    OPTION_JSON,
    {0},
};
static const struct option_group *const groups[] = {
    &model_options,       &load_options, &adapter_options, &template_options, &sampling_options,
    &speculation_options, NULL};

const struct command command_run = {
    .name = "run",
    .summary = "continue a text",
    .arguments = "[MODEL] [-]",
    .options = options,
    .groups = groups,
    .details =
        "Without MODEL the default model writes a story. The text to continue comes from -p, from a file, or from "
        "standard input where - is given or where it is a pipe or a file; without any of them it is \"Once upon a "
        "time\".",
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
