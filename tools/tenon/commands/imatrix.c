/* tenon imatrix: measures on a text how much each column of each weight matrix matters. */
#include "cli/term.h"
#include "cli/text_input.h"
#include "engine/load_options.h"
#include "engine/loaded_model.h"
#include "engine/options.h"
#include "files/importance_sums.h"
#include "files/output_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct measurement {
    const tn_token *tokens; /* of the chunk */
    int32_t n;
    double sum; /* of negative log-likelihoods, all tokens but the first */
    uint64_t scored;
};

static bool add_likelihood(void *user, int32_t position, const float *logits, int32_t n_vocab) {
    struct measurement *m = user;
    if (position + 1 >= m->n) return !interrupted();
    double max = (double)logits[0], sum = 0;
    for (int32_t i = 1; i < n_vocab; i++) max = (double)logits[i] > max ? (double)logits[i] : max;
    for (int32_t i = 0; i < n_vocab; i++) sum += exp((double)logits[i] - max);
    m->sum += log(sum) + max - (double)logits[m->tokens[position + 1]];
    m->scored++;
    return !interrupted();
}

/* Every token is an output, so that the last layer sees all of them. */
static tn_status measure_chunk(tn_session *session, struct measurement *m) {
    tn_model_info info = tn_model_get_info(tn_session_model(session));
    tn_session_clear(session);
    if (info.is_causal && !info.is_encoder) return tn_session_score(session, 0, m->tokens, m->n, add_likelihood, m);
    bool *outputs = malloc((size_t)m->n * sizeof *outputs);
    if (!outputs) return TN_E_NOMEM;
    memset(outputs, true, (size_t)m->n);
    tn_batch batch = {.n_tokens = m->n, .tokens = m->tokens, .outputs = info.is_encoder ? NULL : outputs};
    tn_status status = tn_session_decode(session, &batch);
    free(outputs);
    return status == TN_OK && interrupted() ? tn_fail(TN_E_ABORTED, "interrupted") : status;
}

static int write_importance(const struct args *args, const struct importance_sums *sums, int32_t n_ctx) {
    const char *out = args_text(args, "output"), *names[65];
    struct importance_note note = {.datasets = names, .chunk_size = (uint32_t)n_ctx};
    size_t missing, partial;
    for (int i = 0; i < args_repeats(args, "in-file") && i < 64; i++)
        names[note.dataset_count++] = args_text_at(args, "in-file", i);
    if (args_text(args, "file")) names[note.dataset_count++] = args_text(args, "file");
    tn_status status = importance_sums_write(sums, out, &note, &missing, &partial);
    if (status != TN_OK) return fail_status(status, "%s", out);
    if (missing) warn("%zu matrices were not used for this text and are left out", missing);
    if (partial)
        warn("%zu matrices have experts that no token used: they are quantized with equal weights; a longer text "
             "reaches more of them",
             partial);
    return EXIT_OK;
}

static int measure_text(const struct args *args, tn_session *session, struct importance_sums *sums, tn_token *tokens,
                        size_t n_tokens) {
    const tn_tokenizer *tokenizer = tn_model_tokenizer(tn_session_model(session));
    int32_t n_ctx = tn_session_get_params(session).n_ctx;
    size_t chunks = n_tokens / (size_t)n_ctx, limit = (size_t)args_int(args, "chunks");
    if (limit && limit < chunks) chunks = limit;
    if (!chunks)
        return fail("the text has %zu tokens, fewer than one chunk of %d: use a longer text or a smaller --ctx",
                    n_tokens, n_ctx);
    tn_token begin = tn_tokenizer_adds_bos(tokenizer) ? tn_tokenizer_special(tokenizer, TN_SPECIAL_BOS) : -1;
    struct measurement m = {.n = n_ctx};
    struct progress bar;
    uint64_t started = tn_time_ns();
    tn_status status = TN_OK;
    progress_start(&bar, "measuring", chunks * (uint64_t)n_ctx, PROGRESS_ITEMS);
    for (size_t i = 0; i < chunks && status == TN_OK; i++) {
        tn_token *chunk = tokens + i * (size_t)n_ctx;
        if (begin >= 0) chunk[0] = begin; /* every chunk starts as a text does */
        m.tokens = chunk;
        status = measure_chunk(session, &m);
        progress_update(&bar, (i + 1) * (uint64_t)n_ctx);
    }
    progress_end(&bar);
    if (status != TN_OK && importance_sums_status(sums) != TN_OK) status = importance_sums_status(sums);
    if (status != TN_OK)
        return fail_status(status, "%s", args_text(args, "file") ? args_text(args, "file") : "the text");
    int code = write_importance(args, sums, n_ctx);
    if (code) return code;
    char took[HUMAN_SIZE], bytes[HUMAN_SIZE];
    printf("%s: %zu chunk%s of %d tokens, ", args_text(args, "output"), chunks, chunks == 1 ? "" : "s", n_ctx);
    if (m.scored) printf("perplexity %.4f, ", exp(m.sum / (double)m.scored));
    printf("%s for sums, in %s\n", human_bytes(bytes, importance_sums_bytes(sums)),
           human_seconds(took, (double)(tn_time_ns() - started) * 1e-9));
    return EXIT_OK;
}

/* Whether a model is an encoder must be known before its session is planned. */
static int prepare_params(const char *path, tn_session_params *params) {
    tn_model *model;
    tn_status status = tn_model_open(path, NULL, &model);
    if (status != TN_OK) return fail_status(status, "%s", path);
    tn_model_info info = tn_model_get_info(model);
    if (info.is_encoder || !info.is_causal) { /* the whole text at once */
        params->n_batch = params->n_ubatch = params->n_ctx;
        params->embeddings = info.is_encoder;
        params->n_outputs = info.is_encoder ? 0 : params->n_ctx;
    }
    tn_model_close(model);
    return EXIT_OK;
}

static int run_imatrix(const struct args *args) {
    char buffer[4096];
    const char *path = find_model(args, buffer, sizeof buffer), *file = args_text(args, "file");
    if (!path) return EXIT_ERROR;
    tn_session_params params;
    int code = session_params_from(args, &params);
    if (code) return code;
    code = check_output(args_text(args, "output"), args_flag(args, "force"), (const char *[]){path, file}, 2);
    if (code) return code;
    if (!args_given(args, "ctx")) params.n_ctx = 512;
    if (params.n_ctx < 4) return fail("a chunk of %d tokens is too short: use --ctx 4 or more", params.n_ctx);
    if (args_repeats(args, "in-file") > 64) return fail_usage(args, "--in-file was given more than 64 times");
    if (params.n_batch > params.n_ctx) params.n_batch = params.n_ctx;
    params.n_outputs = params.n_batch < 128 ? params.n_batch : 128;
    char *text = NULL;
    size_t size = 0;
    struct importance_sums *sums = NULL;
    struct loaded_model loaded = {0};
    tn_tokens tokens = {0};
    tn_gguf *model = NULL;
    code = prepare_params(path, &params);
    if (!code) code = file && strcmp(file, "-") != 0 ? read_text_file(file, &text, &size) : read_input(&text, &size);
    if (code) return code;
    tn_status status = tn_gguf_open(path, &(tn_gguf_params){.mode = TN_GGUF_META}, &model);
    if (status == TN_OK) status = importance_sums_new(model, args_flag(args, "process-output"), &sums);
    for (int i = 0; i < args_repeats(args, "in-file") && status == TN_OK; i++)
        status = importance_sums_add_file(sums, args_text_at(args, "in-file", i));
    if (status != TN_OK) code = fail_status(status, "imatrix");
    params.eval = importance_sums_observe;
    params.eval_user = sums;
    if (!code) code = loaded_model_open(args, path, &params, &loaded);
    if (!code && !tn_model_tokenizer(loaded.model)) code = fail("%s has no tokenizer", path);
    if (!code) {
        unsigned flags = TN_ENCODE_ADD_SPECIAL | (args_flag(args, "parse-special") ? TN_ENCODE_PARSE_SPECIAL : 0u);
        status = tn_tokenizer_encode(tn_model_tokenizer(loaded.model), text, size, flags, &tokens);
        code = status == TN_OK ? measure_text(args, loaded.session, sums, tokens.ids, tokens.count)
                               : fail_status(status, "the text");
    }
    free(text);
    tn_tokens_free(&tokens);
    loaded_model_close(&loaded);
    importance_sums_free(sums);
    tn_gguf_close(model);
    return code;
}

static const struct option options[] = {
    {.name = "file",
     .letter = "f",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .help = "file with the text; standard input by default"},
    {.name = "output",
     .letter = "o",
     .aliases = "--output-file",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .fallback = "imatrix.gguf",
     .help = "write the importance matrix to FILE"},
    {.name = "chunks",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = 1e9,
     .fallback = "0",
     .help = "stop after N chunks, 0 for all"},
    {.name = "in-file",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .repeats = true,
     .help = "begin with the sums of an importance file of the same model"},
    {.name = "process-output", .help = "measure the output matrix, too", .kind = OPTION_FLAG},
    OPTION_FORCE,
    {.name = "parse-special", .help = "read control tokens in the text as such", .kind = OPTION_FLAG},
    {0},
};
static const struct option_group *const groups[] = {&model_options, &load_options, &adapter_options, NULL};

const struct command command_imatrix = {
    .name = "imatrix",
    .summary = "measure on a text which weights matter, for tenon quantize",
    .arguments = "[MODEL]",
    .options = options,
    .groups = groups,
    .details =
        "The model processes the text in chunks of --ctx tokens (by default 512 for this command). The result has "
        "the "
        "mean square of every input of every weight matrix, for experts of each one's own tokens; with it tenon "
        "quantize --imatrix keeps the errors small where they matter. It is a GGUF file that llama.cpp reads as "
        "well. "
        "A few hundred kilobytes of text like what the model will be used for are enough. Use the model with the "
        "most bits that fits.",
    .examples = "tenon imatrix model-f16.gguf -f calibration.txt -o imatrix.gguf\n"
                "tenon imatrix model-f16.gguf -f more.txt --in-file imatrix.gguf -o both.gguf\n",
    .section = SECTION_TEXT,
    .min_arguments = 0,
    .max_arguments = 1,
    .run = run_imatrix,
};
