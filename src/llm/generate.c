/* The comfortable way: prompts in, tokens and text out, one stream per sequence. */
#include "llm/session_internal.h"

#include "base/checked.h"
#include "tenon/sampler.h"

#include <string.h>

typedef struct tn__stream {
    tn_detokenizer *detokenizer;
    const char *text;
    float *logits; /* of the last token, kept until the next: another sequence's decode replaces the session's rows */
} tn__stream;

static tn_status stream_of(tn_session *s, int32_t seq, tn__stream **out) {
    if (!s || seq < 0 || seq >= s->params.n_seqs) return tn_fail(TN_E_INVALID, "there is no sequence %d", seq);
    if (s->params.embeddings) return tn_fail(TN_E_STATE, "the session makes embeddings, not text");
    if (!s->model->tokenizer) return tn_fail(TN_E_STATE, "the model has no tokenizer");
    if (!s->streams) {
        s->streams = tn_calloc((size_t)s->params.n_seqs, sizeof *s->streams);
        if (!s->streams) return TN_E_NOMEM;
    }
    tn__stream *stream = &s->streams[seq];
    if (!stream->detokenizer)
        TN_TRY(tn_detokenizer_new(s->model->tokenizer, TN_DECODE_CONTINUE, &stream->detokenizer));
    if (!stream->logits && !(stream->logits = tn_calloc((size_t)s->model->h.n_vocab, sizeof(float))))
        return TN_E_NOMEM;
    *out = stream;
    return TN_OK;
}

void tn__streams_free(tn_session *s) {
    for (int32_t i = 0; s->streams && i < s->params.n_seqs; i++) {
        tn_detokenizer_free(s->streams[i].detokenizer);
        tn_free(s->streams[i].logits);
    }
    tn_free(s->streams);
}

tn_status tn_session_prompt_tokens(tn_session *s, int32_t seq, const tn_token *tokens, int32_t n) {
    tn__stream *stream;
    TN_TRY(stream_of(s, seq, &stream));
    if (!tokens || n < 1) return tn_fail(TN_E_INVALID, "the prompt has no tokens");
    tn_detokenizer_reset(stream->detokenizer);
    stream->text = "";
    for (int32_t begin = 0; begin < n; begin += s->params.n_batch) {
        int32_t count = TN__MIN(s->params.n_batch, n - begin);
        for (int32_t i = 0; i < count; i++) s->prompt_seqs[i] = seq;
        tn_batch batch = {.n_tokens = count, .tokens = tokens + begin, .seqs = s->prompt_seqs};
        TN_TRY(tn_session_decode(s, &batch));
    }
    memcpy(stream->logits, tn_session_logits(s, -1), (size_t)s->model->h.n_vocab * sizeof(float));
    return TN_OK;
}

tn_status tn_session_prompt(tn_session *s, int32_t seq, const char *text, int64_t length) {
    tn__stream *stream;
    TN_TRY(stream_of(s, seq, &stream));
    if (!text) return tn_fail(TN_E_INVALID, "the prompt is NULL");
    tn_tokens tokens = {0};
    bool first = tn_session_seq_last(s, seq) < 0;
    TN_TRY(tn_tokenizer_encode(s->model->tokenizer, text, length < 0 ? strlen(text) : (size_t)length,
                               first ? TN_ENCODE_ADD_SPECIAL : TN_ENCODE_CONTINUE, &tokens));
    tn_status status = tokens.count > INT32_MAX ? tn_fail(TN_E_TOO_BIG, "the prompt has %zu tokens", tokens.count)
                                                : tn_session_prompt_tokens(s, seq, tokens.ids, (int32_t)tokens.count);
    tn_tokens_free(&tokens);
    return status;
}

tn_token tn_session_next(tn_session *s, int32_t seq, tn_sampler *sampler) {
    tn__stream *stream;
    tn_token token;
    if (stream_of(s, seq, &stream) != TN_OK) return -2;
    if (tn_sampler_sample(sampler, stream->logits, (size_t)s->model->h.n_vocab, &token) != TN_OK) return -2;
    if (tn_sampler_accept(sampler, token) != TN_OK) return -2;
    if (tn_token_is_end(s->model->tokenizer, token)) {
        stream->text = tn_detokenizer_finish(stream->detokenizer, NULL);
        return -1;
    }
    tn_batch batch = {.n_tokens = 1, .tokens = &token, .seqs = &seq};
    if (tn_session_decode(s, &batch) != TN_OK) return -2;
    memcpy(stream->logits, tn_session_logits(s, -1), (size_t)s->model->h.n_vocab * sizeof(float));
    stream->text = tn_detokenizer_push(stream->detokenizer, token, NULL);
    return token;
}

const char *tn_session_text(tn_session *s, int32_t seq) {
    if (!s || !s->streams || seq < 0 || seq >= s->params.n_seqs || !s->streams[seq].text) return "";
    return s->streams[seq].text;
}

tn_status tn_session_score(tn_session *s, int32_t seq, const tn_token *tokens, int32_t n, tn_logits_fn fn,
                           void *user) {
    if (!s || !tokens || n < 1 || !fn) return tn_fail(TN_E_INVALID, "tn_session_score: NULL argument or no tokens");
    if (seq < 0 || seq >= s->params.n_seqs) return tn_fail(TN_E_INVALID, "there is no sequence %d", seq);
    if (s->params.embeddings) return tn_fail(TN_E_STATE, "the session makes embeddings, not logits");
    int32_t step = TN__MIN(s->params.n_outputs, s->params.n_batch), position = tn_session_seq_last(s, seq) + 1;
    for (int32_t begin = 0; begin < n; begin += step) {
        int32_t count = TN__MIN(step, n - begin);
        for (int32_t i = 0; i < count; i++) {
            s->prompt_seqs[i] = seq;
            s->score_wanted[i] = true;
        }
        tn_batch batch = {
            .n_tokens = count, .tokens = tokens + begin, .seqs = s->prompt_seqs, .outputs = s->score_wanted};
        TN_TRY(tn_session_decode(s, &batch));
        for (int32_t i = 0; i < count; i++)
            if (!fn(user, position + begin + i, tn_session_logits(s, i), s->model->h.n_vocab))
                return tn_fail(TN_E_ABORTED, "scoring was stopped");
    }
    return TN_OK;
}
