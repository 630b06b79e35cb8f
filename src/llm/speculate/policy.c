/* The length of guesses, from acceptance rates and from the measured time of batches.
 *
 * A step of r rows takes T(r), measured by the session. A guess whose tokens are accepted with the probabilities p1,
 * p2, … yields 1 + p1 + p1 p2 + … tokens. The length with the highest expected tokens per second is chosen; a costly
 * proposer guesses another token only if that increases the expected tokens per second.
 *
 * The confidence of proposers is calibrated by observed acceptance: a draft with a confidence of 0.3 may well be
 * right in nine of ten cases if the larger model takes its argmax.
 *
 * Predictions can be wrong, so the accumulated difference between the time of rounds with guesses and that of plain
 * steps for the same tokens bounds the loss: a few steps, plus a fixed share of the time after that. These times are
 * measured from one proposal to the next, so that what guesses cost beside guessing and decoding counts as well. */
#include "llm/speculate/proposer.h"

#include "base/checked.h"

#include <math.h>

enum {
    PROBE_EVERY = 32,  /* one in this many guesses that do not seem to pay off is verified anyway */
    PROBE_TOKENS = 2,  /* its length */
    PLAIN_EVERY = 256, /* steps after which plain steps are measured again */
    PLAIN_STEPS = 4,   /* their number */
};
/* Required gain over plain steps for guesses that cost no time, because predictions are not exact. */
static const double MARGIN = 1.05;
/* Assumed time of an additional row, relative to a step, where nothing was measured. Optimistic, so that it gets
 * measured. */
static const double UNKNOWN_ROW = 0.02;
/* Factor for row counts between two measured ones, optimistic for the same reason. */
static const double UNTRIED = 0.9;
/* Guessing pauses once its loss exceeds the time of MOST_LOST plain steps, shared by the sequences, until the loss is
 * half of that. Each plain step reduces the loss by the share REGAINED of its time. A round of many sequences is more
 * informative. */
static const double MOST_LOST = 6, LEAST_LOST = 1, REGAINED = 0.01;
/* A round counts as so many times its usual time at most. The usual time of a rare number of rows is that of its
 * fastest steps: a narrow limit would hide what guesses cost. */
static const double LONGEST = 1.25;

void tn__policy_begin(tn__policy *p, const tn_session *session, bool fixed, int32_t n_min) {
    *p = (tn__policy){.session = session, .fixed = fixed, .n_min = n_min, .mean = 1};
    p->calibration[0].slope = p->calibration[1].slope = 1;
}

static float log_odds(float prob) {
    static const float least = 0.02f;
    const float within = TN__MAX(TN__MIN(prob, 1 - least), least);
    return logf(within / (1 - within));
}

/* The acceptance rate of tokens with this confidence, after calibration. Alternatives are calibrated apart: a draft's
 * first choice of 0.3 is usually right, its second of 0.3 hardly ever. */
static float calibrated(const tn__policy *p, float prob, bool alternative) {
    const tn__calibration *c = &p->calibration[alternative];
    return 1 / (1 + expf(-(c->shift + c->slope * log_odds(prob))));
}

float tn__guess_sure(const tn__guess_limit *limit, float prob, bool alternative) {
    return limit->policy->fixed ? prob : calibrated(limit->policy, prob, alternative);
}

static void correct(tn__policy *p, float prob, bool alternative, bool right) {
    static const float shift_rate = 0.2f, slope_rate = 0.1f, mean_rate = 0.05f, steepest = 2;
    tn__calibration *c = &p->calibration[alternative];
    const float error = (right ? 1.0f : 0.0f) - calibrated(p, prob, alternative);
    c->shift += shift_rate * error;
    c->slope = TN__MAX(TN__MIN(c->slope + slope_rate * error * log_odds(prob), steepest), 0);
    if (!alternative) p->mean += mean_rate * ((right ? 1.0f : 0.0f) - p->mean);
}

/* An optimistic estimate for row counts that were measured long ago or only a few times, so that they are tried
 * again. */
static double optimistic_time(const tn__policy *p, int32_t rows) {
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
    if (below == rows) return optimistic_time(p, rows);
    if (!below) return has_above ? optimistic_time(p, above) : 0;
    const double further = (double)(rows - below), time = optimistic_time(p, below);
    if (!has_above) return time * (1 + UNKNOWN_ROW * further);
    const double slope = (optimistic_time(p, above) - time) / (double)(above - below);
    return (time + TN__MAX(slope, 0) * further) * UNTRIED;
}

/* ---- Whether to guess ---- */

/* The time of a plain round, 0 while it is unknown. */
static double plain_round(const tn__policy *p, int32_t n_seqs) {
    return p->rounds[n_seqs].ns > 0 ? p->rounds[n_seqs].ns : p->session->steps[n_seqs].ns;
}

/* What a round takes beside guessing and decoding. */
static double beside(const tn__policy *p, int32_t n_seqs, bool guessed) { return p->beside[guessed].ns * n_seqs; }

static void add_loss(tn__policy *p, double lost, double plain, int32_t n_seqs) {
    const double most = TN__MAX(MOST_LOST / n_seqs, LEAST_LOST) * plain;
    p->lost = TN__MAX(p->lost + lost, 0);
    if (p->lost > most) p->paused = true;
    if (p->lost < most / 2) p->paused = false;
}

void tn__policy_round(tn__policy *p, const tn__round *r) {
    static const double fading = 0.95;
    if (r->n_seqs < 1 || r->n_tokens < r->n_seqs || r->n_seqs >= TN__STEP_ROWS) return;
    const bool guessed = r->n_drafted + r->n_guessed > 0;
    if (!guessed) tn__step_time_add(&p->rounds[r->n_seqs], r->ns);
    tn__step_time_add(&p->beside[guessed], TN__MAX(r->ns - r->guess_ns - r->step_ns, 0) / r->n_seqs);
    const double plain = plain_round(p, r->n_seqs);
    if (plain <= 0) return;
    const double usual = tn__policy_step_ns(p, r->n_seqs + r->n_guessed) + tn__policy_guess_ns(p) * r->n_drafted +
                         beside(p, r->n_seqs, guessed);
    /* After a pause a draft model first has to process the text of the pause: that is no disturbance. */
    const bool catches_up = p->resumed && r->n_drafted && !r->built;
    const double same = plain * r->n_tokens / r->n_seqs,
                 took = catches_up ? r->ns : tn__undisturbed(r->ns, usual, LONGEST);
    add_loss(p, guessed ? took - same : -REGAINED * took, plain, r->n_seqs);
    if (!guessed) return;
    p->made.tokens = fading * p->made.tokens + r->n_tokens;
    p->made.ns = fading * p->made.ns + took;
}

void tn__policy_other_round(tn__policy *p, const tn__round *r) {
    if (r->n_seqs < 1 || r->n_tokens < r->n_seqs || r->n_seqs >= TN__STEP_ROWS || !r->n_drafted || r->built) return;
    const double plain = plain_round(p, r->n_seqs);
    if (plain > 0) add_loss(p, r->guess_ns - plain * (r->n_tokens - r->n_seqs) / r->n_seqs, plain, r->n_seqs);
}

bool tn__policy_guesses(tn__policy *p, int32_t n) {
    if (p->fixed) return true;
    const tn__step_time *plain = &p->session->steps[TN__MIN(n, TN__STEP_ROWS - 1)];
    if (p->plain > 0)
        p->plain--;
    else if (plain->ns > 0 && p->session->n_steps > plain->seen + PLAIN_EVERY)
        p->plain = PLAIN_STEPS;
    const bool guesses = !p->paused && !p->plain && tn__policy_step_ns(p, n) > 0; /* a plain step is measured first */
    p->resumed = guesses && !p->guessed; /* a draft then has to process the missed text */
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
    /* The cost of verifying and of guessing another token, in tokens that could be generated in that time without it.
     */
    const double row = (tn__policy_step_ns(p, TO * n) - tn__policy_step_ns(p, FROM * n)) / ((TO - FROM) * (double)n);
    const double rate =
        TN__MAX((double)n / (plain + beside(p, n, false)), p->made.ns > 0 ? p->made.tokens / p->made.ns : 0);
    limit.check = (float)TN__MIN(TN__MAX(row, 0) * rate, 0.9);
    limit.guess = (float)(tn__policy_guess_ns(p) * rate);
    return limit;
}

bool tn__guess_keeps(const tn__guess_limit *limit, int32_t n_guessed, float prob, float *all) {
    if (prob < limit->p_min) return false;
    *all *= tn__guess_sure(limit, prob, false);
    return !n_guessed || *all >= limit->check;
}

bool tn__guess_goes_on(const tn__guess_limit *limit, float all) {
    if (!limit->policy->fixed && limit->policy->guessing.ns <= 0)
        return false; /* until it is measured, guesses are short */
    return all * limit->policy->mean >= limit->check + limit->guess;
}

/* The expected tokens if each guess has at most `length`, and the rows of that batch. */
static double expect_tokens(const tn__policy *p, const tn_guess *guesses, int32_t n, int32_t length, int32_t *rows) {
    double tokens = n;
    *rows = n;
    for (int32_t i = 0; i < n; i++) {
        double all[1 + TN_GUESS_MOST] = {1}; /* the sampled token is right */
        for (int32_t k = 0; k < TN__MIN(guesses[i].n, length); k++) {
            const int32_t parent = guesses[i].tree ? guesses[i].parents[k] : k - 1;
            all[1 + k] = all[1 + parent] * calibrated(p, guesses[i].probs[k], tn__guess_is_other(&guesses[i], k));
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
    /* The time of guessing is already spent; the first token is always verified, to learn from it. */
    const double spent = costly ? tn__policy_guess_ns(p) * (double)drafted : 0;
    const double other = beside(p, n, true);
    double most = (double)n / (plain + beside(p, n, false) + spent) * (costly ? 0 : MARGIN);
    for (int32_t length = 1; length <= longest; length++) {
        const double tokens = expect_tokens(p, guesses, n, length, &rows);
        const double found = tokens / (tn__policy_step_ns(p, rows) + spent + other);
        if (found <= most) continue;
        most = found;
        best = length;
    }
    if (!best && ++p->unprobed >= PROBE_EVERY) best = PROBE_TOKENS; /* acceptance rates may be out of date */
    if (best) p->unprobed = 0;
    cut_guesses(guesses, n, best);
}

void tn__policy_learn(tn__policy *p, const tn_guess *guess, int32_t n_accepted) {
    bool right[1 + TN_GUESS_MOST] = {true};
    for (int32_t i = guess->at; guess->tree && i >= 0; i = guess->parents[i]) right[1 + i] = true;
    for (int32_t i = 0; !guess->tree && i < n_accepted; i++) right[1 + i] = true;
    for (int32_t i = 0; i < guess->n; i++) {
        if (!right[1 + (guess->tree ? guess->parents[i] : i - 1)]) continue; /* not reached */
        correct(p, guess->probs[i], tn__guess_is_other(guess, i), right[1 + i]);
    }
}

void tn__policy_guessed(tn__policy *p, int32_t n_tokens, uint64_t ns) {
    if (n_tokens > 0 && !p->resumed) tn__step_time_add(&p->guessing, (double)ns / n_tokens);
}
