/* How long guesses are: from how often guesses were right, and from the measured time of batches.
 *
 * A step of r rows takes T(r), measured by the session. A guess whose tokens are right with the probabilities p1, p2,
 * … gives 1 + p1 + p1 p2 + … tokens. Of all lengths the one with the most tokens per time is chosen; where no guess
 * reaches the rate of plain steps, none is checked. What proposers say about their sureness is corrected by what was
 * observed: tokens are counted in classes of sureness. */
#include "llm/speculate/proposer.h"

#include "base/checked.h"

#include <math.h>

enum {
    PAUSE_FIRST = 8, /* steps without guesses after they did not pay */
    PAUSE_LONGEST = 256,
    PROBE_EVERY = 32, /* of the guesses that do not seem to pay, so many are dropped for one that is checked */
    PROBE_TOKENS = 2, /* its length */
};
/* Observations of a class count this much at the beginning, as if the proposer's sureness was right; older ones fade.
 */
static const float PRIOR = 4, FADING = 0.98f;
/* A guess must promise this much more than a plain step: predictions are not exact. */
static const double MARGIN = 1.05;
/* Time of a further row where nothing was measured: optimistic, so that it will be. */
static const double UNKNOWN_ROW = 0.02;
/* The same for a number of rows between two that were. */
static const double UNTRIED = 0.9;

void tn__policy_begin(tn__policy *p, const tn_session *session, bool fixed, int32_t n_min) {
    *p = (tn__policy){.session = session, .fixed = fixed, .n_min = n_min, .pause = PAUSE_FIRST};
    for (int i = 0; i < TN__CONFIDENCES; i++) {
        p->tried[i] = PRIOR;
        p->right[i] = PRIOR * ((float)i + 0.5f) / TN__CONFIDENCES;
    }
}

static int confidence_of(float prob) {
    const int i = (int)(prob * TN__CONFIDENCES);
    return i < 0 ? 0 : i >= TN__CONFIDENCES ? TN__CONFIDENCES - 1 : i;
}

static float corrected(const tn__policy *p, float prob) {
    const int i = confidence_of(prob);
    return p->right[i] / p->tried[i];
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

void tn__policy_round(tn__policy *p, bool asked, int32_t n_tokens, uint64_t ns) {
    static const double fading = 0.98, prompt = 8; /* a prompt was decoded meanwhile */
    double *tokens = &p->rounds[asked].tokens, *time = &p->rounds[asked].ns;
    if (n_tokens < 1 || (*tokens > 0 && (double)ns > prompt * n_tokens * *time / *tokens)) return;
    *tokens = fading * *tokens + n_tokens;
    *time = fading * *time + (double)ns;
}

/* Rounds with the proposer are slower than those without, whatever was predicted. */
static bool rounds_lose(const tn__policy *p) {
    enum { LEAST = 24 }; /* tokens */
    if (p->rounds[0].tokens < LEAST || p->rounds[1].tokens < LEAST) return false;
    return p->rounds[1].tokens * p->rounds[0].ns < p->rounds[0].tokens * p->rounds[1].ns;
}

bool tn__policy_asks(tn__policy *p, int32_t n) {
    if (p->fixed) return true;
    if (rounds_lose(p)) {
        p->wait = PAUSE_LONGEST;
        p->rounds[1].tokens = p->rounds[1].ns = 0; /* another trial then */
    }
    if (tn__policy_step_ns(p, n) <= 0) return false; /* a plain step is measured first */
    if (p->wait <= 0) return true;
    p->resumed = --p->wait == 0; /* a draft then has to catch up on the text */
    return false;
}

double tn__policy_guess_ns(const tn__policy *p) { return p->guessing.ns; }

/* The time that a further token takes to guess and to check, relative to that of a plain step. */
float tn__policy_least(const tn__policy *p, int32_t n) {
    enum { FROM = 2, TO = 6 };
    const double plain = tn__policy_step_ns(p, n);
    if (p->fixed || plain <= 0) return 0;
    const double row = (tn__policy_step_ns(p, TO * n) - tn__policy_step_ns(p, FROM * n)) / ((TO - FROM) * (double)n);
    return (float)TN__MIN((TN__MAX(row, 0) + tn__policy_guess_ns(p)) * (double)n / plain, 0.9);
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
    const double rate = (double)n / plain, guessing = costly ? tn__policy_guess_ns(p) * (double)n : 0;
    double most = rate * MARGIN;
    for (int32_t length = 1; length <= longest; length++) {
        const double tokens = expect_tokens(p, guesses, n, length, &rows);
        const double found = tokens / (tn__policy_step_ns(p, rows) + guessing * (double)length);
        if (found <= most) continue;
        most = found;
        best = length;
    }
    if (best) {
        p->pause = PAUSE_FIRST;
        p->unprobed = 0;
        cut_guesses(guesses, n, best);
        return;
    }
    if (++p->unprobed >= (costly ? 2 : PROBE_EVERY)) { /* what was learned may be out of date */
        p->unprobed = 0;
        cut_guesses(guesses, n, PROBE_TOKENS);
        return;
    }
    cut_guesses(guesses, n, 0);
    p->wait = p->pause;
    p->pause = TN__MIN(2 * p->pause, PAUSE_LONGEST);
}

void tn__policy_learn(tn__policy *p, const tn_guess *guess, int32_t n_accepted) {
    bool right[1 + TN_GUESS_MOST] = {true};
    for (int32_t i = guess->at; guess->tree && i >= 0; i = guess->parents[i]) right[1 + i] = true;
    for (int32_t i = 0; !guess->tree && i < n_accepted; i++) right[1 + i] = true;
    for (int32_t i = 0; i < guess->n; i++) {
        if (!right[1 + (guess->tree ? guess->parents[i] : i - 1)]) continue; /* not reached */
        const int k = confidence_of(guess->probs[i]);
        p->tried[k] = p->tried[k] * FADING + 1;
        p->right[k] = p->right[k] * FADING + (right[1 + i] ? 1.0f : 0.0f);
    }
}

void tn__policy_guessed(tn__policy *p, int32_t n_tokens, uint64_t ns) {
    if (n_tokens > 0 && !p->resumed) tn__step_time_add(&p->guessing, (double)ns / n_tokens);
    p->resumed = false;
}
