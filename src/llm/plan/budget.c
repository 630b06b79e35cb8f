/* Planning to a budget: chooses combinations of parameters to plan, and the best of the results. */
#include "llm/plan/budget.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

/* Rates and contexts that differ by less than this share count as equal: the next criterion decides. Otherwise a
 * decode rate that is 1% higher could cost three quarters of the prefill rate. */
static const double equal_share = 0.05;

static const size_t NONE = SIZE_MAX; /* no result */
enum { CONTEXT_STEP = 256, MIN_UBATCH = 32, CHUNKED = 128, MAX_SHAPES = 16, MAX_PAIRS = 24 };

/* Micro-batch and feed-forward chunk, from most to least compute memory. */
typedef struct budget_shape {
    int32_t n_ubatch, ffn_chunk;
} budget_shape;
typedef struct budget_pair {
    tn_type k, v;
} budget_pair;

typedef struct budget_grid {
    tn__budget_search search;
    tn_budget_params params;
    budget_shape shapes[MAX_SHAPES];
    budget_pair pairs[MAX_PAIRS];           /* from most to least bits */
    size_t n_shapes, n_pairs, n_good_pairs; /* good: no type below q8_0 */
    int32_t n_ctx;                          /* wanted */
} budget_grid;

/* ---- The grid ---- */

static double cache_bits(tn_type type) { return 8.0 * (double)tn_type_bytes(type) / (double)tn_type_block(type); }
static bool is_good_pair(budget_pair p) {
    const double least = cache_bits(TN_Q8_0);
    return cache_bits(p.k) >= least && cache_bits(p.v) >= least;
}

static void add_grid_shape(budget_grid *g, int32_t n_ubatch, int32_t ffn_chunk) {
    if (g->n_shapes < MAX_SHAPES) g->shapes[g->n_shapes++] = (budget_shape){n_ubatch, ffn_chunk};
}

/* Halves from the wanted micro-batch down; each also with its feed-forward part in chunks. An encoder needs a whole
 * sequence in a micro-batch, and so does pooling: those keep theirs. */
static void fill_shapes(budget_grid *g, const tn_session_params *p) {
    const bool keep = g->params.keep_ubatch || p->embeddings || !g->search.model->h.causal;
    int32_t n = p->n_ubatch > 0 ? p->n_ubatch : 512;
    if (p->n_batch > 0) n = TN__MIN(n, p->n_batch);
    for (n = TN__MIN(n, g->n_ctx);; n /= 2) {
        add_grid_shape(g, n, p->ffn_chunk);
        if (!p->ffn_chunk && n > CHUNKED) add_grid_shape(g, n, CHUNKED);
        if (keep || n / 2 < MIN_UBATCH) break;
    }
}

static void add_grid_pair(budget_grid *g, tn_type k, tn_type v) {
    const budget_pair pair = {k, v};
    size_t at = g->n_pairs;
    for (size_t i = 0; i < g->n_pairs; i++)
        if (g->pairs[i].k == k && g->pairs[i].v == v) return;
    if (g->n_pairs == MAX_PAIRS) return;
    for (; at > 0 && cache_bits(g->pairs[at - 1].k) + cache_bits(g->pairs[at - 1].v) < cache_bits(k) + cache_bits(v);
         at--)
        g->pairs[at] = g->pairs[at - 1];
    g->pairs[at] = pair;
    g->n_pairs++;
}

/* K and V of one type, and K one type above V, because K suffers more from rounding. */
static void fill_pairs(budget_grid *g, const tn_session_params *p) {
    static const tn_type usual[] = {TN_F16, TN_Q8_0, TN_Q4_0};
    const tn_type *types = g->params.cache_types ? g->params.cache_types : usual;
    const size_t n = g->params.cache_types ? g->params.n_cache_types : TN__COUNT(usual);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            const bool k = g->params.keep_cache_k, v = g->params.keep_cache_v;
            const double difference = cache_bits(types[i]) - cache_bits(types[j]);
            if (!k && !v && (difference < 0 || (difference > 0 && !(types[i] == TN_Q8_0 && types[j] == TN_Q4_0))))
                continue;
            add_grid_pair(g, k ? p->cache_k : types[i], v ? p->cache_v : types[j]);
        }
    if (!g->n_pairs) add_grid_pair(g, p->cache_k, p->cache_v);
    /* Good pairs come first, which sorting by bits alone does not ensure. */
    for (size_t i = 0; i < g->n_pairs; i++) {
        if (!is_good_pair(g->pairs[i])) continue;
        const budget_pair pair = g->pairs[i];
        for (size_t at = i; at > g->n_good_pairs; at--) g->pairs[at] = g->pairs[at - 1];
        g->pairs[g->n_good_pairs++] = pair;
    }
}

static tn__budget_combination combination_of(const budget_grid *g, size_t shape, size_t pair, int32_t n_ctx,
                                             bool experts) {
    return (tn__budget_combination){.n_ctx = n_ctx,
                                    .n_ubatch = TN__MIN(g->shapes[shape].n_ubatch, n_ctx),
                                    .ffn_chunk = g->shapes[shape].ffn_chunk,
                                    .cache_k = g->pairs[pair].k,
                                    .cache_v = g->pairs[pair].v,
                                    .n_gpu_layers = g->search.base.n_gpu_layers,
                                    .host_experts = experts ? -1 : 0};
}

/* ---- One context ---- */

static bool chooses_layers(const tn__budget_search *s) {
    return s->n_devices > 1 && s->base.n_gpu_layers < 0 && !s->model->loaded;
}

static bool same_placement(const tn__budget_result *a, const tn__budget_result *b) {
    if (!a->choice.fits || !b->choice.fits) return !a->choice.fits && !b->choice.fits;
    return a->choice.n_layers == b->choice.n_layers && a->choice.n_host_experts == b->choice.n_host_experts;
}

/* Smaller shapes leave more memory for layers. Where the first and the last of a range have the same layers, those in
 * between do, too, and the first prefills fastest. */
static tn_status search_shapes(budget_grid *g, size_t first, size_t last, size_t pair, int32_t n_ctx, bool experts) {
    tn__budget_search *s = &g->search;
    const tn__budget_combination a = combination_of(g, first, pair, n_ctx, experts),
                                 b = combination_of(g, last, pair, n_ctx, experts);
    size_t at_first, at_last;
    TN_TRY(tn__budget_try(s, &a, &at_first));
    TN_TRY(tn__budget_try(s, &b, &at_last));
    if (last - first < 2 || same_placement(&s->results[at_first], &s->results[at_last])) return TN_OK;
    const size_t middle = first + (last - first) / 2;
    TN_TRY(search_shapes(g, first, middle, pair, n_ctx, experts));
    return search_shapes(g, middle, last, pair, n_ctx, experts);
}

static tn_status search_context(budget_grid *g, int32_t n_ctx, size_t n_pairs) {
    tn__budget_search *s = &g->search;
    const int modes = s->n_expert_layers ? 2 : 1;
    for (size_t pair = 0; pair < n_pairs; pair++)
        for (int experts = 0; experts < modes; experts++) {
            const tn__budget_combination first = combination_of(g, 0, pair, n_ctx, experts);
            size_t at;
            TN_TRY(tn__budget_try(s, &first, &at));
            const tn_budget_choice *c = &s->results[at].choice;
            /* With all layers off the host, smaller shapes gain nothing. */
            if (c->fits && c->n_layers == s->model->h.n_layer + 1 && !c->n_host_experts) break;
            TN_TRY(search_shapes(g, 0, g->n_shapes - 1, pair, n_ctx, experts));
        }
    /* Only the host, in case it is the faster device: rates are close to linear in the number of layers. */
    tn__budget_combination host = combination_of(g, 0, 0, n_ctx, false);
    size_t at;
    if (!chooses_layers(s)) return TN_OK;
    host.n_gpu_layers = 0;
    return tn__budget_try(s, &host, &at);
}

/* ---- Comparing ---- */

/* Criteria in order; small differences count as equal. */
enum { CRITERIA = 4 };
static void criteria_of(const tn__budget_result *r, double *value) {
    value[0] = r->decode;
    value[1] = r->prefill;
    value[2] = cache_bits(r->choice.cache_k) + cache_bits(r->choice.cache_v);
    value[3] = r->choice.ffn_chunk ? 0 : 1;
}

/* The best of the results with at least this context that fit, or NONE. Every criterion keeps those that are about
 * as good as the best. */
static size_t best_result(const budget_grid *g, int32_t n_ctx, size_t n_pairs) {
    const tn__budget_search *s = &g->search;
    double floor[CRITERIA] = {0};
    size_t best = NONE;
    for (int k = 0; k <= CRITERIA; k++) {
        double most = -1;
        best = NONE;
        for (size_t i = 0; i < s->n; i++) {
            const tn__budget_result *r = &s->results[i];
            double value[CRITERIA];
            bool among = r->choice.fits && r->choice.n_ctx >= n_ctx;
            if (n_pairs == g->n_good_pairs)
                among = among && is_good_pair((budget_pair){r->choice.cache_k, r->choice.cache_v});
            criteria_of(r, value);
            for (int j = 0; j < k; j++) among = among && value[j] >= floor[j];
            if (!among) continue;
            /* Finally the highest prefill rate among equals. */
            const double x = k < CRITERIA ? value[k] : value[1];
            if (x <= most) continue;
            most = x;
            best = i;
        }
        if (best == NONE) return best;
        if (k < CRITERIA) floor[k] = most * (1 - (k < 2 ? equal_share : 0));
    }
    return best;
}

/* The result with the smallest shortfall. */
static size_t closest_result(const tn__budget_search *s) {
    size_t best = NONE;
    for (size_t i = 0; i < s->n; i++)
        if (s->results[i].possible &&
            (best == NONE || s->results[i].choice.missing < s->results[best].choice.missing))
            best = i;
    return best;
}

/* ---- The longest context ---- */

/* The shortest context that counts as equal, in whole steps. */
static int32_t about_as_long(int32_t n_ctx) {
    return ((int32_t)(n_ctx * (1 - equal_share)) + CONTEXT_STEP - 1) / CONTEXT_STEP * CONTEXT_STEP;
}

/* Whether a context fits with the smallest shape and cache. */
static tn_status context_fits(budget_grid *g, int32_t n_ctx, size_t n_pairs, bool *fits) {
    *fits = false;
    for (int experts = 0; experts < (g->search.n_expert_layers ? 2 : 1) && !*fits; experts++) {
        const tn__budget_combination c = combination_of(g, g->n_shapes - 1, n_pairs - 1, n_ctx, experts);
        size_t at;
        TN_TRY(tn__budget_try(&g->search, &c, &at));
        *fits = g->search.results[at].choice.fits;
    }
    return TN_OK;
}

/* The longest context up to `most` that fits, in steps of 256 cells; 0: none. */
static tn_status find_context(budget_grid *g, int32_t most, size_t n_pairs, int32_t *n_ctx) {
    int32_t low = 0, high = most / CONTEXT_STEP + 1;
    bool fits;
    *n_ctx = most;
    TN_TRY(context_fits(g, most, n_pairs, &fits));
    if (fits) return TN_OK;
    while (high - low > 1) {
        const int32_t middle = low + (high - low) / 2;
        if (middle * CONTEXT_STEP >= most) {
            high = middle;
            continue;
        }
        TN_TRY(context_fits(g, middle * CONTEXT_STEP, n_pairs, &fits));
        *(fits ? &low : &high) = middle;
    }
    *n_ctx = low * CONTEXT_STEP;
    return TN_OK;
}

/* Lengthens the context of a result as far as its other parameters allow at about the same speed. */
static tn_status lengthen(budget_grid *g, int32_t most, size_t *best) {
    tn__budget_search *s = &g->search;
    int32_t low = s->results[*best].choice.n_ctx / CONTEXT_STEP, high = most / CONTEXT_STEP + 1;
    tn__budget_combination c = s->results[*best].combination;
    const double least = s->results[*best].decode * (1 - equal_share);
    while (high - low > 1) {
        const int32_t middle = low + (high - low) / 2;
        size_t at;
        c.n_ctx = middle * CONTEXT_STEP;
        TN_TRY(tn__budget_try(s, &c, &at));
        if (s->results[at].choice.fits && s->results[at].decode >= least) {
            low = middle;
            *best = at;
        } else {
            high = middle;
        }
    }
    return TN_OK;
}

/* The best combination with about the longest context that fits. */
static tn_status search_longest(budget_grid *g, size_t n_pairs, size_t *best) {
    int32_t longest;
    *best = NONE;
    TN_TRY(find_context(g, g->n_ctx, n_pairs, &longest));
    if (!longest) return TN_OK;
    const int32_t target = longest == g->n_ctx ? longest : about_as_long(longest);
    TN_TRY(search_context(g, target, n_pairs));
    *best = best_result(g, target, n_pairs);
    return *best != NONE && longest != g->n_ctx ? lengthen(g, longest, best) : TN_OK;
}

/* ---- The search ---- */

static tn_status search_wanted(budget_grid *g, size_t n_pairs, size_t *best) {
    TN_TRY(search_context(g, g->n_ctx, n_pairs));
    *best = best_result(g, g->n_ctx, n_pairs);
    return TN_OK;
}

static tn_status search_budget(budget_grid *g, size_t *best) {
    tn__budget_search *s = &g->search;
    const size_t all = g->n_pairs, good = g->n_good_pairs;
    const bool quality = g->params.prefer == TN_PREFER_QUALITY && good;
    *best = NONE;
    if (g->params.prefer == TN_PREFER_CONTEXT) {
        TN_TRY(search_longest(g, all, best));
    } else {
        if (quality) TN_TRY(search_wanted(g, good, best));
        if (*best == NONE) TN_TRY(search_wanted(g, all, best));
        if (*best == NONE && quality) TN_TRY(search_longest(g, good, best));
        if (*best == NONE) TN_TRY(search_longest(g, all, best));
    }
    if (*best == NONE) *best = closest_result(s);
    return *best != NONE ? TN_OK : tn_fail(TN_E_TOO_BIG, "no combination of parameters can be planned");
}

/* Plans with the chosen shape and cache and other numbers of layers off the host. */
static tn_status search_frontier(budget_grid *g, size_t best) {
    enum { STEPS = 4 };
    tn__budget_search *s = &g->search;
    const tn_budget_choice chosen = s->results[best].choice;
    const int32_t all = s->model->h.n_layer + 1;
    tn__budget_combination c = s->results[best].combination;
    size_t at;
    if (!chooses_layers(s)) return TN_OK;
    if (chosen.n_host_experts) {
        for (int i = 0; i <= STEPS; i++) {
            c.host_experts = s->n_expert_layers * i / STEPS;
            TN_TRY(tn__budget_try(s, &c, &at));
        }
        c.host_experts = 0;
    }
    for (int i = 0; i < STEPS; i++) {
        c.n_gpu_layers = chosen.n_layers * i / STEPS;
        TN_TRY(tn__budget_try(s, &c, &at));
    }
    if (chosen.n_layers == all) return TN_OK;
    c.n_gpu_layers = chosen.n_layers + (all - chosen.n_layers) / 2;
    if (c.n_gpu_layers > chosen.n_layers) TN_TRY(tn__budget_try(s, &c, &at));
    c.n_gpu_layers = all;
    return tn__budget_try(s, &c, &at);
}

/* ---- The ladder ---- */

static int compare_choices(const void *a, const void *b) {
    const tn__budget_result *x = a, *y = b;
    if (x->choice.chosen != y->choice.chosen) return x->choice.chosen ? -1 : 1;
    if (x->choice.fits != y->choice.fits) return x->choice.fits ? -1 : 1;
    if (!x->choice.fits && x->choice.missing != y->choice.missing)
        return x->choice.missing < y->choice.missing ? -1 : 1;
    if (x->decode != y->decode) return x->decode > y->decode ? -1 : 1;
    return x->prefill > y->prefill ? -1 : x->prefill < y->prefill;
}

static tn_status fill_ladder(budget_grid *g, size_t best, tn_budget_ladder *ladder) {
    tn__budget_search *s = &g->search;
    ladder->choices = tn_calloc(s->n, sizeof *ladder->choices);
    if (!ladder->choices) return TN_E_NOMEM;
    s->results[best].choice.chosen = true;
    qsort(s->results, s->n, sizeof *s->results, compare_choices);
    for (size_t i = 0; i < s->n; i++) {
        if (!s->results[i].possible) continue;
        ladder->choices[ladder->n_choices++] = s->results[i].choice;
        s->results[i].choice.bytes = NULL; /* the ladder's now */
    }
    ladder->devices = s->devices;
    ladder->n_devices = s->n_devices;
    s->devices = NULL;
    ladder->n_planned = s->n_planned;
    ladder->predicted = !s->not_measured;
    ladder->wanted_ctx = g->n_ctx;
    ladder->prefer = g->params.prefer;
    memcpy(ladder->note, s->note, sizeof ladder->note);
    return TN_OK;
}

void tn_budget_ladder_free(tn_budget_ladder *ladder) {
    if (!ladder) return;
    for (size_t i = 0; i < ladder->n_choices; i++) tn_free(ladder->choices[i].bytes);
    tn_free(ladder->choices);
    tn_free(ladder->devices);
    memset(ladder, 0, sizeof *ladder);
}

tn_status tn_session_plan_to_budget(tn_model *model, const tn_session_params *params, const tn_budget_params *budget,
                                    tn_session_plan **plan, tn_budget_ladder *ladder) {
    if (!model || !plan) return tn_fail(TN_E_INVALID, "tn_session_plan_to_budget: NULL argument");
    budget_grid g = {.search = {.model = model, .base = params ? *params : tn_session_params_default()},
                     .params = budget ? *budget : (tn_budget_params){0}};
    tn_session_params *base = &g.search.base;
    *plan = NULL;
    if (ladder) memset(ladder, 0, sizeof *ladder);
    g.search.params = &g.params;
    g.n_ctx = base->n_ctx > 0 ? base->n_ctx : model->h.n_ctx_train;
    if (g.n_ctx < 1) return tn_fail(TN_E_INVALID, "a context of %d", g.n_ctx);
    fill_shapes(&g, base);
    fill_pairs(&g, base);
    g.search.expected = g.n_shapes * g.n_pairs + 2;
    size_t best = 0;
    tn_status status = tn__budget_open_devices(&g.search);
    if (status == TN_OK) status = search_budget(&g, &best);
    if (status == TN_OK && g.params.frontier && g.search.results[best].choice.fits)
        status = search_frontier(&g, best);
    if (status == TN_OK) status = tn__budget_plan(&g.search, &g.search.results[best].combination, plan);
    if (status == TN_OK && ladder) status = fill_ladder(&g, best, ladder);
    if (status != TN_OK) {
        tn_session_plan_free(*plan);
        *plan = NULL;
        if (ladder) tn_budget_ladder_free(ladder);
    }
    tn__budget_search_free(&g.search);
    return status;
}
