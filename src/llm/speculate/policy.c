/* How long guesses are: from how often guesses were right, and from the measured time of batches.
 *
 * A step of r rows takes T(r), measured by the session. A guess whose tokens are right with the probabilities p1, p2,
 * … gives 1 + p1 + p1 p2 + … tokens. Of all lengths the one with the most tokens per time is chosen; a proposer that
 * takes time guesses a further token only where that promises more tokens per time than are made now.
 *
 * What proposers say about their sureness is corrected by what was observed. A draft that is sure of 0.3 may well be
 * right in nine of ten cases where the larger model takes its argmax, too.
 *
 * Predictions can be wrong. An account of the time that rounds with guesses took, less what plain steps would have
 * taken for the same tokens, bounds what guessing can lose: a few steps, and a fixed share of the time after that. */
#include "llm/speculate/proposer.h"

#include "base/checked.h"

#include <math.h>

enum {
    PROBE_EVERY = 32,  /* of the guesses that do not seem to pay, so many are dropped for one that is checked */
    PROBE_TOKENS = 2,  /* its length */
    PLAIN_EVERY = 256, /* steps after which plain ones are measured again, */
    PLAIN_STEPS = 4,   /* so many */
};
/* A guess that cost nothing must promise this much more than a plain step: predictions are not exact. */
static const double MARGIN = 1.05;
/* Time of a further row where nothing was measured: optimistic, so that it will be. */
static const double UNKNOWN_ROW = 0.02;
/* The same for a number of rows between two that were. */
static const double UNTRIED = 0.9;
/* Guessing pauses once it has lost the time of so many plain steps, until it is half of that; a plain step makes up
 * for this share of its time. */
static const double MOST_LOST = 8, REGAINED = 0.01;

void tn__policy_begin(tn__policy *p, const tn_session *session, bool fixed, int32_t n_min) {
    *p = (tn__policy){.session = session, .fixed = fixed, .n_min = n_min, .slope = 1, .mean = 1};
}

static float log_odds(float prob) {
    static const float least = 0.02f;
    const float within = TN__MAX(TN__MIN(prob, 1 - least), least);
    return logf(within / (1 - within));
}

/* How often tokens are right of which the proposer is as sure as this. */
static float corrected(const tn__policy *p, float prob) {
    return 1 / (1 + expf(-(p->shift + p->slope * log_odds(prob))));
}

static void correct(tn__policy *p, float prob, bool right) {
    static const float shift_rate = 0.2f, slope_rate = 0.1f, mean_rate = 0.05f, steepest = 2;
    const float error = (right ? 1.0f : 0.0f) - corrected(p, prob);
    p->shift += shift_rate * error;
    p->mean += mean_rate * ((right ? 1.0f : 0.0f) - p->mean);
    p->slope = TN__MAX(TN__MIN(p->slope + slope_rate * error * log_odds(prob), steepest), 0);
}

/* What was not measured for long, or a few times only, may be shorter: it is tried in time. */
static double hoped_time(const tn__policy *p, int32_t rows) {
    static const double steps = 512, most = 0.1, each = 0.05;
    const tn__step_time *t = &p->session->steps[rows];
    const double age = (double)(p->session->n_steps - t->seen) / steps;
    const double unsure = t->n < TN__STEPS_SURE ? each * (double)(TN__STEPS_SURE - t->n) : 0;
    return t->ns * (1 - most * TN__MIN(age, 1)) * (1 - unsure);
}

double tn__policy_step_ns(const tn__policy *p, int32_t rows) {
    const tn__step_time *times = p->session->steps;
    int32_t below = TN__MIN(rows, TN__STEP_ROWS - 1), above = rows;
    while (below > 0 && times[below].ns <= 0) below--;
    while (above < TN__STEP_ROWS && times[above].ns <= 0) above++;
    const bool has_above = above < TN__STEP_ROWS;
    if (below == rows) return hoped_time(p, rows);
    if (!below) return has_above ? hoped_time(p, above) : 0;
    const double further = (double)(rows - below), time = hoped_time(p, below);
    if (!has_above) return time * (1 + UNKNOWN_ROW * further);
    const double slope = (hoped_time(p, above) - time) / (double)(above - below);
    return (time + TN__MAX(slope, 0) * further) * UNTRIED;
}

/* ---- Whether to guess ---- */

void tn__policy_round(tn__policy *p, const tn__round *r) {
    static const double fading = 0.95;
    const double plain = p->session->steps[r->n_seqs].ns;
    if (r->n_seqs < 1 || r->n_tokens < r->n_seqs || plain <= 0) return;
    const bool guessed = r->n_drafted + r->n_guessed > 0;
    const double usual = p->session->steps[r->n_seqs + r->n_guessed].ns + tn__policy_guess_ns(p) * r->n_drafted;
    const double same = plain * r->n_tokens / r->n_seqs, took = tn__undisturbed(r->ns, usual);
    p->lost = TN__MAX(p->lost + (guessed ? took - same : -REGAINED * took), 0);
    if (p->lost > MOST_LOST * plain) p->paused = true;
    if (p->lost < MOST_LOST * plain / 2) p->paused = false;
    if (!guessed) return;
    p->made.tokens = fading * p->made.tokens + r->n_tokens;
    p->made.ns = fading * p->made.ns + took;
}

bool tn__policy_guesses(tn__policy *p, int32_t n) {
    if (p->fixed) return true;
    const tn__step_time *plain = &p->session->steps[TN__MIN(n, TN__STEP_ROWS - 1)];
    if (p->plain > 0)
        p->plain--;
    else if (plain->ns > 0 && p->session->n_steps > plain->seen + PLAIN_EVERY)
        p->plain = PLAIN_STEPS;
    const bool guesses = !p->paused && !p->plain && tn__policy_step_ns(p, n) > 0; /* a plain step is measured first */
    p->resumed = guesses && !p->guessed; /* a draft then has to catch up on the text */
    p->guessed = guesses;
    return guesses;
}

double tn__policy_guess_ns(const tn__policy *p) { return p->guessing.ns; }

/* ---- How long ---- */

tn__guess_limit tn__policy_limit(const tn__policy *p, int32_t n, float p_min) {
    enum { FROM = 2, TO = 6 };
    tn__guess_limit limit = {.policy = p, .p_min = p_min};
    const double plain = tn__policy_step_ns(p, n);
    if (p->fixed || plain <= 0) return limit;
    /* What a further token takes to check and to guess, as the tokens that are made in that time without it. */
    const double row = (tn__policy_step_ns(p, TO * n) - tn__policy_step_ns(p, FROM * n)) / ((TO - FROM) * (double)n);
    const double rate = TN__MAX((double)n / plain, p->made.ns > 0 ? p->made.tokens / p->made.ns : 0);
    limit.check = (float)TN__MIN(TN__MAX(row, 0) * rate, 0.9);
    limit.guess = (float)(tn__policy_guess_ns(p) * rate);
    return limit;
}

bool tn__guess_keeps(const tn__guess_limit *limit, int32_t n_guessed, float prob, float *all) {
    if (prob < limit->p_min) return false;
    *all *= limit->policy->fixed ? prob : corrected(limit->policy, prob);
    return !n_guessed || *all >= limit->check;
}

bool tn__guess_goes_on(const tn__guess_limit *limit, float all) {
    if (!limit->policy->fixed && limit->policy->guessing.ns <= 0) return false; /* the first ones are short */
    return all * limit->policy->mean >= limit->check + limit->guess;
}

/* Tokens that the guesses give if each has at most `length`, and the rows of their batch. */
static double expect_tokens(const tn__policy *p, const tn_guess *guesses, int32_t n, int32_t length, int32_t *rows) {
    double tokens = n;
    *rows = n;
    for (int32_t i = 0; i < n; i++) {
        double all[1 + TN_GUESS_MOST] = {1}; /* the sampled token is right */
        for (int32_t k = 0; k < TN__MIN(guesses[i].n, length); k++) {
            const int32_t parent = guesses[i].tree ? guesses[i].parents[k] : k - 1;
            all[1 + k] = all[1 + parent] * corrected(p, guesses[i].probs[k]);
            tokens += all[1 + k];
            ++*rows;
        }
    }
    return tokens;
}

static void cut_guesses(tn_guess *guesses, int32_t n, int32_t length) {
    for (int32_t i = 0; i < n; i++) guesses[i].n = TN__MIN(guesses[i].n, length);
}

void tn__policy_cut(tn__policy *p, tn_guess *guesses, int32_t n, bool costly) {
    int32_t longest = 0, best = 0, rows;
    for (int32_t i = 0; i < n; i++) {
        if (guesses[i].n < p->n_min) guesses[i].n = 0;
        longest = TN__MAX(longest, guesses[i].n);
    }
    if (p->fixed || !longest) return;
    const double plain = tn__policy_step_ns(p, n);
    if (plain <= 0) {
        cut_guesses(guesses, n, 0);
        return;
    }
    int32_t drafted = 0;
    for (int32_t i = 0; i < n; i++) drafted += guesses[i].n;
    /* The time that guessing has taken is spent; its first token is checked in any case, and so learned from. */
    const double spent = costly ? tn__policy_guess_ns(p) * (double)drafted : 0;
    double most = (double)n / (plain + spent) * (costly ? 0 : MARGIN);
    for (int32_t length = 1; length <= longest; length++) {
        const double tokens = expect_tokens(p, guesses, n, length, &rows);
        const double found = tokens / (tn__policy_step_ns(p, rows) + spent);
        if (found <= most) continue;
        most = found;
        best = length;
    }
    if (!best && ++p->unprobed >= PROBE_EVERY) best = PROBE_TOKENS; /* what was learned may be out of date */
    if (best) p->unprobed = 0;
    cut_guesses(guesses, n, best);
}

void tn__policy_learn(tn__policy *p, const tn_guess *guess, int32_t n_accepted) {
    bool right[1 + TN_GUESS_MOST] = {true};
    for (int32_t i = guess->at; guess->tree && i >= 0; i = guess->parents[i]) right[1 + i] = true;
    for (int32_t i = 0; !guess->tree && i < n_accepted; i++) right[1 + i] = true;
    for (int32_t i = 0; i < guess->n; i++) {
        if (!right[1 + (guess->tree ? guess->parents[i] : i - 1)]) continue; /* not reached */
        correct(p, guess->probs[i], right[1 + i]);
    }
}

void tn__policy_guessed(tn__policy *p, int32_t n_tokens, uint64_t ns) {
    if (n_tokens > 0 && !p->resumed) tn__step_time_add(&p->guessing, (double)ns / n_tokens);
}
