/* --budget: the options, the search for parameters that fit, and the list of choices as text and JSON. */
#ifndef TENON_TOOL_BUDGET_OPTIONS_H
#define TENON_TOOL_BUDGET_OPTIONS_H

#include "cli/cli.h"

#include "tenon/budget.h"

#include <jansson.h>

/* Rows of the table of model options. */
#define OPTIONS_BUDGET                                                                                               \
    {.name = "budget",                                                                                               \
     .value = "DEVICE=SIZE",                                                                                         \
     .kind = OPTION_TEXT,                                                                                            \
     .repeats = true,                                                                                                \
     .help = "max memory per device, e.g. cuda0=8G,cpu=4G; micro-batch, cache types, layers and experts are chosen " \
             "so that it fits"},                                                                                     \
        {.name = "prefer",                                                                                           \
         .value = "WHAT",                                                                                            \
         .kind = OPTION_TEXT,                                                                                        \
         .fallback = "speed",                                                                                        \
         .choices = "speed context quality",                                                                         \
         .help = "with --budget: the fastest decode, the longest context, or no cache type below q8_0"},             \
    {                                                                                                                \
        .name = "budget-cache", .value = "TYPES", .kind = OPTION_TEXT, .fallback = "f16,q8_0,q4_0",                  \
        .help = "with --budget: cache types that may be chosen; --cache-type-k and -v set one"                       \
    }

/* Budgets for the session parameters, from the options. Returns an exit code. */
int read_budgets(const struct args *args, tn_session_params *params);
/* How to search, from the options. Returns an exit code. */
int budget_params_from(const struct args *args, tn_budget_params *budget);
/* The context to plan for where it is left open. */
int32_t budget_context(const tn_budget_params *budget, int32_t trained);
struct budget_search_options {
    bool frontier; /* for pictures: see tn_budget_params */
    bool measure; /* devices that were never measured; otherwise their rates are assumed and the ladder's note says so
                   */
};
/* Searches with a progress bar. params has budgets. Returns an exit code. Not for programs with several threads that
 * predict: rates are assumed for the whole process meanwhile. */
int plan_to_budget(const struct args *args, tn_model *model, const tn_session_params *params,
                   struct budget_search_options how, tn_session_plan **plan, tn_budget_ladder *ladder);

/* Warns of budgets above a device's memory, of devices that are not measured and of a context that was shortened. */
void print_budget_notes(const tn_budget_ladder *ladder);
/* One line about the chosen combination, such as "micro-batch 512, cache f16/f16, 28 of 33 layers off the host". */
void describe_choice(const tn_budget_choice *choice, char *text, size_t size);
void print_ladder(const tn_budget_ladder *ladder, FILE *out);
json_t *ladder_json(const tn_budget_ladder *ladder);
/* A point of the picture beside the choices. */
struct frontier_mark {
    double bytes, decode; /* of the first device; tokens per second */
    const char *text;     /* a short label */
};
/* Memory of the first device against predicted decode rate, as SVG; nothing where no speed is predicted. `mark` may
 * be NULL. */
void draw_frontier(const tn_budget_ladder *ladder, const struct frontier_mark *mark, FILE *out);

#endif
