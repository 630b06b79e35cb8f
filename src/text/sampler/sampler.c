/* Samplers: the table, parameters and their limits, creation, and drawing a token from logits. */
#include "base/checked.h"
#include "text/sampler/internal.h"

#include <math.h>
#include <stdio.h>

/* ---- The table ---- */

static const struct {
    const char *name, *parameters;
    tn__sampler_fn apply;
} samplers[TN_SAMPLER_KINDS] = {
#define TN_X(kind, name, parameters) [TN_SAMPLER_##kind] = {#name, parameters, tn__apply_##name},
    TN_SAMPLER_TABLE(TN_X)
#undef TN_X
};

static bool kind_is_known(tn_sampler_kind kind) { return (size_t)kind < TN_SAMPLER_KINDS; }
const char *tn_sampler_kind_name(tn_sampler_kind kind) { return kind_is_known(kind) ? samplers[kind].name : NULL; }
const char *tn_sampler_kind_parameters(tn_sampler_kind kind) {
    return kind_is_known(kind) ? samplers[kind].parameters : NULL;
}

tn_status tn_sampler_kind_from_name(const char *name, tn_sampler_kind *out) {
    if (!name || !out) return tn_fail(TN_E_INVALID, "tn_sampler_kind_from_name: name or out is NULL");
    for (int kind = 0; kind < TN_SAMPLER_KINDS; kind++)
        if (strcmp(name, samplers[kind].name) == 0) {
            *out = (tn_sampler_kind)kind;
            return TN_OK;
        }
    tn_fail(TN_E_NOT_FOUND, "unknown sampler \"%.64s\"; the samplers are:", name);
    for (int kind = 0; kind < TN_SAMPLER_KINDS; kind++) tn_fail_more(TN_E_NOT_FOUND, " %s", samplers[kind].name);
    return TN_E_NOT_FOUND;
}

/* ---- Parameters ---- */

tn_sampler_params tn_sampler_params_default(void) {
    static const char *const breakers[] = {"\n", ":", "\"", "*"};
    tn_sampler_params p = {
        .seed = TN_SEED_RANDOM,
        .n_chain = TN_SAMPLER_KINDS,
        .min_keep = 1,
        .temperature = 0.8f,
        .dynamic_exponent = 1,
        .top_k = 40,
        .top_p = 0.95f,
        .min_p = 0.05f,
        .typical_p = 1,
        .xtc_threshold = 0.1f,
        .penalty_window = 64,
        .repeat_penalty = 1,
        .dry_base = 1.75f,
        .dry_allowed_length = 2,
        .dry_window = 4096,
        .dry_breakers = breakers,
        .n_dry_breakers = TN__COUNT(breakers),
        .mirostat_tau = 5,
        .mirostat_eta = 0.1f,
    };
    for (int kind = 0; kind < TN_SAMPLER_KINDS; kind++) p.chain[kind] = (tn_sampler_kind)kind;
    return p;
}

enum { WINDOW_MAX = 1 << 20, BREAKERS_MAX = 256, BREAKER_LENGTH_MAX = 256, VOCAB_MAX = 1 << 26 };

static tn_status check_param_range(const char *name, float value, float low, float high) {
    if (value >= low && value <= high) return TN_OK;
    return tn_fail(TN_E_INVALID, "sampler parameter %s is %g; it must be in %g … %g", name, (double)value,
                   (double)low, (double)high);
}

static tn_status check_sampler_params(const tn_sampler_params *p, size_t n_vocab) {
    if (n_vocab == 0 || n_vocab > VOCAB_MAX)
        return tn_fail(TN_E_INVALID, "the vocabulary has %zu tokens; it must have 1 … %d", n_vocab, VOCAB_MAX);
    if (p->n_chain > TN_SAMPLER_KINDS)
        return tn_fail(TN_E_INVALID, "the chain has %zu samplers; the maximum is %d", p->n_chain, TN_SAMPLER_KINDS);
    uint32_t seen = 0;
    for (size_t i = 0; i < p->n_chain; i++) {
        if (!kind_is_known(p->chain[i]))
            return tn_fail(TN_E_INVALID, "unknown sampler kind %d at index %zu of the chain", (int)p->chain[i], i);
        if (seen & 1u << p->chain[i])
            return tn_fail(TN_E_INVALID, "%s is twice in the chain", samplers[p->chain[i]].name);
        seen |= 1u << p->chain[i];
    }
    /* The limits of factors keep logits finite; see TN__LOGIT_MAX. */
    const struct {
        const char *name;
        float value, low, high;
    } ranges[] = {
        {"temperature", p->temperature, -1e6f, 1e6f},
        {"dynamic_range", p->dynamic_range, 0, 1e6f},
        {"dynamic_exponent", p->dynamic_exponent, 0, 100},
        {"top_k", (float)p->top_k, 0, 0x1p31f},
        {"top_p", p->top_p, 0, 1},
        {"min_p", p->min_p, 0, 1},
        {"typical_p", p->typical_p, 0, 1},
        {"top_n_sigma", p->top_n_sigma, 0, 1e6f},
        {"xtc_probability", p->xtc_probability, 0, 1},
        {"xtc_threshold", p->xtc_threshold, 0, 1},
        {"penalty_window", (float)p->penalty_window, 0, WINDOW_MAX},
        {"repeat_penalty", p->repeat_penalty, 1e-3f, 1e3f},
        {"frequency_penalty", p->frequency_penalty, -1e6f, 1e6f},
        {"presence_penalty", p->presence_penalty, -1e6f, 1e6f},
        {"dry_multiplier", p->dry_multiplier, 0, 1e6f},
        {"dry_base", p->dry_base, 1, 1e6f},
        {"dry_allowed_length", (float)p->dry_allowed_length, 1, WINDOW_MAX},
        {"dry_window", (float)p->dry_window, 0, WINDOW_MAX},
        {"mirostat", (float)p->mirostat, 0, 2},
        {"mirostat_tau", p->mirostat_tau, 0, 1000},
        {"mirostat_eta", p->mirostat_eta, 0, 1000},
    };
    for (size_t i = 0; i < TN__COUNT(ranges); i++)
        TN_TRY(check_param_range(ranges[i].name, ranges[i].value, ranges[i].low, ranges[i].high));
    if (p->n_logit_bias > 0 && !p->logit_bias)
        return tn_fail(TN_E_INVALID, "n_logit_bias is set, but logit_bias is NULL");
    if (p->n_logit_bias > VOCAB_MAX)
        return tn_fail(TN_E_INVALID, "n_logit_bias is %zu, which is too many", p->n_logit_bias);
    for (size_t i = 0; i < p->n_logit_bias; i++) {
        const tn_logit_bias *b = &p->logit_bias[i];
        if (b->token < 0 || (size_t)b->token >= n_vocab)
            return tn_fail(TN_E_INVALID, "logit bias for token %d, which is outside the vocabulary of %zu", b->token,
                           n_vocab);
        if (isnan(b->bias)) return tn_fail(TN_E_INVALID, "the logit bias of token %d is not a number", b->token);
    }
    if (p->dry_multiplier <= 0 || p->n_dry_breakers == 0) return TN_OK;
    if (!p->dry_breakers) return tn_fail(TN_E_INVALID, "n_dry_breakers is set, but dry_breakers is NULL");
    if (p->n_dry_breakers > BREAKERS_MAX)
        return tn_fail(TN_E_INVALID, "n_dry_breakers is %zu; the maximum is %d", p->n_dry_breakers, BREAKERS_MAX);
    if (!p->pieces)
        return tn_fail(TN_E_INVALID, "DRY breakers need the vocabulary's pieces; set pieces, or n_dry_breakers to 0");
    if (tn_pieces_count(p->pieces) != n_vocab)
        return tn_fail(TN_E_INVALID, "there are %zu pieces, but the vocabulary has %zu tokens",
                       tn_pieces_count(p->pieces), n_vocab);
    for (size_t i = 0; i < p->n_dry_breakers; i++) {
        size_t length = p->dry_breakers[i] ? strlen(p->dry_breakers[i]) : 0;
        if (length == 0 || length > BREAKER_LENGTH_MAX)
            return tn_fail(TN_E_INVALID, "DRY breaker %zu has %zu bytes; it must have 1 … %d", i, length,
                           BREAKER_LENGTH_MAX);
    }
    return TN_OK;
}

/* ---- Life cycle ---- */

/* Takes the next `count` items of a block of memory; with a NULL base only the size is counted. The limits that
 * check_sampler_params() checks keep the sum far from overflow. */
static void *take_sampler_array(char *base, size_t *at, size_t count, size_t size) {
    void *start = base ? base + *at : NULL;
    *at = tn__align_up(*at + count * size, 64);
    return start;
}

static size_t lay_out_sampler(tn_sampler *s, const tn_sampler_params *p, char *base) {
    size_t at = 0, blocks = s->n_blocks, n = s->n_vocab;
    bool dry = p->dry_multiplier > 0;
    s->row = take_sampler_array(base, &at, blocks * TN__SCAN_BLOCK, sizeof *s->row);
    s->weights = take_sampler_array(base, &at, blocks * TN__SCAN_BLOCK, sizeof *s->weights);
    s->block_max = take_sampler_array(base, &at, tn__align_up(blocks, 16), sizeof *s->block_max);
    s->block_sums = take_sampler_array(base, &at, blocks, sizeof *s->block_sums);
    s->list = take_sampler_array(base, &at, n + 1,
                                 sizeof *s->list); /* one more: listing writes an item before it is counted */
    s->history = take_sampler_array(base, &at, s->history_capacity, sizeof *s->history);
    s->breaks = take_sampler_array(base, &at, s->history_capacity, sizeof *s->breaks);
    s->counts = take_sampler_array(base, &at, n, sizeof *s->counts);
    s->dry_match = take_sampler_array(base, &at, dry ? (size_t)p->dry_window : 0, sizeof *s->dry_match);
    s->dry_length = take_sampler_array(base, &at, dry ? n : 0, sizeof *s->dry_length);
    s->dry_tail = take_sampler_array(base, &at, s->dry_tail_capacity, 1);

    tn_logit_bias *biases = take_sampler_array(base, &at, p->n_logit_bias, sizeof *biases);
    size_t n_breakers = dry ? p->n_dry_breakers : 0;
    const char **breakers = take_sampler_array(base, &at, n_breakers, sizeof *breakers);
    for (size_t i = 0; i < n_breakers; i++) {
        size_t size = strlen(p->dry_breakers[i]) + 1;
        char *copy = take_sampler_array(base, &at, size, 1);
        if (!base) continue;
        memcpy(copy, p->dry_breakers[i], size);
        breakers[i] = copy;
    }
    if (!base) return at;
    if (p->n_logit_bias) memcpy(biases, p->logit_bias, p->n_logit_bias * sizeof *biases);
    s->params = *p;
    s->params.logit_bias = biases;
    s->params.dry_breakers = breakers;
    s->params.n_dry_breakers = n_breakers;
    return at;
}

tn_status tn_sampler_new(const tn_sampler_params *params, size_t n_vocab, tn_sampler **out) {
    if (!params || !out) return tn_fail(TN_E_INVALID, "tn_sampler_new: params or out is NULL");
    *out = NULL;
    tn_sampler_params p = *params;
    TN_TRY(check_sampler_params(&p, n_vocab));
    if (p.seed == TN_SEED_RANDOM) p.seed = tn__random_system_seed();
    if (p.min_keep == 0) p.min_keep = 1;
    tn_sampler *s = tn_calloc(1, sizeof *s);
    if (!s) return TN_E_NOMEM;
    s->scan = tn__scan_widest();
    s->n_vocab = n_vocab;
    s->n_blocks = tn__scan_blocks(n_vocab);
    s->history_capacity = 1;
    s->history_capacity = TN__MAX(s->history_capacity, (size_t)p.penalty_window);
    if (p.dry_multiplier > 0) {
        s->history_capacity = TN__MAX(s->history_capacity, (size_t)p.dry_window);
        for (size_t i = 0; i < p.n_dry_breakers; i++)
            s->dry_tail_capacity = TN__MAX(s->dry_tail_capacity, strlen(p.dry_breakers[i]) - 1);
    }
    size_t size = lay_out_sampler(s, &p, NULL);
    s->memory = tn_malloc_aligned(size, 64);
    if (!s->memory) {
        tn_free(s);
        return TN_E_NOMEM;
    }
    memset(s->memory, 0, size);
    lay_out_sampler(s, &p, s->memory);
    for (size_t i = s->n_blocks; i < tn__align_up(s->n_blocks, 16); i++) s->block_max[i] = -INFINITY;
    s->pieces = p.pieces ? tn_pieces_retain(p.pieces) : NULL;
    s->params.pieces = s->pieces;
    tn_sampler_reset(s);
    *out = s;
    return TN_OK;
}

void tn_sampler_reset(tn_sampler *s) {
    tn__random_seed(&s->random, s->params.seed);
    s->mirostat_mu = 2 * (double)s->params.mirostat_tau;
    s->total = 0;
    s->dry_tail_length = 0;
    s->drawn = false;
    memset(s->counts, 0, s->n_vocab * sizeof *s->counts);
    if (s->grammar) tn_grammar_state_reset(s->grammar);
}

tn_status tn_sampler_clone(const tn_sampler *from, tn_sampler **out) {
    if (!from || !out) return tn_fail(TN_E_INVALID, "tn_sampler_clone: sampler or out is NULL");
    *out = NULL;
    tn_sampler *s;
    TN_TRY(tn_sampler_new(&from->params, from->n_vocab, &s));
    if (from->grammar) {
        tn_status status = tn_grammar_state_clone(from->grammar, &s->grammar);
        if (status != TN_OK) {
            tn_sampler_free(s);
            return status;
        }
    }
    *out = s;
    return tn_sampler_follow(s, from);
}

tn_status tn_sampler_follow(tn_sampler *s, const tn_sampler *from) {
    if (!s || !from) return tn_fail(TN_E_INVALID, "tn_sampler_follow: sampler or from is NULL");
    if (s->n_vocab != from->n_vocab || s->history_capacity != from->history_capacity ||
        s->dry_tail_capacity != from->dry_tail_capacity)
        return tn_fail(TN_E_INVALID, "the sampler is no clone of the one to follow");
    s->random = from->random;
    s->mirostat_mu = from->mirostat_mu;
    s->total = from->total;
    memcpy(s->history, from->history, s->history_capacity * sizeof *s->history);
    memcpy(s->breaks, from->breaks, s->history_capacity * sizeof *s->breaks);
    memcpy(s->counts, from->counts, s->n_vocab * sizeof *s->counts);
    s->dry_tail_length = from->dry_tail_length;
    memcpy(s->dry_tail, from->dry_tail, s->dry_tail_length);
    return TN_OK;
}

void tn_sampler_free(tn_sampler *s) {
    if (!s) return;
    tn_grammar_state_free(s->grammar);
    tn_pieces_free(s->pieces);
    tn_free(s->memory);
    tn_free(s);
}

uint64_t tn_sampler_seed(const tn_sampler *s) { return s->params.seed; }

tn_status tn_sampler_set_grammar(tn_sampler *s, tn_grammar_state *state) {
    if (!s) return tn_fail(TN_E_INVALID, "tn_sampler_set_grammar: sampler is NULL");
    if (state) {
        const tn_pieces *pieces = tn_grammar_state_pieces(state);
        size_t n = pieces ? tn_pieces_count(pieces) : 0;
        if (n != s->n_vocab)
            return tn_fail(TN_E_INVALID, "the grammar's vocabulary has %zu tokens, the sampler's %zu", n, s->n_vocab);
    }
    if (state != s->grammar) tn_grammar_state_free(s->grammar);
    s->grammar = state;
    return TN_OK;
}
tn_grammar_state *tn_sampler_get_grammar(tn_sampler *s) { return s->grammar; }

/* ---- Drawing ---- */

static tn_token argmax_of_row(const tn_sampler *s) {
    float max = tn__candidates_max(s);
    size_t b = 0;
    while (s->block_max[b] != max) b++;
    size_t i = b * TN__SCAN_BLOCK;
    while (s->row[i] != max) i++;
    return (tn_token)i;
}

tn__sampler_fn tn__sampler_apply(const tn_sampler *s, tn_sampler_kind kind, bool greedy) {
    const bool always = kind == TN_SAMPLER_PENALTIES || kind == TN_SAMPLER_DRY;
    const bool applies = always || (!greedy && (s->params.mirostat == 0 || kind == TN_SAMPLER_TEMPERATURE));
    return applies ? samplers[kind].apply : NULL;
}

bool tn_sampler_is_greedy(const tn_sampler *s) {
    if (!s || s->params.temperature >= TN__TEMPERATURE_MIN || s->params.n_logit_bias || s->grammar) return false;
    const tn_sampler_params *p = &s->params;
    for (size_t i = 0; i < p->n_chain; i++) {
        if (p->chain[i] == TN_SAMPLER_PENALTIES && p->penalty_window > 0 &&
            (p->repeat_penalty != 1 || p->frequency_penalty != 0 || p->presence_penalty != 0))
            return false;
        if (p->chain[i] == TN_SAMPLER_DRY && p->dry_multiplier != 0) return false;
    }
    return true;
}

tn_status tn_sampler_sample(tn_sampler *s, const float *logits, size_t n_vocab, tn_token *out) {
    if (!s || !logits || !out) return tn_fail(TN_E_INVALID, "tn_sampler_sample: sampler, logits or out is NULL");
    if (n_vocab != s->n_vocab)
        return tn_fail(TN_E_INVALID, "there are %zu logits, but the sampler's vocabulary has %zu tokens", n_vocab,
                       s->n_vocab);
    const uint64_t *mask = NULL;
    if (s->grammar) TN_TRY(tn_grammar_mask(s->grammar, &mask));
    s->drawn = false;
    s->dense = true;
    s->partial = false;
    s->scan->load(s->row, s->block_max, logits, mask, n_vocab);
    for (size_t i = 0; i < s->params.n_logit_bias; i++) {
        tn_token token = s->params.logit_bias[i].token;
        if (s->row[token] == -INFINITY) continue;
        float logit = s->row[token] + s->params.logit_bias[i].bias;
        tn__row_set(s, token, logit < -TN__LOGIT_MAX ? -INFINITY : fminf(logit, TN__LOGIT_MAX));
    }
    if (tn__candidates_max(s) == -INFINITY)
        return tn_fail(TN_E_INFEASIBLE, "no token is possible: %s",
                       mask ? "the grammar allows none whose logit is above -inf" : "every logit is -inf");
    bool greedy = s->params.temperature < TN__TEMPERATURE_MIN;
    for (size_t i = 0; i < s->params.n_chain; i++) {
        const tn__sampler_fn apply = tn__sampler_apply(s, s->params.chain[i], greedy);
        if (apply) apply(s);
    }
    if (greedy)
        *out = argmax_of_row(s);
    else if (s->params.mirostat == 1)
        *out = tn__draw_mirostat_1(s);
    else if (s->params.mirostat == 2)
        *out = tn__draw_mirostat_2(s);
    else
        *out = tn__draw(s);
    s->drawn = true;
    return TN_OK;
}

tn_status tn_sampler_accept(tn_sampler *s, tn_token token) {
    if (!s) return tn_fail(TN_E_INVALID, "tn_sampler_accept: sampler is NULL");
    if (token < 0 || (size_t)token >= s->n_vocab)
        return tn_fail(TN_E_INVALID, "token %d is outside the vocabulary of %zu", token, s->n_vocab);
    if (s->grammar) TN_TRY(tn_grammar_accept_token(s->grammar, token));
    size_t window = (size_t)s->params.penalty_window;
    if (window > 0) {
        if (s->total >= window) s->counts[s->history[tn__history_slot(s, window - 1)]]--;
        s->counts[token]++;
    }
    s->total++;
    size_t slot = tn__history_slot(s, 0);
    s->history[slot] = token;
    s->breaks[slot] = s->params.n_dry_breakers > 0 && tn__dry_completes_breaker(s, token);
    return TN_OK;
}
