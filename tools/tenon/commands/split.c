/* tenon split: divide a model into files of limited size. */
#include "cli/cli.h"
#include "files/output_file.h"
#include "tenon/gguf.h"

static int run_split_file(const struct args *args) {
    const char *in = args->values[0], *out = args->count > 1 ? args->values[1] : in;
    uint64_t size = args_size(args, "max-size");
    tn_gguf *file;
    char name[4096];
    if (size == 0) return fail_usage(args, "--max-size must be more than 0");
    tn_status status = tn_gguf_open(in, &(tn_gguf_params){.mode = TN_GGUF_META}, &file);
    if (status != TN_OK) return fail_status(status, "split");
    int parts = 0;
    tn_gguf_copy_params how = {.part_bytes = size, .part_count = &parts};
    int code = check_split_output(out, args_flag(args, "force"));
    if (code == EXIT_OK) code = copy_with_progress(file, out, &how, "splitting");
    tn_gguf_close(file);
    for (int k = 0; k < parts && code == EXIT_OK; k++)
        if (tn_gguf_part_name(out, k, parts, name, sizeof name) == TN_OK) puts(name);
    return code;
}

static const struct option options[] = {
    {.name = "max-size",
     .letter = "s",
     .value = "SIZE",
     .kind = OPTION_SIZE,
     .fallback = "48G",
     .help = "max size of a file; a larger tensor gets a file of its own"},
    OPTION_FORCE,
    {0},
};

const struct command command_split = {
    .name = "split",
    .summary = "divide a model into files of limited size",
    .section = SECTION_FILES,
    .arguments = "IN [OUT]",
    .min_arguments = 1,
    .max_arguments = 2,
    .options = options,
    .details = "Writes OUT-00001-of-0000N.gguf and so on, named after IN when OUT is not given. Programs that read "
               "GGUF open "
               "the whole model when given the first of the files.",
    .examples = "tenon split model.gguf --max-size 2G\n",
    .run = run_split_file,
};
