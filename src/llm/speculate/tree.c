/* Trees of guesses: their shape, and the alternatives to the tokens of a path. */
#include "llm/speculate/proposer.h"

#include "base/checked.h"

bool tn__guess_is_other(const tn_guess *g, int32_t i) {
    for (int32_t k = 0; g->tree && k < i; k++)
        if (g->parents[k] == g->parents[i]) return true;
    return false;
}

void tn__add_alternatives(const tn__guess_limit *limit, const tn__alternatives *others, tn_guess *g, int32_t most) {
    const tn_guess line = *g;
    int32_t of_line = 0, n_other = 0, index[1 + TN_GUESS_MOST] = {-1};
    float all[1 + TN_GUESS_MOST] = {1};
    bool taken[TN_GUESS_MOST] = {false};
    float reached[TN_GUESS_MOST] = {0}; /* that the alternative to token k is right */
    for (int32_t k = 0; k < line.n; k++) {
        all[1 + k] = all[k] * tn__guess_sure(limit, line.probs[k], false);
        reached[k] = all[k] * tn__guess_sure(limit, others->probs[k], true);
    }
    for (g->n = 0; g->n < g->room; g->n++) {
        int32_t best = -1;
        for (int32_t k = 0; k <= of_line && k < line.n && n_other < most; k++)
            if (!taken[k] && others->tokens[k] >= 0 && (best < 0 || reached[k] > reached[best])) best = k;
        const bool extends = of_line < line.n && (best < 0 || all[of_line + 1] >= reached[best]);
        if (!extends && best < 0) break;
        const int32_t k = extends ? of_line : best;
        g->guess[g->n] = extends ? line.guess[k] : others->tokens[k];
        g->probs[g->n] = extends ? line.probs[k] : others->probs[k];
        g->parents[g->n] = index[k];
        if (extends) {
            index[++of_line] = g->n;
        } else {
            taken[k] = true;
            n_other++;
        }
    }
    g->tree = true;
}
