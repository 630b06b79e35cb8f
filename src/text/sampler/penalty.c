/* The samplers that depend on the history: repetition penalties and DRY. */
#include "base/checked.h"
#include "text/sampler/internal.h"

#include <math.h>

/* ---- Repeat, frequency and presence ---- */

static float penalized(const tn_sampler *s, float logit, uint32_t count) {
    float repeat = s->params.repeat_penalty;
    logit = logit <= 0 ? logit * repeat : logit / repeat;
    return logit - ((float)count * s->params.frequency_penalty + s->params.presence_penalty);
}

void tn__apply_penalties(tn_sampler *s) {
    const tn_sampler_params *p = &s->params;
    if (p->penalty_window <= 0) return;
    if (p->repeat_penalty == 1 && p->frequency_penalty == 0 && p->presence_penalty == 0) return;
    if (!s->dense) {
        for (size_t i = 0; i < s->count; i++) {
            tn_token token = tn__key_token(s->list[i]);
            if (s->counts[token])
                s->list[i] = tn__key_make(penalized(s, tn__key_value(s->list[i]), s->counts[token]), token);
        }
        return;
    }
    /* Each token is penalized once: the top bit of its count marks it until the second pass. */
    const uint32_t done = 0x80000000u;
    size_t length = tn__history_length(s, (size_t)p->penalty_window);
    for (size_t age = 0; age < length; age++) {
        tn_token token = s->history[tn__history_slot(s, age)];
        if (s->counts[token] & done) continue;
        if (s->row[token] > -INFINITY) tn__row_set(s, token, penalized(s, s->row[token], s->counts[token]));
        s->counts[token] |= done;
    }
    for (size_t age = 0; age < length; age++) s->counts[s->history[tn__history_slot(s, age)]] &= ~done;
}

/* ---- DRY ----
 * r[0] is the newest token of the window, r[1] the one before it. match[j] is the length of the common prefix of
 * r[j…] and r[0…]: the sequence that ended j tokens ago equals the newest match[j] tokens, and r[j - 1] followed it.
 * The Z algorithm computes all of them in linear time. */

bool tn__dry_completes_breaker(tn_sampler *s, tn_token token) {
    if (s->dry_tail_capacity == 0 && s->params.n_dry_breakers == 0) return false;
    tn_piece piece = tn_pieces_get(s->pieces, token);
    bool broken = false;
    for (size_t b = 0; b < s->params.n_dry_breakers && !broken; b++) {
        const char *breaker = s->params.dry_breakers[b];
        size_t length = strlen(breaker);
        for (size_t end = 1; end <= piece.length && !broken; end++) {
            size_t in_piece = TN__MIN(end, length), in_tail = length - in_piece;
            broken = in_tail <= s->dry_tail_length &&
                     memcmp(piece.bytes + end - in_piece, breaker + in_tail, in_piece) == 0 &&
                     memcmp(s->dry_tail + s->dry_tail_length - in_tail, breaker, in_tail) == 0;
        }
    }
    /* The tail becomes the last bytes of tail + piece. */
    size_t capacity = s->dry_tail_capacity;
    if (piece.length >= capacity) {
        memcpy(s->dry_tail, piece.bytes + piece.length - capacity, capacity);
        s->dry_tail_length = capacity;
    } else {
        size_t keep = TN__MIN(s->dry_tail_length, capacity - piece.length);
        memmove(s->dry_tail, s->dry_tail + s->dry_tail_length - keep, keep);
        if (piece.length) memcpy(s->dry_tail + keep, piece.bytes, piece.length);
        s->dry_tail_length = keep + piece.length;
    }
    return broken;
}

static tn_token token_by_age(const tn_sampler *s, size_t age) { return s->history[tn__history_slot(s, age)]; }

static void find_matches(tn_sampler *s, size_t n, size_t limit) {
    uint32_t *match = s->dry_match;
    size_t from = 0, to = 0; /* r[from…to) is known to equal r[0…to-from) */
    for (size_t j = 1; j < n; j++) {
        size_t length = j < to ? TN__MIN((size_t)match[j - from], to - j) : 0;
        while (j + length < n && token_by_age(s, length) == token_by_age(s, j + length)) length++;
        match[j] = (uint32_t)length;
        if (j + length > to) {
            from = j;
            to = j + length;
        }
        size_t usable = TN__MIN(length, limit), slot = tn__history_slot(s, j - 1);
        if (usable < (size_t)s->params.dry_allowed_length || s->breaks[slot]) continue;
        tn_token next = s->history[slot];
        s->dry_length[next] = TN__MAX(s->dry_length[next], (uint32_t)usable);
    }
}

static float dry_penalty(const tn_sampler *s, uint32_t length) {
    double penalty =
        s->params.dry_multiplier * pow(s->params.dry_base, (double)length - (double)s->params.dry_allowed_length);
    return (float)fmin(penalty, TN__LOGIT_MAX);
}

void tn__apply_dry(tn_sampler *s) {
    const tn_sampler_params *p = &s->params;
    if (p->dry_multiplier <= 0 || p->dry_window <= 0) return;
    size_t n = tn__history_length(s, (size_t)p->dry_window), limit = 0;
    while (limit < n && !s->breaks[tn__history_slot(s, limit)]) limit++;
    if (limit < (size_t)p->dry_allowed_length) return;
    find_matches(s, n, limit);
    if (!s->dense)
        for (size_t i = 0; i < s->count; i++) {
            tn_token token = tn__key_token(s->list[i]);
            if (s->dry_length[token])
                s->list[i] = tn__key_make(tn__key_value(s->list[i]) - dry_penalty(s, s->dry_length[token]), token);
        }
    for (size_t age = 0; age < n; age++) {
        tn_token token = token_by_age(s, age);
        if (s->dense && s->dry_length[token] && s->row[token] > -INFINITY)
            tn__row_set(s, token, s->row[token] - dry_penalty(s, s->dry_length[token]));
        s->dry_length[token] = 0;
    }
}
