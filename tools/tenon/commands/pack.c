/* tenon pack: find offsets for items with known lifetimes, from a table. */
#include "tenon/pack.h"
#include "cli/cli.h"
#include "cli/term.h"
#include "cli/text_input.h"
#include "files/output_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_INFEASIBLE = 2, EXIT_UNDECIDED = 3 };

static void print_pack_summary(const tn_pack_result *r, double seconds) {
    char time[HUMAN_SIZE];
    fprintf(stderr, "size         %zu bytes", r->size);
    if (r->chunk_count > 1) fprintf(stderr, " in %zu chunks", r->chunk_count);
    fprintf(
        stderr,
        "\nlower bound  %zu bytes\nratio        %.6f\noptimal      %s\nsteps        %llu\ntime         %s (%.6f s)\n",
        r->lower_bound, r->ratio, r->optimal ? "yes" : "not proven", (unsigned long long)r->steps,
        human_seconds(time, seconds), seconds);
}

static int print_conflict(const tn_pack_table *t, const tn_pack_result *r, uint64_t capacity) {
    fail("infeasible: %s", tn_error());
    fprintf(stderr, "lower bound  %zu bytes, %zu over the capacity\nthese items cannot fit together:\n",
            r->lower_bound, (size_t)(r->lower_bound - capacity));
    for (size_t k = 0; k < r->conflict_count; k++) {
        const tn_pack_item *item = &t->items[r->conflict[k]];
        fprintf(stderr, "  id %s: [%lld, %lld) size %zu\n", t->ids[r->conflict[k]], (long long)item->start,
                (long long)item->end, item->size);
    }
    return EXIT_INFEASIBLE;
}

static int write_pack_svg(const struct args *args, const char *path, const char *text) {
    struct output_file to;
    int code = output_open(&to, path, args_flag(args, "force"), args->values, 1);
    if (code) return code;
    FILE *file = fopen(to.path, "w");
    if (!file) return fail("cannot write %s: %s", path, strerror(errno));
    bool written = fputs(text, file) >= 0;
    if (fclose(file) == 0 && written) return output_close(&to, true);
    code = fail("cannot write %s: %s", path, strerror(errno));
    output_close(&to, false);
    return code;
}

static int write_results(const struct args *args, const tn_pack_table *t, const tn_pack_result *r) {
    char *text;
    const char *const *ids = (const char *const *)t->ids;
    tn_status status = tn_pack_print_csv(t->items, ids, r, &text);
    if (status != TN_OK) return fail_status(status, "pack");
    fputs(text, stdout);
    tn_free(text);
    const char *path = args_text(args, "svg");
    if (!path) return EXIT_OK;
    const char *slash = strrchr(args->values[0], '/');
    status = tn_pack_svg(t->items, ids, r, slash ? slash + 1 : args->values[0], &text);
    if (status != TN_OK) return fail_status(status, "pack");
    int code = write_pack_svg(args, path, text);
    tn_free(text);
    return code;
}

static int run_pack(const struct args *args) {
    const char *path = args->values[0], *effort = args_text(args, "effort");
    char *text;
    size_t length;
    int code = strcmp(path, "-") == 0 ? read_input(&text, &length) : read_text_file(path, &text, &length);
    if (code) return code;
    tn_pack_table table;
    tn_status status = tn_pack_table_parse(text, length, &table);
    free(text);
    if (status != TN_OK) return fail_status(status, "%s", path);
    tn_pack_params params = {.capacity = args_size(args, "capacity"),
                             .max_chunk = args_size(args, "max-chunk"),
                             .time_limit = args_real(args, "time-limit"),
                             .max_steps = (uint64_t)args_int(args, "steps"),
                             .cancel = interrupted_callback};
    params.effort = strcmp(effort, "fast") == 0    ? TN_PACK_FAST
                    : strcmp(effort, "exact") == 0 ? TN_PACK_EXACT
                                                   : TN_PACK_BALANCED;
    tn_pack_result result;
    uint64_t begun = tn_time_ns();
    status = tn_pack(table.items, table.count, &params, &result);
    double seconds = (double)(tn_time_ns() - begun) * 1e-9;
    if (status == TN_E_INFEASIBLE) {
        code = print_conflict(&table, &result, params.capacity);
    } else if (status == TN_E_UNDECIDED) {
        fail("undecided: %s", tn_error());
        print_pack_summary(&result, seconds);
        code = EXIT_UNDECIDED;
    } else if (status != TN_OK) {
        code = fail_status(status, "%s", path);
    } else {
        status = tn_pack_verify(table.items, table.count, &params, &result);
        code = status == TN_OK ? write_results(args, &table, &result)
                               : fail_status(status, "internal error: the offsets are wrong; please report this");
        if (code == EXIT_OK) print_pack_summary(&result, seconds);
    }
    tn_pack_result_free(&result);
    tn_pack_table_free(&table);
    return code;
}

static const struct option options[] = {
    {.name = "capacity",
     .letter = "c",
     .value = "SIZE",
     .kind = OPTION_SIZE,
     .help = "accept any packing within SIZE bytes; by default, find the smallest"},
    {.name = "effort",
     .letter = "e",
     .value = "LEVEL",
     .kind = OPTION_TEXT,
     .fallback = "balanced",
     .choices = "fast balanced exact",
     .help =
         "fast takes milliseconds; balanced a second or two; exact searches until the result is proven optimal, for "
         "about ten seconds at most"},
    {.name = "time-limit",
     .letter = "t",
     .value = "TIME",
     .kind = OPTION_SECONDS,
     .help = "stop after TIME with the best result so far, instead of after the level's own number of steps; the "
             "result may differ from run to run"},
    {.name = "steps",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = 1e18,
     .fallback = "0",
     .help = "stop after N search steps of a few nanoseconds instead of the level's own limit; the result is "
             "reproducible"},
    {.name = "max-chunk",
     .value = "SIZE",
     .kind = OPTION_SIZE,
     .help = "divide the memory into chunks of at most SIZE bytes; no item spans two chunks"},
    OPTION_FORCE,
    {.name = "svg",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .help = "draw the packing: time to the right, addresses upwards"},
    {0},
};

const struct command command_pack = {
    .name = "pack",
    .summary = "pack items with known lifetimes into memory",
    .section = SECTION_MEMORY,
    .arguments = "FILE.csv",
    .min_arguments = 1,
    .max_arguments = 1,
    .usage_exit = EXIT_ERROR,
    .options = options,
    .details =
        "Reads a table whose header names the columns id, lower, upper, size and optionally alignment, in any order. "
        "An item is alive from lower up to, but not including, upper; items alive at the same time share no byte. "
        "Prints "
        "id,lower,upper,size,offset on standard output and a summary on standard error. \"-\" reads standard "
        "input.\n\n"
        "The same table always gives the same offsets, unless there is a time limit.",
    .examples = "tenon pack trace.csv > placed.csv\n"
                "tenon pack trace.csv --capacity 1M --effort exact  # does it fit?\n"
                "tenon pack trace.csv --svg picture.svg > /dev/null\n",
    .exit_codes =
        "0 success, 1 bad input or usage, 2 the items cannot fit into the capacity (some that cannot are listed), "
        "3 undecided within the limit of steps or time",
    .run = run_pack,
};
