/* tenon run: continue a text. */
#include "engine.h"
#include "text_input.h"

#include <stdlib.h>
#include <string.h>

/* Streams up to `limit` tokens (negative: until the model or the context ends). */
static int generate(tn_session *session, tn_sampler *sampler, int64_t limit) {
    for (int64_t i = 0; (limit < 0 || i < limit) && !interrupted(); i++) {
        tn_token token = tn_session_next(session, 0, sampler);
        fputs(tn_session_text(session, 0), stdout);
        if (fflush(stdout) != 0) return fail("standard output is closed");
        if (token == -1) break;
        if (token < 0) {
            putchar('\n');
            return interrupted() ? EXIT_INTERRUPTED : fail("%s", tn_error());
        }
    }
    putchar('\n');
    return interrupted() ? EXIT_INTERRUPTED : EXIT_OK;
}

static int run(const struct args *args) {
    char buffer[4096];
    const char *path = engine_model_path(args, buffer, sizeof buffer);
    if (!path) return EXIT_ERROR;
    tn_model *model = NULL;
    tn_session *session = NULL;
    tn_sampler *sampler = NULL;
    tn_session_params params;
    char *prompt = NULL;
    size_t size = 0;
    int code = engine_session_params(args, &params);
    if (code) return code;
    const char *file = args_text(args, "file"), *text = args_text(args, "prompt");
    if (file) {
        if ((code = read_text_file(file, &prompt, &size))) return code;
    } else if (text && strcmp(text, "-") == 0) {
        if ((code = read_input(&prompt, &size))) return code;
    } else {
        prompt = strdup(text ? text : "Once upon a time");
        size = prompt ? strlen(prompt) : 0;
    }
    if ((code = engine_open(args, path, &params, &model, &session))) goto out;
    if ((code = engine_sampler(args, model, &sampler))) goto out;
    if (!args_flag(args, "no-echo")) {
        fwrite(prompt, 1, size, stdout);
        fflush(stdout);
    }
    tn_status status = tn_session_prompt(session, 0, prompt, (int64_t)size);
    code = status != TN_OK ? fail_status(status, "%s", "") : generate(session, sampler, args_int(args, "predict"));
    engine_closing_line(session);
out:
    free(prompt);
    tn_sampler_free(sampler);
    tn_session_free(session);
    tn_model_close(model);
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
     .help = "tokens to write, -1 until the model stops",
     .env = "LLAMA_ARG_N_PREDICT"},
    {.name = "no-echo", .kind = OPTION_FLAG, .help = "leave out the prompt"},
    {0},
};
static const struct option_group *const groups[] = {&engine_options, &sampling_options, NULL};

const struct command command_run = {
    .name = "run",
    .summary = "continue a text",
    .arguments = "[MODEL]",
    .options = options,
    .groups = groups,
    .details = "Without MODEL the default model writes a story.",
    .examples = "tenon run\n"
                "tenon run model.gguf -p \"The capital of France is\" -n 20 --temp 0\n"
                "tenon run model.gguf -f letter.txt -c 8192",
    .section = SECTION_USE,
    .min_arguments = 0,
    .max_arguments = 1,
    .run = run,
};
