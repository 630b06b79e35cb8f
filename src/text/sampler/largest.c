/* Draws from the largest logits of a row alone, where the others cannot change the draw.
 *
 * The list has every token whose logit is above `below`, and maybe some that are equal to it. Penalties and biases
 * lower logits, so the others stay at `below` or under it. As soon as a sampler keeps only tokens above `below`, the
 * list holds all candidates, as if the whole row had been there. */
#include "base/checked.h"
#include "text/sampler/internal.h"

#include <math.h>

/* More biases than this are not looked up one by one. */
enum { MOST_BIASES = 64 };

static void list_largest(tn_sampler *s, const tn_token *tokens, const float *logits, size_t n, const uint64_t *mask) {
    s->dense = false;
    s->count = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t token = (size_t)tokens[i];
        const bool allowed = !mask || (mask[token / 64] >> token % 64 & 1);
        if (!allowed || !(logits[i] >= -TN__LOGIT_MAX)) continue;
        s->list[s->count++] = tn__key_make(fminf(logits[i], TN__LOGIT_MAX), tokens[i]);
    }
}

/* False: a token outside the list may rise above it. */
static bool bias_list(tn_sampler *s) {
    if (s->params.n_logit_bias > MOST_BIASES) return false;
    for (size_t k = 0; k < s->params.n_logit_bias; k++) {
        const tn_logit_bias *b = &s->params.logit_bias[k];
        size_t i = 0;
        while (i < s->count && tn__key_token(s->list[i]) != b->token) i++;
        if (i == s->count) {
            if (b->bias > 0) return false;
            continue;
        }
        const float logit = tn__key_value(s->list[i]) + b->bias;
        if (logit < -TN__LOGIT_MAX)
            s->list[i] = s->list[--s->count];
        else
            s->list[i] = tn__key_make(fminf(logit, TN__LOGIT_MAX), b->token);
    }
    return true;
}

static bool only_lowers(const tn_sampler_params *p) {
    return p->penalty_window <= 0 ||
           (p->repeat_penalty >= 1 && p->frequency_penalty >= 0 && p->presence_penalty >= 0);
}

static float smallest(const tn_sampler *s) {
    tn__key least = UINT64_MAX;
    for (size_t i = 0; i < s->count; i++) least = TN__MIN(least, s->list[i]);
    return tn__key_value(least);
}

/* Applies a truncating sampler that keeps at least `keep` candidates. True: what it kept does not depend on other
 * tokens. */
static bool truncate_list(tn_sampler *s, tn__sampler_fn apply, size_t keep) {
    if (s->count < keep) return false;
    apply(s);
    if (!(smallest(s) > s->below)) return false;
    s->partial = false;
    return true;
}

/* Applies a sampler to a list that lacks tokens at or under `below`. False: it needs them. */
static bool apply_to_partial(tn_sampler *s, tn_sampler_kind kind, tn__sampler_fn apply) {
    const tn_sampler_params *p = &s->params;
    switch (kind) {
    case TN_SAMPLER_PENALTIES:
        if (!only_lowers(p)) return false;
        apply(s);
        return true;
    case TN_SAMPLER_DRY: apply(s); return true;
    case TN_SAMPLER_TEMPERATURE:
        if (p->dynamic_range > 0) return false;
        apply(s);
        s->below /= p->temperature;
        return true;
    case TN_SAMPLER_TOP_K: return p->top_k <= 0 || truncate_list(s, apply, TN__MAX((size_t)p->top_k, p->min_keep));
    case TN_SAMPLER_MIN_P:
        if (p->min_p <= 0) return true;
        return tn__candidates_max(s) + logf(p->min_p) > s->below && truncate_list(s, apply, p->min_keep);
    case TN_SAMPLER_TOP_P: return p->top_p >= 1;
    case TN_SAMPLER_TYPICAL: return p->typical_p >= 1;
    case TN_SAMPLER_TOP_N_SIGMA: return p->top_n_sigma <= 0;
    case TN_SAMPLER_XTC: return p->xtc_probability <= 0 || p->xtc_threshold > 0.5f;
    default: return false;
    }
}

static tn_token largest_of_list(const tn_sampler *s) {
    tn__key best = 0;
    for (size_t i = 0; i < s->count; i++) best = TN__MAX(best, s->list[i]);
    return tn__key_token(best);
}

static tn_status check_largest(const tn_sampler *s, const tn_token *tokens, const float *logits, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (tokens[i] < 0 || (size_t)tokens[i] >= s->n_vocab)
            return tn_fail(TN_E_INVALID, "token %d is outside the vocabulary of %zu", tokens[i], s->n_vocab);
        if (i && !(logits[i] <= logits[i - 1]))
            return tn_fail(TN_E_INVALID, "logit %zu of the largest is not in descending order", i);
    }
    return TN_OK;
}

tn_status tn_sampler_sample_largest(tn_sampler *s, const tn_token *tokens, const float *logits, size_t n,
                                    bool *enough, tn_token *out) {
    if (!s || !tokens || !logits || !enough || !out)
        return tn_fail(TN_E_INVALID, "tn_sampler_sample_largest: NULL argument");
    *enough = false;
    s->drawn = false;
    if (n == 0 || n > s->n_vocab || s->params.mirostat) return TN_OK;
    TN_TRY(check_largest(s, tokens, logits, n));
    const uint64_t *mask = NULL;
    if (s->grammar) TN_TRY(tn_grammar_mask(s->grammar, &mask));
    list_largest(s, tokens, logits, n, mask);
    s->below = logits[n - 1];
    s->partial = true;
    if (!bias_list(s) || s->count == 0) return TN_OK;
    const bool greedy = s->params.temperature < TN__TEMPERATURE_MIN;
    for (size_t i = 0; i < s->params.n_chain; i++) {
        const tn_sampler_kind kind = s->params.chain[i];
        const tn__sampler_fn apply = tn__sampler_apply(s, kind, greedy);
        if (!apply) continue;
        if (!s->partial)
            apply(s);
        else if (!apply_to_partial(s, kind, apply))
            return TN_OK;
    }
    if (greedy ? s->partial && !(tn__candidates_max(s) > s->below) : s->partial) return TN_OK;
    *out = greedy ? largest_of_list(s) : tn__draw(s);
    *enough = s->drawn = true;
    return TN_OK;
}
