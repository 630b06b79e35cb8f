/* The samplers that truncate or rescale the candidates, and the draws at the end of the chain. */
#include "base/checked.h"
#include "text/sampler/internal.h"

#include <math.h>

/* ---- Candidates ---- */

void tn__row_set(tn_sampler *s, tn_token token, float logit) {
    size_t b = (size_t)token / TN__SCAN_BLOCK;
    float old = s->row[token];
    s->row[token] = logit;
    if (logit >= s->block_max[b])
        s->block_max[b] = logit;
    else if (old == s->block_max[b])
        s->block_max[b] = s->scan->max(s->row + b * TN__SCAN_BLOCK, TN__SCAN_BLOCK);
}

float tn__candidates_max(const tn_sampler *s) {
    if (s->dense) return s->scan->max(s->block_max, tn__align_up(s->n_blocks, 16));
    tn__key best = 0;
    for (size_t i = 0; i < s->count; i++) best = TN__MAX(best, s->list[i]);
    return tn__key_value(best);
}

/* Lists the row's tokens with logits at or above `cut`, without those of -inf. */
static void list_row_above(tn_sampler *s, float cut) {
    size_t count = 0;
    for (size_t b = 0; b < s->n_blocks; b++) {
        if (!(s->block_max[b] >= cut)) continue;
        size_t end = TN__MIN(s->n_vocab, (b + 1) * TN__SCAN_BLOCK);
        for (size_t i = b * TN__SCAN_BLOCK; i < end; i++) {
            s->list[count] = tn__key_make(s->row[i], (tn_token)i);
            count += s->row[i] >= cut && s->row[i] > -INFINITY;
        }
    }
    s->count = count;
    s->dense = false;
}

void tn__candidates_list(tn_sampler *s) {
    if (s->dense) list_row_above(s, -INFINITY);
}

double tn__candidates_weights(tn_sampler *s) {
    float max = tn__candidates_max(s);
    if (s->dense) return s->scan->exp_sum(s->row, s->weights, s->block_sums, s->n_blocks, max);
    double sum = 0;
    for (size_t i = 0; i < s->count; i++)
        sum += s->weights[tn__key_token(s->list[i])] = tn__scan_exp(tn__key_value(s->list[i]) - max);
    return sum;
}

static void keep_largest(tn_sampler *s, size_t count) {
    if (s->dense) {
        s->count = tn__keys_from_row(s->list, s->row, s->block_max, s->n_vocab, count);
        s->dense = false;
    } else if (count < s->count) {
        tn__keys_select(s->list, s->count, count);
        s->count = count;
    }
}

/* Keeps the candidates at or above `cut`, but at least the min_keep most probable ones. */
static void keep_above(tn_sampler *s, float cut) {
    size_t above = 0;
    if (s->dense) {
        list_row_above(s, cut);
        above = s->count;
        if (above >= s->params.min_keep) return;
        s->dense = true;
    } else {
        tn__key threshold = tn__key_make(cut, INT32_MAX);
        for (size_t i = 0; i < s->count; i++) above += s->list[i] >= threshold;
        if (above >= s->params.min_keep) {
            size_t kept = 0;
            for (size_t i = 0; i < s->count; i++)
                if (s->list[i] >= threshold) s->list[kept++] = s->list[i];
            s->count = kept;
            return;
        }
    }
    keep_largest(s, s->params.min_keep);
}

/* ---- Truncating samplers ---- */

void tn__apply_top_k(tn_sampler *s) {
    if (s->params.top_k <= 0) return;
    keep_largest(s, TN__MAX((size_t)s->params.top_k, s->params.min_keep));
}

/* Lists the row's tokens down to some logit such that they have at least the share p of the weight. A few tokens
 * nearly always do, so the search starts with a high threshold. It ends where all tokens below the threshold, each
 * with less than (1 - p) / n of the weight, cannot add up to 1 - p; half of that leaves a margin for rounding. */
static void list_share(tn_sampler *s, float p, double total) {
    const float step = 4; /* each step lowers the weight by e^4, about 55 */
    float max = tn__candidates_max(s);
    float lowest = max + logf((float)(0.5 * (1 - (double)p) * total / (double)s->n_vocab));
    for (float threshold = max - step;; threshold -= step) {
        double sum = 0;
        list_row_above(s, fmaxf(threshold, lowest));
        for (size_t i = 0; i < s->count; i++) sum += s->weights[tn__key_token(s->list[i])];
        if (sum >= p * total || threshold <= lowest) return;
    }
}

void tn__apply_top_p(tn_sampler *s) {
    float p = s->params.top_p;
    if (p >= 1) return;
    double total = tn__candidates_weights(s);
    if (s->dense) {
        list_share(s, p, total);
        if (s->count < s->params.min_keep) {
            s->dense = true;
            keep_largest(s, s->params.min_keep);
            return;
        }
    }
    size_t kept = tn__keys_select_weight(s->list, s->count, s->weights, p * total);
    if (kept >= s->params.min_keep)
        s->count = kept;
    else
        keep_largest(s, s->params.min_keep);
}

void tn__apply_min_p(tn_sampler *s) {
    if (s->params.min_p <= 0) return;
    keep_above(s, tn__candidates_max(s) + logf(s->params.min_p));
}

void tn__apply_top_n_sigma(tn_sampler *s) {
    if (s->params.top_n_sigma <= 0) return;
    double count, sum, squares = 0;
    float mean;
    if (s->dense) {
        sum = s->scan->sum(s->row, s->n_blocks, &count);
        mean = (float)(sum / count);
        squares = s->scan->sum_squares(s->row, s->n_blocks, mean);
    } else {
        count = (double)s->count;
        sum = 0;
        for (size_t i = 0; i < s->count; i++) sum += tn__key_value(s->list[i]);
        mean = (float)(sum / count);
        for (size_t i = 0; i < s->count; i++) {
            double d = (double)tn__key_value(s->list[i]) - mean;
            squares += d * d;
        }
    }
    keep_above(s, tn__candidates_max(s) - s->params.top_n_sigma * (float)sqrt(squares / count));
}

/* H = ln W - sum(w * (logit - max)) / W for weights w = exp(logit - max) with sum W. The candidates must be a list.
 */
static double entropy(const tn_sampler *s, double total, float max) {
    double sum = 0;
    for (size_t i = 0; i < s->count; i++)
        sum += (double)s->weights[tn__key_token(s->list[i])] * ((double)tn__key_value(s->list[i]) - max);
    return log(total) - sum / total;
}

/* Keeps the tokens whose surprise is closest to the expected surprise, until they have typical_p of the weight. */
void tn__apply_typical(tn_sampler *s) {
    if (s->params.typical_p >= 1) return;
    tn__candidates_list(s);
    double total = tn__candidates_weights(s);
    float max = tn__candidates_max(s);
    double expected = entropy(s, total, max) - log(total); /* surprise is ln W - (logit - max); ln W cancels */
    for (size_t i = 0; i < s->count; i++) {
        tn_token token = tn__key_token(s->list[i]);
        float logit = tn__key_value(s->list[i]);
        s->row[token] = logit; /* to look it up by token below */
        s->list[i] = tn__key_make(-(float)fabs(-((double)logit - max) - expected), token);
    }
    size_t kept = tn__keys_select_weight(s->list, s->count, s->weights, s->params.typical_p * total);
    if (kept < s->params.min_keep) {
        kept = TN__MIN(s->params.min_keep, s->count);
        tn__keys_select(s->list, s->count, kept);
    }
    s->count = kept;
    for (size_t i = 0; i < kept; i++) {
        tn_token token = tn__key_token(s->list[i]);
        s->list[i] = tn__key_make(s->row[token], token);
    }
}

/* Removes all tokens at or above the threshold except the least likely of them. */
void tn__apply_xtc(tn_sampler *s) {
    if (s->params.xtc_probability <= 0 || s->params.xtc_threshold > 0.5f) return;
    if (tn__random_unit(&s->random) >= s->params.xtc_probability) return;
    tn__candidates_list(s);
    double threshold = s->params.xtc_threshold * tn__candidates_weights(s);
    size_t above = 0;
    tn__key last = UINT64_MAX;
    for (size_t i = 0; i < s->count; i++)
        if (s->weights[tn__key_token(s->list[i])] >= threshold) {
            above++;
            last = TN__MIN(last, s->list[i]);
        }
    if (above < 2 || s->count - (above - 1) < s->params.min_keep) return;
    size_t kept = 0;
    for (size_t i = 0; i < s->count; i++)
        if (s->list[i] <= last) s->list[kept++] = s->list[i];
    s->count = kept;
}

/* ---- Temperature ---- */

void tn__apply_temperature(tn_sampler *s) {
    float t = s->params.temperature;
    if (s->params.dynamic_range > 0) {
        tn__candidates_list(s);
        if (s->count < 2) return;
        double total = tn__candidates_weights(s);
        double level = entropy(s, total, tn__candidates_max(s)) / log((double)s->count);
        double low = fmax(0, (double)t - s->params.dynamic_range), high = (double)t + s->params.dynamic_range;
        t = (float)(low + (high - low) * pow(fmin(fmax(level, 0), 1), s->params.dynamic_exponent));
        t = TN__MAX(t, TN__TEMPERATURE_MIN);
    }
    if (s->dense) {
        s->scan->divide(s->row, s->n_blocks * TN__SCAN_BLOCK, t);
        s->scan->divide(s->block_max, tn__align_up(s->n_blocks, 16),
                        t); /* division is monotone, so they stay the maxima */
    } else {
        for (size_t i = 0; i < s->count; i++)
            s->list[i] = tn__key_make(tn__key_value(s->list[i]) / t, tn__key_token(s->list[i]));
    }
}

/* ---- Draws ---- */

static tn_token draw_from_row(tn_sampler *s) {
    double total = tn__candidates_weights(s), u = tn__random_unit(&s->random) * total;
    size_t b = 0, last = 0;
    for (; b + 1 < s->n_blocks && u >= s->block_sums[b]; b++) u -= s->block_sums[b];
    /* Sums are rounded, so u may exceed a block's sum; then the last possible token is drawn. */
    while (s->block_sums[b] == 0) b--;
    for (size_t i = b * TN__SCAN_BLOCK; i < (b + 1) * TN__SCAN_BLOCK; i++) {
        if (s->weights[i] == 0) continue;
        last = i;
        if (u < s->weights[i]) break;
        u -= s->weights[i];
    }
    return (tn_token)last;
}

/* The draw visits the candidates in descending order, whatever the order of the list, so that the tokens of a seed do
 * not depend on how the list was built. */
tn_token tn__draw(tn_sampler *s) {
    if (s->dense) return draw_from_row(s);
    double total = tn__candidates_weights(s), u = tn__random_unit(&s->random) * total;
    size_t reached = tn__keys_select_weight(s->list, s->count, s->weights, u);
    tn_token token = tn__key_token(s->list[reached - 1]);
    if (s->weights[token] > 0) return token;
    /* Rounding moved u past the last token that has any weight. Draw the most probable token instead. */
    keep_largest(s, 1);
    return tn__key_token(s->list[0]);
}

/* Draws, and corrects mu by the difference between the token's surprise in bits and the target tau. */
static tn_token draw_and_steer(tn_sampler *s) {
    tn_token token = tn__draw(s);
    double total = 0;
    for (size_t i = 0; i < s->count; i++) total += s->weights[tn__key_token(s->list[i])];
    double surprise = log2(total / s->weights[token]);
    s->mirostat_mu -= s->params.mirostat_eta * (surprise - s->params.mirostat_tau);
    return token;
}

/* Version 1: estimates the exponent of a Zipf law from the 100 most probable tokens, and from it how many tokens to
 * keep so that the expected surprise is mu. */
tn_token tn__draw_mirostat_1(tn_sampler *s) {
    enum { ESTIMATE_FROM = 100 };
    tn__candidates_list(s);
    size_t m = TN__MIN((size_t)ESTIMATE_FROM, s->count);
    tn__keys_select(s->list, s->count, m);
    tn__keys_sort(s->list, m);
    double tb = 0, tt = 0;
    for (size_t i = 0; i + 1 < m; i++) {
        double t = log((double)(i + 2) / (double)(i + 1));
        tb += t * ((double)tn__key_value(s->list[i]) - tn__key_value(s->list[i + 1]));
        tt += t * t;
    }
    double exponent = tt > 0 ? tb / tt : 1, epsilon = exponent - 1;
    double k = pow(epsilon * exp2(s->mirostat_mu) / (1 - pow((double)s->n_vocab, -epsilon)), 1 / exponent);
    /* Degenerate estimates give NaN or infinity; at least one token stays. */
    size_t keep = k >= (double)s->count ? s->count : k >= 1 ? (size_t)k : 1;
    keep_largest(s, keep);
    return draw_and_steer(s);
}

/* Version 2: removes the tokens whose surprise is above mu. */
tn_token tn__draw_mirostat_2(tn_sampler *s) {
    double total = tn__candidates_weights(s);
    keep_above(s, tn__candidates_max(s) + (float)(log(total) - s->mirostat_mu * 0.69314718055994531));
    return draw_and_steer(s);
}
