/* What speculative decoding adds to a plan: the draft model's bytes, the rows of guesses, and the predicted speed. */
#include "cli/term.h"
#include "speculate/speculation.h"

#include <math.h>

/* Predicted seconds of a step with so many rows; 0: the devices are not measured. */
static double step_seconds(tn_model *model, const tn_session_params *params, int32_t rows) {
    tn_session_params p = *params;
    tn_session_plan *plan = NULL;
    tn_session_speed speed = {0};
    p.n_seqs = rows;
    p.n_guess = 0;
    p.n_outputs = 0;
    if (tn_session_plan_new(model, &p, &plan) != TN_OK) return 0;
    const tn_session_speed_params at = {.depth = 512, .generate = 128};
    const double seconds =
        tn_session_plan_predict(plan, &at, &speed) == TN_OK && speed.decode > 0 ? rows / speed.decode : 0;
    tn_session_plan_free(plan);
    return seconds;
}

/* Tokens per second of one sequence if a guessed token is right with this probability, for the best length. */
static double best_speed(double share, const double *steps, int32_t n_max, double guessing, int32_t *length) {
    double best = 0;
    for (int32_t k = 0; k <= n_max; k++) {
        const double tokens = share < 1 ? (1 - pow(share, k + 1)) / (1 - share) : k + 1;
        const double speed = tokens / (steps[k] + k * guessing);
        if (speed <= best) continue;
        best = speed;
        *length = k;
    }
    return best;
}

static void print_speeds(tn_model *model, tn_model *draft, const tn_session_params *params,
                         const tn_session_params *draft_params, FILE *out) {
    double steps[TN_GUESS_MOST + 1] = {0};
    const int32_t n_max = params->n_guess < 15 ? params->n_guess : 15;
    for (int32_t k = 0; k <= n_max; k++)
        if ((steps[k] = step_seconds(model, params, 1 + k)) <= 0) return;
    const double guessing = draft ? step_seconds(draft, draft_params, 1) : 0;
    fprintf(out, "Predicted for one sequence, by the share of guesses that are right:");
    for (int percent = 50; percent <= 90; percent += 20) {
        int32_t length = 0;
        const double speed = best_speed(percent / 100.0, steps, n_max, guessing, &length);
        fprintf(out, "%s %d%%: %.0f t/s (%.2f×, %d tokens)", percent > 50 ? "," : "", percent, speed,
                speed * steps[0], length);
    }
    fprintf(out, ".\n");
}

int speculation_print_plan(const struct args *args, tn_model *model, const tn_session_params *params, FILE *out) {
    tn_spec_params spec;
    tn_session_params p = {0};
    tn_model *draft = NULL;
    tn_session_plan *plan = NULL;
    tn_fit fit = {0};
    char text[HUMAN_SIZE];
    size_t bytes = 0;
    int code = speculation_read(args, &spec);
    if (code || spec.kind == TN_SPEC_NONE) return code;
    tn_status status = TN_OK;
    if (speculation_has_draft(spec.kind)) {
        const char *path = args_text(args, "model-draft");
        speculation_draft_params(args, params, &p);
        const tn_model_params how = {.head = spec.kind == TN_SPEC_MTP,
                                     .target = spec.kind == TN_SPEC_EAGLE3 ? model : NULL};
        status = tn_model_open(path ? path : tn_gguf_path(tn_model_file(model)), &how, &draft);
        if (status == TN_OK) status = tn_session_plan_new(draft, &p, &plan);
        if (status == TN_OK) status = tn_session_plan_fit(plan, &fit);
        for (size_t i = 0; i < fit.n_devices; i++) {
            const tn_fit_device *d = &fit.devices[i];
            bytes = d->weights + d->cache + d->compute + d->scratch + d->staging + d->own;
            if (bytes || d->mapped)
                fprintf(out, "Guesses (%s) on %s: %s (%zu bytes) beside the model%s.\n", tn_spec_kind_name(spec.kind),
                        d->name, human_bytes(text, bytes), bytes, fit.fits ? "" : ", which does not fit");
        }
    } else {
        bytes = tn_spec_params_bytes(params, &spec);
        fprintf(out, "Guesses (%s): %s (%zu bytes) beside the model.\n", tn_spec_kind_name(spec.kind),
                human_bytes(text, bytes), bytes);
    }
    if (status == TN_OK) print_speeds(model, spec.kind == TN_SPEC_DRAFT ? draft : NULL, params, &p, out);
    tn_fit_free(&fit);
    tn_session_plan_free(plan);
    tn_model_close(draft);
    return status == TN_OK ? EXIT_OK : fail_status(status, "the draft model");
}
