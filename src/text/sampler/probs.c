/* Probabilities for the caller: of the candidates of the last draw, and of a row of logits. */
#include "base/checked.h"
#include "text/sampler/internal.h"

#include <math.h>

tn_status tn_sampler_candidates(tn_sampler *s, tn_token_prob *out, size_t capacity, size_t *count) {
    if (!s || (!out && capacity) || !count)
        return tn_fail(TN_E_INVALID, "tn_sampler_candidates: sampler, out or count is NULL");
    *count = 0;
    if (!s->drawn) return tn_fail(TN_E_STATE, "tn_sampler_candidates: no token has been drawn yet");
    double log_total = log(tn__candidates_weights(s));
    float max = tn__candidates_max(s);
    size_t n = s->count;
    if (s->dense) n = tn__keys_from_row(s->list, s->row, s->block_max, s->n_vocab, TN__MIN(capacity, s->n_vocab));
    size_t top = TN__MIN(n, capacity);
    tn__keys_select(s->list, n, top);
    tn__keys_sort(s->list, top);
    for (size_t i = 0; i < top; i++)
        out[i] =
            (tn_token_prob){tn__key_token(s->list[i]), (float)((double)tn__key_value(s->list[i]) - max - log_total)};
    *count = top;
    return TN_OK;
}

/* As everywhere in the sampler, NaN counts as -inf and +inf as the largest finite value. */
static float clamp_logit(float x) { return x >= -TN__LOGIT_MAX ? fminf(x, TN__LOGIT_MAX) : -INFINITY; }

tn_status tn_top_logprobs(const float *logits, size_t n_vocab, tn_token_prob *top, size_t n_top, tn_token chosen,
                          float *chosen_logprob) {
    if (!logits || (!top && n_top)) return tn_fail(TN_E_INVALID, "tn_top_logprobs: logits or top is NULL");
    if (chosen_logprob && (chosen < 0 || (size_t)chosen >= n_vocab))
        return tn_fail(TN_E_INVALID, "token %d is outside the vocabulary of %zu", chosen, n_vocab);
    enum { CHUNK = 4096 };
    _Alignas(64) float row[CHUNK], weights[CHUNK], block_max[CHUNK / TN__SCAN_BLOCK];
    double block_sums[CHUNK / TN__SCAN_BLOCK], total = 0;
    float max = -INFINITY;
    const tn__scan *scan = tn__scan_widest();
    size_t n_found = 0;
    for (size_t from = 0; from < n_vocab; from += CHUNK) {
        size_t n = TN__MIN(n_vocab - from, (size_t)CHUNK), blocks = tn__scan_blocks(n);
        scan->load(row, block_max, logits + from, NULL, n);
        float chunk_max = -INFINITY;
        for (size_t b = 0; b < blocks; b++) chunk_max = fmaxf(chunk_max, block_max[b]);
        if (chunk_max == -INFINITY) continue;
        if (chunk_max > max) { /* the sum so far is relative to a smaller maximum */
            if (total > 0) total *= exp((double)max - chunk_max);
            max = chunk_max;
        }
        total += scan->exp_sum(row, weights, block_sums, blocks, max);
        /* The caller's array is kept sorted; an insertion drops the smallest. Of equal logits the earlier token
         * stays. */
        for (size_t b = 0; n_top > 0 && b < blocks; b++) {
            if (n_found == n_top && !(block_max[b] > top[n_found - 1].logprob)) continue;
            for (size_t i = b * TN__SCAN_BLOCK; i < TN__MIN(n, (b + 1) * TN__SCAN_BLOCK); i++) {
                if (row[i] == -INFINITY || (n_found == n_top && !(row[i] > top[n_found - 1].logprob))) continue;
                size_t at = n_found < n_top ? n_found++ : n_found - 1;
                for (; at > 0 && top[at - 1].logprob < row[i]; at--) top[at] = top[at - 1];
                top[at] = (tn_token_prob){(tn_token)(from + i), row[i]};
            }
        }
    }
    if (total == 0) return tn_fail(TN_E_INFEASIBLE, "every logit is -inf");
    double log_total = log(total);
    for (size_t i = 0; i < n_top; i++)
        top[i] = i < n_found ? (tn_token_prob){top[i].token, (float)((double)top[i].logprob - max - log_total)}
                             : (tn_token_prob){TN_TOKEN_NONE, -INFINITY};
    if (chosen_logprob) *chosen_logprob = (float)((double)clamp_logit(logits[chosen]) - max - log_total);
    return TN_OK;
}
