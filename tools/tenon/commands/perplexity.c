/* tenon perplexity: how well a model predicts a text. */
#include "cli/term.h"
#include "cli/text_input.h"
#include "engine/divergence.h"
#include "engine/load_options.h"
#include "engine/loaded_model.h"
#include "engine/options.h"
#include "files/log_probs.h"
#include "files/output_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct score_tally {
    const tn_token *tokens; /* of the chunk */
    int32_t first;          /* position of the first scored row */
    int32_t n;
    double sum, squares; /* of negative log-likelihoods */
    uint64_t count;
    struct log_probs *file;       /* of log-probabilities to write or to compare with; NULL: none */
    struct divergence divergence; /* from those of the file */
    float *base;                  /* one row of it; NULL: the file is written */
    tn_status status;             /* of the file */
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
        if (t->file && !t->base) t->status = log_probs_append(t->file, logits);
        if (t->base) {
            t->status = log_probs_next(t->file, t->base);
            if (t->status == TN_OK) divergence_add(&t->divergence, logits, t->base, n_vocab, t->tokens[position + 1]);
        }
    }
    return t->status == TN_OK && !interrupted();
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
    tn_status status = tn_session_score(session, 0, t->tokens + t->first, t->n - 1 - t->first, count_row, t);
    return t->status != TN_OK ? t->status : status;
}

static double perplexity_deviation(const struct score_tally *t) { /* of the perplexity, propagated from the mean */
    if (t->count < 2) return 0;
    double n = (double)t->count, mean = t->sum / n, variance = t->squares / n - mean * mean;
    return variance > 0 ? sqrt(variance / (n - 1)) * exp(mean) : 0;
}

static void print_score(const struct args *args, struct score_tally *t, size_t chunks, double seconds) {
    const double perplexity = exp(t->sum / (double)t->count);
    char took[HUMAN_SIZE];
    if (args_flag(args, "json")) {
        printf("{\"perplexity\": %.6f, \"deviation\": %.6f, \"chunks\": %zu, \"ctx\": %d, \"scored\": %llu, "
               "\"seconds\": %.3f",
               perplexity, perplexity_deviation(t), chunks, t->n, (unsigned long long)t->count, seconds);
        if (t->base) fputs(", ", stdout);
        divergence_print_json(&t->divergence, stdout);
        puts("}");
        return;
    }
    printf("%sperplexity %.4f ± %.4f over %llu tokens in %zu chunk%s of %d, %s\n", chunks % 8 ? "\n" : "", perplexity,
           perplexity_deviation(t), (unsigned long long)t->count, chunks, chunks == 1 ? "" : "s", t->n,
           human_seconds(took, seconds));
    if (t->base) putchar('\n');
    divergence_print(&t->divergence, stdout);
}

static int score_chunks(const struct args *args, tn_session *session, struct score_tally *t, tn_token *tokens,
                        size_t chunks) {
    const tn_tokenizer *tokenizer = tn_model_tokenizer(tn_session_model(session));
    tn_token begin = tn_tokenizer_adds_bos(tokenizer) ? tn_tokenizer_special(tokenizer, TN_SPECIAL_BOS) : -1;
    const uint64_t started = tn_time_ns();
    for (size_t i = 0; i < chunks; i++) {
        tn_token *chunk = tokens + i * (size_t)t->n;
        if (begin >= 0) chunk[0] = begin; /* every chunk starts as a text does */
        t->tokens = chunk;
        tn_status status = score_chunk(session, t);
        if (status != TN_OK) return fail_status(status, "chunk %zu", i + 1);
        double perplexity = exp(t->sum / (double)t->count);
        if (!isfinite(perplexity))
            return fail("chunk %zu: the logits are not finite; are the model's weights damaged? (--check-tensors)",
                        i + 1);
        if (args_flag(args, "json")) continue;
        printf("[%zu] %.4f  ", i + 1, perplexity);
        if ((i + 1) % 8 == 0) putchar('\n');
        fflush(stdout);
    }
    if (t->file && !t->base) {
        tn_status status = log_probs_finish(t->file);
        if (status != TN_OK) return fail_status(status, "%s", args_text(args, "kl-divergence-base"));
    }
    print_score(args, t, chunks, (double)(tn_time_ns() - started) * 1e-9);
    return EXIT_OK;
}

/* Scores a text or, where there is a base, its tokens. */
static int measure_perplexity(const struct args *args, tn_session *session, struct log_probs *base, tn_token *tokens,
                              size_t n_tokens) {
    const char *path = args_text(args, "kl-divergence-base");
    const bool compare = args_flag(args, "kl-divergence");
    int32_t n_ctx = tn_session_get_params(session).n_ctx;
    const int32_t n_vocab = tn_model_get_info(tn_session_model(session)).n_vocab;
    size_t chunks = n_tokens / (size_t)n_ctx, limit = (size_t)args_int(args, "chunks");
    if (limit && limit < chunks) chunks = limit;
    if (!chunks)
        return fail("the text has %zu tokens, fewer than one chunk of %d: use a longer text or a smaller --ctx",
                    n_tokens, n_ctx);
    if (compare && base->n_vocab != n_vocab)
        return fail("%s: a vocabulary of %d tokens; the model's has %d", path, base->n_vocab, n_vocab);
    struct score_tally t = {.first = n_ctx / 2, .n = n_ctx, .file = path ? base : NULL};
    tn_status status = TN_OK;
    if (compare) {
        status = divergence_new(chunks * (size_t)(n_ctx - 1 - n_ctx / 2), &t.divergence);
        t.base = malloc((size_t)n_vocab * sizeof *t.base);
        if (!t.base) status = TN_E_NOMEM;
    } else if (path) {
        status = log_probs_create(path, n_ctx, n_vocab, (int32_t)chunks, tokens, base);
    }
    int code = status == TN_OK ? score_chunks(args, session, &t, tokens, chunks) : fail_status(status, "%s", path);
    divergence_free(&t.divergence);
    free(t.base);
    return code;
}

static int open_base(const struct args *args, tn_session_params *params, struct log_probs *base) {
    const char *path = args_text(args, "kl-divergence-base");
    if (!path) return fail_usage(args, "--kl-divergence needs --kl-divergence-base FILE");
    tn_status status = log_probs_open(path, base);
    if (status != TN_OK) return fail_status(status, "%s", "--kl-divergence-base");
    if (args_given(args, "ctx") && params->n_ctx != base->n_ctx)
        warn("%s has chunks of %d tokens; --ctx is ignored", path, base->n_ctx);
    params->n_ctx = base->n_ctx;
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
    const bool compare = args_flag(args, "kl-divergence");
    const char *predictions = args_text(args, "kl-divergence-base");
    if (predictions && !compare)
        code = check_output(predictions, args_flag(args, "force"), (const char *[]){path, file}, 2);
    if (code) return code;
    struct log_probs base = {0};
    char *text = NULL;
    size_t size = 0;
    if (compare) { /* the text's tokens are in the file */
        code = open_base(args, &params, &base);
    } else {
        code = file && strcmp(file, "-") != 0 ? read_text_file(file, &text, &size) : read_input(&text, &size);
    }
    if (code) return code;
    if (params.n_batch > params.n_ctx) params.n_batch = params.n_ctx;
    params.n_outputs = params.n_batch < 128 ? params.n_batch : 128;
    struct loaded_model loaded;
    tn_tokens tokens = {0};
    code = loaded_model_open(args, path, &params, &loaded);
    if (!code && !tn_model_tokenizer(loaded.model)) code = fail("%s has no tokenizer", path);
    if (!code && compare) {
        code =
            measure_perplexity(args, loaded.session, &base, base.tokens, (size_t)base.n_ctx * (size_t)base.n_chunks);
    } else if (!code) {
        tn_status status =
            tn_tokenizer_encode(tn_model_tokenizer(loaded.model), text, size, TN_ENCODE_ADD_SPECIAL, &tokens);
        code = status == TN_OK ? measure_perplexity(args, loaded.session, &base, tokens.ids, tokens.count)
                               : fail_status(status, "the text");
    }
    free(text);
    tn_tokens_free(&tokens);
    log_probs_close(&base);
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
    {.name = "kl-divergence-base",
     .aliases = "--save-all-logits",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .help = "write all predictions to FILE, or compare with it (--kl-divergence)"},
    {.name = "kl-divergence",
     .help = "compare with the predictions of another model on the same text",
     .kind = OPTION_FLAG},
    OPTION_FORCE,
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
        "chunk of context. Lower is better; compare results only for the same text, tokenizer and context.\n\n"
        "--kl-divergence-base FILE also writes what the model predicts for every scored token, two bytes for each "
        "token of the vocabulary. With --kl-divergence another model, usually a quantized one, is compared with "
        "that: "
        "KL divergence, change of the probability of the text's own tokens (Δp), and how often both find the same "
        "token most likely. The text is in FILE. llama.cpp reads and writes such files as well.",
    .examples = "tenon perplexity model.gguf -f wiki.test.raw\n"
                "tenon perplexity model-q4.gguf -f wiki.test.raw --chunks 20 --cache-type q8_0\n"
                "tenon perplexity model-f16.gguf -f wiki.test.raw --kl-divergence-base f16.kld\n"
                "tenon perplexity model-q4.gguf --kl-divergence-base f16.kld --kl-divergence",
    .section = SECTION_TEXT,
    .min_arguments = 0,
    .max_arguments = 1,
    .run = run_perplexity,
};
