/* Speculators: one proposer, the policy that decides how much is verified, and statistics. */
#include "llm/speculate/proposer.h"

#include "base/checked.h"

#include <stdio.h>
#include <string.h>

enum { DEFAULT_GUESS = 8 };
/* Of the time of guessing and decoding: what takes longer than this is no part of generating. */
static const double LONGEST_ROUND = 2;

struct tn_speculator {
    tn_session *session;
    tn_spec_params params;
    tn__proposer *proposer; /* NULL: a callback */
    tn__policy policy;
    tn_spec_stats stats;
    tn__round round;
    uint64_t round_step;   /* the number of the last step before it */
    uint64_t round_from;   /* when it began */
    uint64_t round_graphs; /* built before it */
};

/* ---- The table ---- */

static const char *const kind_names[] = {
#define TN_X(KIND, name, text) name,
    TN_SPEC_TABLE(TN_X)
#undef TN_X
};

const char *tn_spec_kind_name(tn_spec_kind kind) { return (size_t)kind < TN_SPEC_KINDS ? kind_names[kind] : NULL; }

tn_status tn_spec_kind_from_name(const char *name, tn_spec_kind *out) {
    if (!name || !out) return tn_fail(TN_E_INVALID, "tn_spec_kind_from_name: name or out is NULL");
    char all[128] = "";
    for (int i = 0; i < TN_SPEC_CALLBACK; i++) {
        if (strcmp(name, kind_names[i]) == 0) {
            *out = (tn_spec_kind)i;
            return TN_OK;
        }
        const size_t used = strlen(all);
        snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "", kind_names[i]);
    }
    return tn_fail(TN_E_NOT_FOUND, "unknown type of speculative decoding '%s'; known: %s", name, all);
}

/* ---- Creation ---- */

static tn_status fill_params(const tn_session *session, tn_spec_params *p) {
    const int32_t most = session->plan->params.n_guess;
    if ((size_t)p->kind >= TN_SPEC_KINDS)
        return tn_fail(TN_E_INVALID, "unknown type of speculation %d", (int)p->kind);
    if (p->kind != TN_SPEC_NONE && most < 1)
        return tn_fail(TN_E_INVALID, "the session verifies no guesses: set n_guess of its parameters");
    if (p->kind != TN_SPEC_NONE && session->notes.bytes)
        return tn_fail(TN_E_UNSUPPORTED, "speculative decoding is not supported with several ranks");
    if (p->n_max == 0) p->n_max = TN__MIN(DEFAULT_GUESS, most);
    if (p->n_max < 0 || p->n_max > most)
        return tn_fail(TN_E_INVALID, "guesses of %d tokens; the session verifies 1 to %d (n_guess)", p->n_max, most);
    if (p->n_min < 0 || p->n_min > p->n_max)
        return tn_fail(TN_E_INVALID, "guesses of at least %d tokens and at most %d", p->n_min, p->n_max);
    if (!(p->p_min >= 0 && p->p_min <= 1)) return tn_fail(TN_E_INVALID, "a probability of %g", (double)p->p_min);
    if (p->kind == TN_SPEC_CALLBACK && !p->propose) return tn_fail(TN_E_INVALID, "the function that guesses is NULL");
    return TN_OK;
}

static tn_status make_proposer(tn_speculator *s) {
    switch (s->params.kind) {
    case TN_SPEC_NGRAM: return tn__ngram_new(&s->session->plan->params, &s->params, &s->proposer);
    case TN_SPEC_DRAFT: return tn__draft_new(s->session, &s->params, &s->proposer);
    case TN_SPEC_MTP:
    case TN_SPEC_EAGLE3: return tn__head_new(s->session, &s->params, &s->proposer);
    default: return TN_OK;
    }
}

tn_status tn_speculator_new(tn_session *session, const tn_spec_params *params, tn_speculator **out) {
    if (!session || !params || !out) return tn_fail(TN_E_INVALID, "tn_speculator_new: NULL argument");
    *out = NULL;
    tn_spec_params filled = *params;
    TN_TRY(fill_params(session, &filled));
    tn_speculator *s = tn_calloc(1, sizeof *s);
    if (!s) return TN_E_NOMEM;
    s->session = session;
    s->params = filled;
    tn__policy_begin(&s->policy, session, filled.fixed, filled.n_min);
    const tn_status status = make_proposer(s);
    if (status != TN_OK)
        tn_speculator_free(s);
    else
        *out = s;
    return status;
}

void tn_speculator_free(tn_speculator *s) {
    if (!s) return;
    if (s->proposer) s->proposer->class->free(s->proposer);
    tn_free(s);
}

size_t tn_speculator_bytes(const tn_speculator *s) {
    return s ? sizeof *s + (s->proposer ? s->proposer->bytes : 0) : 0;
}

size_t tn_spec_params_bytes(const tn_session_params *session, const tn_spec_params *params) {
    if (!session || !params || params->kind == TN_SPEC_NONE) return 0;
    return sizeof(tn_speculator) + (params->kind == TN_SPEC_NGRAM ? tn__ngram_bytes(session, params) : 0);
}

/* ---- Trees ---- */

static int32_t parent_of(const tn_guess *g, int32_t i) { return g->tree ? g->parents[i] : i - 1; }

int32_t tn_guess_find(const tn_guess *g, int32_t at, tn_token token) {
    for (int32_t i = at + 1; i < g->n; i++)
        if (parent_of(g, i) == at && g->guess[i] == token) return i;
    return -1;
}

int32_t tn_guess_branch(const tn_guess *g, int32_t at) {
    int32_t branch[1 + TN_GUESS_MOST] = {0}, n = 0; /* of the sampled token, then of the guessed ones */
    for (int32_t i = 0; g->tree && i <= at; i++) {
        const int32_t parent = g->parents[i];
        branch[1 + i] = branch[1 + parent];
        for (int32_t k = parent + 1; k < i; k++)
            if (branch[1 + k] == branch[1 + parent]) branch[1 + i] = -1; /* the parent already has a successor */
        if (branch[1 + i] < 0) branch[1 + i] = ++n;
    }
    return branch[1 + at];
}

/* Truncates a tree at invalid parents or at too many branches; a tree without branches becomes a path.
 */
static void limit_tree(tn_guess *g, int32_t most) {
    bool line = true;
    if (!g->tree) return;
    for (int32_t i = 0; i < g->n; i++) {
        if (g->parents[i] < -1 || g->parents[i] >= i || tn_guess_branch(g, i) > most) g->n = i;
        line = line && (i >= g->n || g->parents[i] == i - 1);
    }
    g->tree = !line;
}

/* ---- Guessing ---- */

static tn_status ask_callback(const tn_speculator *s, tn_guess *guesses, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        if (!guesses[i].room) continue;
        TN_TRY(s->params.propose(s->params.user, &guesses[i]));
        guesses[i].n = TN__MAX(TN__MIN(guesses[i].n, guesses[i].room), 0);
    }
    return TN_OK;
}

/* Every token must be in the model's vocabulary, or the guess cannot be decoded. */
static void drop_invalid(const tn_speculator *s, tn_guess *g) {
    const int32_t n_vocab = s->session->plan->model->h.n_vocab;
    for (int32_t i = 0; i < g->n; i++)
        if (g->guess[i] < 0 || g->guess[i] >= n_vocab) g->n = i;
}

/* Limits guesses to the rows of one micro-batch that can have logits: a sequence's guess is never divided. */
static void limit_rows(const tn_speculator *s, tn_guess *guesses, int32_t n) {
    const tn_session_params *p = &s->session->plan->params;
    int32_t left = TN__MIN(TN__MIN(p->n_outputs, p->n_ubatch), TN__STEP_ROWS - 1) - n;
    for (int32_t i = 0; i < n; i++) {
        const int32_t share = TN__MAX(left, 0) / (n - i);
        guesses[i].room = TN__MAX(TN__MIN(TN__MIN(guesses[i].room, s->params.n_max), share), 0);
        left -= guesses[i].room;
    }
}

static uint64_t graphs_built(const tn_speculator *s) {
    const tn_session *draft = s->params.draft;
    return s->session->plan->graphs.n_built + (draft ? draft->plan->graphs.n_built : 0);
}

/* Ends the round that began with the last proposal, and begins the next. Of rounds with a prompt only the time of
 * guessing is known. */
static void end_round(tn_speculator *s) {
    const tn_session *x = s->session;
    const int32_t rows = s->round.n_seqs + s->round.n_guessed;
    const bool step = x->n_steps == s->round_step + 1 && rows < TN__STEP_ROWS && x->steps[rows].seen == x->n_steps;
    const uint64_t now = tn_time_ns();
    const uint64_t built = graphs_built(s);
    s->round.built = built != s->round_graphs;
    s->round.step_ns = x->step_ns;
    s->round.ns = (double)(now - s->round_from);
    const double known = s->round.guess_ns + s->round.step_ns;
    if (s->round.ns > LONGEST_ROUND * known) s->round.ns = known; /* somebody was waited for */
    if (step && tn__step_is_typical(&x->steps[rows]))
        tn__policy_round(&s->policy, &s->round);
    else
        tn__policy_other_round(&s->policy, &s->round);
    s->round = (tn__round){0};
    s->round_step = x->n_steps;
    s->round_from = now;
    s->round_graphs = built;
}

tn_status tn_speculator_propose(tn_speculator *s, tn_guess *guesses, int32_t n) {
    if (!s || !guesses || n < 1) return tn_fail(TN_E_INVALID, "tn_speculator_propose: NULL argument or no sequences");
    for (int32_t i = 0; i < n; i++) {
        guesses[i].n = 0;
        guesses[i].tree = false;
        guesses[i].at = -1;
    }
    if (s->params.kind == TN_SPEC_NONE || s->stats.failed) return TN_OK;
    const bool costly = s->proposer && s->proposer->class->costly;
    limit_rows(s, guesses, n);
    end_round(s);
    const bool asks = tn__policy_guesses(&s->policy, n);
    if (s->proposer) s->proposer->paused = s->policy.paused;
    if (!asks && costly) return TN_OK;
    const uint64_t begin = tn_time_ns();
    const tn__guess_limit limit = tn__policy_limit(&s->policy, n, s->params.p_min);
    const tn_status status =
        s->proposer ? s->proposer->class->propose(s->proposer, guesses, n, &limit) : ask_callback(s, guesses, n);
    const uint64_t took = tn_time_ns() - begin;
    s->round.guess_ns = (double)took;
    s->stats.propose_ns += took;
    s->session->stats.generated_ns += took; /* it is part of generating */
    if (status != TN_OK) {
        tn_log(TN_LOG_WARN, "speculative decoding with %s failed and is disabled from now on: %s",
               kind_names[s->params.kind], tn_error());
        s->stats.failed = true;
        for (int32_t i = 0; i < n; i++) guesses[i].n = 0;
        return TN_OK;
    }
    int32_t n_guessed = 0;
    for (int32_t i = 0; i < n; i++) {
        drop_invalid(s, &guesses[i]);
        limit_tree(&guesses[i], s->session->branches.n / n);
        n_guessed += guesses[i].n;
    }
    if (costly && graphs_built(s) == s->round_graphs) tn__policy_guessed(&s->policy, n_guessed, took);
    if (costly) s->round.n_drafted = TN__MAX(n_guessed, 1); /* it has at least processed the text */
    if (asks)
        tn__policy_cut(&s->policy, guesses, n, costly);
    else /* it has only processed the text */
        for (int32_t i = 0; i < n; i++) guesses[i].n = 0;
    return TN_OK;
}

void tn_speculator_checked(tn_speculator *s, const tn_guess *g, int32_t n_accepted) {
    if (!s || !g) return;
    tn_spec_stats *x = &s->stats;
    x->steps++;
    s->round.n_seqs++;
    s->round.n_tokens += 1 + n_accepted;
    s->round.n_guessed += g->n;
    if (g->n < 1) return;
    x->guessed_steps++;
    x->guessed += (uint64_t)g->n;
    x->accepted += (uint64_t)n_accepted;
    for (int32_t i = 0; i < TN__MIN(n_accepted + 1, g->n); i++) { /* by the depth in a tree */
        x->tried[i]++;
        x->right[i] += i < n_accepted;
    }
    const double plain = tn__policy_step_ns(&s->policy, 1), step = tn__policy_step_ns(&s->policy, 1 + g->n);
    if (plain > 0) x->saved_ns += (int64_t)((1 + n_accepted) * plain - step - tn__policy_guess_ns(&s->policy) * g->n);
    if (s->proposer && s->proposer->class->checked) s->proposer->class->checked(s->proposer, g);
    tn__policy_learn(&s->policy, g, n_accepted);
    tn__count_accepted(s->session, n_accepted);
}

void tn_speculator_forget(tn_speculator *s, int32_t seq) {
    if (s && s->proposer && s->proposer->class->forget) s->proposer->class->forget(s->proposer, seq);
}

tn_spec_stats tn_speculator_stats(const tn_speculator *s) { return s ? s->stats : (tn_spec_stats){0}; }
void tn_speculator_reset_stats(tn_speculator *s) {
    const bool failed = s->stats.failed;
    s->stats = (tn_spec_stats){.failed = failed};
}
