/* How long guesses are, on a clock of the test: machines are given by the time of their steps, proposers by how often
 * they are right, and what the rule makes of both is compared with the best fixed length. */
#include "support.h"

#include "base/checked.h"
#include "llm/speculate/proposer.h"

#include <math.h>
#include <string.h>

enum { MOST = 7, SEQS_MOST = 32 };

typedef struct world {
    double plain, row, token; /* microseconds: T(r) = plain + row (r - 1); of a guessed token */
    double agrees, follows;   /* the log odds that a token is right are agrees + follows * those of its confidence */
    double noise;             /* of times, relative */
    double beside;            /* microseconds of a sequence in rounds with guesses, beside guessing and decoding */
    double change;            /* not 0: `agrees` from half of the text on */
    double wide;              /* microseconds that steps of several rows take more */
    double capture;           /* microseconds that the second step of a size takes more: its launches are captured */
} world;

static double odds(double p) { return log(p / (1 - p)); }

/* Sure of 0.15 to 0.99. */
static float draw_confidence(rng *r) { return (float)(0.15 + 0.84 * rng_unit(r)); }

static bool is_right(const world *w, rng *r, float confidence) {
    return rng_unit(r) < 1 / (1 + exp(-(w->agrees + w->follows * odds((double)confidence))));
}

/* One step in 200 is disturbed by other work. */
static double spend(const world *w, rng *r, double usual) {
    const double spread = 1 + w->noise * (rng_unit(r) - 0.5);
    return usual * spread * (w->noise > 0 && rng_below(r, 200) == 0 ? 10 : 1);
}

static double step_time(const world *w, int32_t rows) {
    return w->plain + w->row * (rows - 1) + (rows > 1 ? w->wide : 0);
}

typedef struct outcome {
    double per_token; /* microseconds */
    double per_step;
    double slowest; /* of the times that were measured for steps, relative to what they take */
} outcome;

/* `length`: of all guesses; -1: the policy chooses. */
static outcome play(const world *w, int32_t n, int32_t length, int32_t n_rounds, uint64_t seed) {
    static tn_session session;
    rng r = {seed};
    memset(&session, 0, sizeof session);
    tn__policy p;
    tn__policy_begin(&p, &session, length >= 0, 0);
    double all_time = 0, all_tokens = 0;
    for (int32_t round = 0; round < n_rounds; round++) {
        world now = *w;
        if (w->change != 0 && round > n_rounds / 2) now.agrees = w->change;
        tn_guess guesses[SEQS_MOST];
        int32_t right[SEQS_MOST] = {0}, drafted = 0, rows = n, tokens = n;
        double guess_time = 0;
        memset(guesses, 0, sizeof guesses);
        const bool asks = length != 0 && tn__policy_guesses(&p, n);
        const tn__guess_limit limit = tn__policy_limit(&p, n, 0);
        for (int32_t i = 0; i < n && asks; i++) {
            tn_guess *g = &guesses[i];
            float all = 1;
            bool is_still_right = true;
            for (; g->n < (length > 0 ? length : MOST); g->n++, drafted++) {
                const float confidence = draw_confidence(&r);
                guess_time += spend(&now, &r, now.token);
                if (!tn__guess_keeps(&limit, g->n, confidence, &all)) break;
                g->probs[g->n] = confidence;
                is_still_right = is_still_right && is_right(&now, &r, confidence);
                right[i] += is_still_right;
                if (now.token > 0 && !tn__guess_goes_on(&limit, all)) {
                    g->n++, drafted++;
                    break;
                }
            }
        }
        if (asks) {
            if (now.token > 0) tn__policy_guessed(&p, drafted, (uint64_t)(1e3 * guess_time));
            tn__policy_cut(&p, guesses, n, now.token > 0);
        }
        for (int32_t i = 0; i < n; i++) {
            const int32_t accepted = TN__MIN(right[i], guesses[i].n);
            rows += guesses[i].n;
            tokens += accepted;
            if (guesses[i].n) tn__policy_learn(&p, &guesses[i], accepted);
        }
        double took = spend(&now, &r, step_time(&now, rows));
        if (session.steps[rows].n == 1) took += now.capture;
        const double beside = rows > n ? spend(&now, &r, now.beside) * n : 0;
        tn__step_time_add(&session.steps[rows], 1e3 * took);
        session.steps[rows].seen = ++session.n_steps;
        const tn__round done = {.n_seqs = n,
                                .n_drafted = now.token > 0 ? drafted : 0,
                                .n_guessed = rows - n,
                                .n_tokens = tokens,
                                .guess_ns = 1e3 * guess_time,
                                .step_ns = 1e3 * took,
                                .ns = 1e3 * (took + guess_time + beside)};
        if (tn__step_is_typical(&session.steps[rows]))
            tn__policy_round(&p, &done);
        else
            tn__policy_other_round(&p, &done);
        all_time += took + guess_time + beside;
        all_tokens += tokens;
    }
    double slowest = 0;
    for (int32_t rows = 1; rows < TN__STEP_ROWS; rows++)
        slowest = fmax(slowest, session.steps[rows].ns / 1e3 / step_time(w, rows));
    return (outcome){all_time / all_tokens * n, all_tokens / n_rounds / n, slowest};
}

enum { ROUNDS = 3000, SEEDS = 4 };

/* Microseconds per token. */
static double mean_time(const world *w, int32_t n, int32_t length) {
    double time = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) time += play(w, n, length, ROUNDS, seed).per_token / SEEDS;
    return time;
}

typedef struct named_world {
    const char *name;
    world w;
} named_world;

/* `least`: of the speed of the best fixed length. */
static void check_world(const named_world *named, int32_t n, double least) {
    double best = INFINITY;
    for (int32_t length = 0; length <= MOST; length++) best = fmin(best, mean_time(&named->w, n, length));
    const double time = mean_time(&named->w, n, -1);
    if (best / time < least)
        print_error("%s, %d sequences: %.1f us per token, the best fixed length %.1f\n", named->name, n, time, best);
    assert_true(best / time >= least);
}

static void guesses_that_pay_are_as_long_as_the_best(void **state) {
    static const named_world worlds[] = {
        /* Two threads and the story model; confidence says little about the argmax of the larger model. */
        {"draft", {.plain = 125, .row = 29, .token = 31, .agrees = 2.5, .follows = 0.6, .noise = 0.2}},
        {"further layer", {.plain = 125, .row = 29, .token = 24, .agrees = 2.5, .follows = 0.6, .noise = 0.2}},
        {"n-grams", {.plain = 125, .row = 29, .agrees = 1.5, .follows = 0.8, .noise = 0.2}},
        {"rows for nothing",
         {.plain = 20000, .row = 200, .token = 1000, .agrees = 1.5, .follows = 0.8, .noise = 0.1}},
        {"on a quiet machine", {.plain = 125, .row = 29, .token = 31, .agrees = 2.5, .follows = 0.6}},
    };
    (void)state;
    for (size_t i = 0; i < TN__COUNT(worlds); i++) check_world(&worlds[i], 1, 0.95);
}

static void guesses_that_do_not_pay_cost_little(void **state) {
    static const named_world worlds[] = {
        {"another text", {.plain = 125, .row = 29, .token = 31, .agrees = -1, .follows = 0.4, .noise = 0.2}},
        {"never right", {.plain = 125, .row = 29, .token = 31, .agrees = -4, .follows = 0.4, .noise = 0.2}},
        {"right and slow", {.plain = 125, .row = 29, .token = 125, .agrees = 2.5, .follows = 0.6, .noise = 0.2}},
        {"wide steps are slow", {.plain = 125, .row = 120, .token = 31, .agrees = 2.5, .follows = 0.6, .noise = 0.2}},
        {"n-grams by chance", {.plain = 125, .row = 29, .agrees = -3, .follows = 0.8, .noise = 0.2}},
    };
    (void)state;
    for (size_t i = 0; i < TN__COUNT(worlds); i++)
        for (int32_t n = 1; n <= SEQS_MOST; n *= SEQS_MOST) check_world(&worlds[i], n, 0.97);
}

/* Rolling back takes so long that guesses of many sequences do not pay, although their steps do. */
static void costs_beside_decoding_count(void **state) {
    static const named_world worlds[] = {
        {"a draft",
         {.plain = 1000, .row = 20, .token = 5, .beside = 40, .agrees = 1.5, .follows = 0.6, .noise = 0.2}},
        {"n-grams", {.plain = 1000, .row = 20, .beside = 50, .agrees = 1.5, .follows = 0.6, .noise = 0.2}},
    };
    (void)state;
    for (size_t i = 0; i < TN__COUNT(worlds); i++) check_world(&worlds[i], SEQS_MOST, 0.97);
}

/* A GPU, where the first steps of a size are slow: no time is learnt from these, and texts of a few hundred tokens
 * are long enough for guesses to pay. */
static void capturing_launches_is_not_measured(void **state) {
    static const world gpu = {
        .plain = 1750, .wide = 1300, .row = 15, .agrees = 0.85, .noise = 0.05, .beside = 20, .capture = 9000};
    double plain = 0, chosen = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        assert_true(play(&gpu, 1, -1, 40, seed).slowest < 1.3); /* of some sizes there were two steps */
        chosen += play(&gpu, 1, -1, 200, seed).per_token;
        plain += play(&gpu, 1, 0, 200, seed).per_token;
    }
    assert_true(chosen < plain / 1.3);
}

/* The draft agrees with one half of the text only: about four tokens per step there, one in the other. */
static void a_change_of_the_text_is_noticed(void **state) {
    (void)state;
    static const double good = 2.5, bad = -4;
    world w = {.plain = 125, .row = 29, .token = 31, .follows = 0.6, .noise = 0.2};
    for (int k = 0; k < 2; k++) {
        w.agrees = k ? bad : good;
        w.change = k ? good : bad;
        double per_step = 0;
        for (uint64_t seed = 1; seed <= SEEDS; seed++) {
            const outcome chosen = play(&w, 1, -1, 8000, seed);
            per_step += chosen.per_step / SEEDS;
            assert_true(chosen.per_token < play(&w, 1, 0, 8000, seed).per_token);
        }
        assert_true(per_step > 2.2);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_that_pay_are_as_long_as_the_best),
        cmocka_unit_test(guesses_that_do_not_pay_cost_little),
        cmocka_unit_test(costs_beside_decoding_count),
        cmocka_unit_test(capturing_launches_is_not_measured),
        cmocka_unit_test(a_change_of_the_text_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
