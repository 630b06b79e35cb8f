/* Text generation with a session: prompts in, tokens and text out, and the scores of given tokens. */
#include "llm/session_internal.h"

#include "base/checked.h"
#include "tenon/generate.h"

#include <string.h>

/* A sequence that tn_session_prompt has begun. */
typedef struct tn__sequence {
    tn_generator *generator;
    /* Logits after the last token. A copy: the decode of another sequence replaces the session's rows. */
    float *logits;
    bool pending; /* the generator's token is not decoded yet: its decode failed */
} tn__sequence;

static tn_status check_causal(const tn_session *s) {
    if (s->plan->model->h.causal) return TN_OK;
    return tn_fail(
        TN_E_UNSUPPORTED,
        "%s models are not causal: tn_session_decode gives the logits of whole sequences, and generating text "
        "by diffusion is not supported",
        s->plan->model->arch->info.name);
}

static tn_status find_sequence(tn_session *s, int32_t seq, tn__sequence **out) {
    if (!s || seq < 0 || seq >= s->plan->params.n_seqs) return tn_fail(TN_E_INVALID, "there is no sequence %d", seq);
    if (s->plan->params.embeddings) return tn_fail(TN_E_STATE, "the session makes embeddings, not text");
    TN_TRY(check_causal(s));
    if (!s->plan->model->tokenizer) return tn_fail(TN_E_STATE, "the model has no tokenizer");
    if (!s->sequences) {
        s->sequences = tn_calloc((size_t)s->plan->params.n_seqs, sizeof *s->sequences);
        if (!s->sequences) return TN_E_NOMEM;
    }
    tn__sequence *sequence = &s->sequences[seq];
    if (!sequence->generator)
        TN_TRY(tn_generator_new(s->plan->model->tokenizer, &(tn_generator_params){.decode_flags = TN_DECODE_CONTINUE},
                                &sequence->generator));
    if (!sequence->logits && !(sequence->logits = tn_calloc((size_t)s->plan->model->h.n_vocab, sizeof(float))))
        return TN_E_NOMEM;
    *out = sequence;
    return TN_OK;
}

void tn__sequences_free(tn_session *s) {
    for (int32_t i = 0; s->sequences && i < s->plan->params.n_seqs; i++) {
        tn_generator_free(s->sequences[i].generator);
        tn_free(s->sequences[i].logits);
    }
    tn_free(s->sequences);
}

static void keep_logits(tn_session *s, tn__sequence *sequence) {
    memcpy(sequence->logits, tn_session_logits(s, -1), (size_t)s->plan->model->h.n_vocab * sizeof(float));
}

tn_status tn_session_prompt_tokens(tn_session *s, int32_t seq, const tn_token *tokens, int32_t n) {
    tn__sequence *sequence = NULL;
    TN_TRY(find_sequence(s, seq, &sequence));
    if (!tokens || n < 1) return tn_fail(TN_E_INVALID, "the prompt has no tokens");
    tn_generator_restart(sequence->generator);
    sequence->pending = false;
    for (int32_t begin = 0; begin < n; begin += s->plan->params.n_batch) {
        int32_t count = TN__MIN(s->plan->params.n_batch, n - begin);
        for (int32_t i = 0; i < count; i++) s->staging.prompt_seqs[i] = seq;
        tn_batch batch = {.n_tokens = count, .tokens = tokens + begin, .seqs = s->staging.prompt_seqs};
        TN_TRY(tn_session_decode(s, &batch));
    }
    keep_logits(s, sequence);
    return TN_OK;
}

tn_status tn_session_prompt(tn_session *s, int32_t seq, const char *text, int64_t length) {
    tn__sequence *sequence = NULL;
    TN_TRY(find_sequence(s, seq, &sequence));
    if (!text) return tn_fail(TN_E_INVALID, "the prompt is NULL");
    tn_tokens tokens = {0};
    bool first = tn_session_seq_last(s, seq) < 0;
    TN_TRY(tn_tokenizer_encode(s->plan->model->tokenizer, text, length < 0 ? strlen(text) : (size_t)length,
                               first ? TN_ENCODE_ADD_SPECIAL : TN_ENCODE_CONTINUE, &tokens));
    tn_status status = tokens.count > INT32_MAX ? tn_fail(TN_E_TOO_BIG, "the prompt has %zu tokens", tokens.count)
                                                : tn_session_prompt_tokens(s, seq, tokens.ids, (int32_t)tokens.count);
    tn_tokens_free(&tokens);
    return status;
}

tn_status tn_session_next(tn_session *s, int32_t seq, tn_sampler *sampler, tn_token *token) {
    tn__sequence *sequence = NULL;
    if (token) *token = TN_TOKEN_NONE;
    TN_TRY(find_sequence(s, seq, &sequence));
    if (!sequence->pending) {
        tn_generator_set_sampler(sequence->generator, sampler);
        TN_TRY(tn_generator_sample_logits(sequence->generator, sequence->logits, (size_t)s->plan->model->h.n_vocab));
    }
    const tn_token next = tn_generator_token(sequence->generator);
    tn_batch batch = {.n_tokens = 1, .tokens = &next, .seqs = &seq};
    sequence->pending = true;
    TN_TRY(tn_session_decode(s, &batch));
    sequence->pending = false;
    keep_logits(s, sequence);
    if (token) *token = next;
    return TN_OK;
}

const char *tn_session_text(tn_session *s, int32_t seq) {
    if (!s || !s->sequences || seq < 0 || seq >= s->plan->params.n_seqs || !s->sequences[seq].generator) return "";
    return tn_generator_text(s->sequences[seq].generator, NULL);
}

tn_status tn_session_score(tn_session *s, int32_t seq, const tn_token *tokens, int32_t n, tn_logits_fn fn,
                           void *user) {
    if (!s || !tokens || n < 1 || !fn) return tn_fail(TN_E_INVALID, "tn_session_score: NULL argument or no tokens");
    if (seq < 0 || seq >= s->plan->params.n_seqs) return tn_fail(TN_E_INVALID, "there is no sequence %d", seq);
    if (s->plan->params.embeddings) return tn_fail(TN_E_STATE, "the session makes embeddings, not logits");
    TN_TRY(check_causal(s));
    int32_t step = TN__MIN(s->plan->params.n_outputs, s->plan->params.n_batch),
            position = tn_session_seq_last(s, seq) + 1;
    for (int32_t begin = 0; begin < n; begin += step) {
        int32_t count = TN__MIN(step, n - begin);
        for (int32_t i = 0; i < count; i++) {
            s->staging.prompt_seqs[i] = seq;
            s->staging.score_wanted[i] = true;
        }
        tn_batch batch = {.n_tokens = count,
                          .tokens = tokens + begin,
                          .seqs = s->staging.prompt_seqs,
                          .outputs = s->staging.score_wanted};
        TN_TRY(tn_session_decode(s, &batch));
        for (int32_t i = 0; i < count; i++)
            if (!fn(user, position + begin + i, tn_session_logits(s, i), s->plan->model->h.n_vocab))
                return tn_fail(TN_E_ABORTED, "scoring was stopped");
    }
    return TN_OK;
}
