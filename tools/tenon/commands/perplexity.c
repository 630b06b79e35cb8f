/* tenon perplexity: how well a model predicts a text. */
#include "cli/term.h"
#include "cli/text_input.h"
#include "engine/load_options.h"
#include "engine/loaded_model.h"
#include "engine/options.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct score_tally {
    const tn_token *tokens; /* of the chunk */
    int32_t first;          /* position of the first scored row */
    int32_t n;
    double sum, squares; /* of negative log-likelihoods */
    uint64_t count;
};

/* -log p(next), from one row of logits. */
static double negative_log_likelihood(const float *logits, int32_t n, tn_token next) {
    double max = (double)logits[0], sum = 0;
    for (int32_t i = 1; i < n; i++)
        if ((double)logits[i] > max) max = (double)logits[i];
    for (int32_t i = 0; i < n; i++) sum += exp((double)logits[i] - max);
    return log(sum) + max - (double)logits[next];
}

static bool count_row(void *user, int32_t position, const float *logits, int32_t n_vocab) {
    struct score_tally *t = user;
    if (position + 1 < t->n) {
        double value = negative_log_likelihood(logits, n_vocab, t->tokens[position + 1]);
        t->sum += value;
        t->squares += value * value;
        t->count++;
    }
    return !interrupted();
}

/* The first half of a chunk is context only: its tokens are not scored. */
static tn_status score_chunk(tn_session *session, struct score_tally *t) {
    static const bool none[4096];
    tn_session_clear(session);
    int32_t max = tn_session_get_params(session).n_batch;
    if (max > 4096) max = 4096;
    for (int32_t begin = 0, n; begin < t->first; begin += n) {
        n = t->first - begin < max ? t->first - begin : max;
        tn_batch batch = {.n_tokens = n, .tokens = t->tokens + begin, .outputs = none};
        TN_TRY(tn_session_decode(session, &batch));
    }
    return tn_session_score(session, 0, t->tokens + t->first, t->n - 1 - t->first, count_row, t);
}

static double perplexity_deviation(const struct score_tally *t) { /* of the perplexity, propagated from the mean */
    if (t->count < 2) return 0;
    double n = (double)t->count, mean = t->sum / n, variance = t->squares / n - mean * mean;
    return variance > 0 ? sqrt(variance / (n - 1)) * exp(mean) : 0;
}

static int measure_perplexity(const struct args *args, tn_session *session, tn_token *tokens, size_t n_tokens) {
    const tn_tokenizer *tokenizer = tn_model_tokenizer(tn_session_model(session));
    int32_t n_ctx = tn_session_get_params(session).n_ctx;
    size_t chunks = n_tokens / (size_t)n_ctx, limit = (size_t)args_int(args, "chunks");
    if (limit && limit < chunks) chunks = limit;
    if (!chunks)
        return fail("the text has %zu tokens, fewer than one chunk of %d: use a longer text or a smaller --ctx",
                    n_tokens, n_ctx);
    bool json = args_flag(args, "json");
    struct score_tally t = {.first = n_ctx / 2, .n = n_ctx};
    tn_token begin = tn_tokenizer_adds_bos(tokenizer) ? tn_tokenizer_special(tokenizer, TN_SPECIAL_BOS) : -1;
    uint64_t started = tn_time_ns();
    for (size_t i = 0; i < chunks; i++) {
        tn_token *chunk = tokens + i * (size_t)n_ctx;
        if (begin >= 0) chunk[0] = begin; /* every chunk starts as a text does */
        t.tokens = chunk;
        tn_status status = score_chunk(session, &t);
        if (status != TN_OK) return fail_status(status, "chunk %zu", i + 1);
        double perplexity = exp(t.sum / (double)t.count);
        if (!isfinite(perplexity))
            return fail("chunk %zu: the logits are not finite; are the model's weights damaged? (--check-tensors)",
                        i + 1);
        if (json) continue;
        printf("[%zu] %.4f  ", i + 1, perplexity);
        if ((i + 1) % 8 == 0) putchar('\n');
        fflush(stdout);
    }
    double seconds = (double)(tn_time_ns() - started) * 1e-9, perplexity = exp(t.sum / (double)t.count);
    char took[HUMAN_SIZE];
    if (json)
        printf("{\"perplexity\": %.6f, \"deviation\": %.6f, \"chunks\": %zu, \"ctx\": %d, \"scored\": %llu, "
               "\"seconds\": %.3f}\n",
               perplexity, perplexity_deviation(&t), chunks, n_ctx, (unsigned long long)t.count, seconds);
    else
        printf("%sperplexity %.4f ± %.4f over %llu tokens in %zu chunk%s of %d, %s\n", chunks % 8 ? "\n" : "",
               perplexity, perplexity_deviation(&t), (unsigned long long)t.count, chunks, chunks == 1 ? "" : "s",
               n_ctx, human_seconds(took, seconds));
    return EXIT_OK;
}

static int run_perplexity(const struct args *args) {
    char buffer[4096];
    const char *path = find_model(args, buffer, sizeof buffer), *file = args_text(args, "file");
    if (!path) return EXIT_ERROR;
    tn_session_params params;
    int code = session_params_from(args, &params);
    if (code) return code;
    if (!args_given(args, "ctx")) params.n_ctx = 512;
    if (params.n_ctx < 4) return fail("a chunk of %d tokens is too short: use --ctx 4 or more", params.n_ctx);
    if (params.n_batch > params.n_ctx) params.n_batch = params.n_ctx;
    params.n_outputs = params.n_batch < 128 ? params.n_batch : 128;
    char *text;
    size_t size;
    code = file && strcmp(file, "-") != 0 ? read_text_file(file, &text, &size) : read_input(&text, &size);
    if (code) return code;
    struct loaded_model loaded;
    tn_tokens tokens = {0};
    code = loaded_model_open(args, path, &params, &loaded);
    if (!code && !tn_model_tokenizer(loaded.model)) code = fail("%s has no tokenizer", path);
    if (!code) {
        tn_status status =
            tn_tokenizer_encode(tn_model_tokenizer(loaded.model), text, size, TN_ENCODE_ADD_SPECIAL, &tokens);
        code = status == TN_OK ? measure_perplexity(args, loaded.session, tokens.ids, tokens.count)
                               : fail_status(status, "the text");
    }
    free(text);
    tn_tokens_free(&tokens);
    loaded_model_close(&loaded);
    return code;
}

static const struct option options[] = {
    {.name = "file",
     .letter = "f",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .help = "file with the text; standard input by default"},
    {.name = "chunks",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = 1e9,
     .fallback = "0",
     .help = "stop after N chunks, 0 for all"},
    OPTION_JSON,
    {0},
};
static const struct option_group *const groups[] = {&model_options, &load_options, &adapter_options, NULL};

const struct command command_perplexity = {
    .name = "perplexity",
    .summary = "measure how well a model predicts a text",
    .arguments = "[MODEL]",
    .options = options,
    .groups = groups,
    .details =
        "The text is divided into chunks of --ctx tokens (by default 512 for this command), which are processed "
        "independently. Only the second half of each chunk is scored, so that every scored token has at least half a "
        "chunk of context. Lower is better; compare results only for the same text, tokenizer and context.",
    .examples = "tenon perplexity model.gguf -f wiki.test.raw\n"
                "tenon perplexity model-q4.gguf -f wiki.test.raw --chunks 20 --cache-type q8_0",
    .section = SECTION_TEXT,
    .min_arguments = 0,
    .max_arguments = 1,
    .run = run_perplexity,
};
