/* tenon merge: join the files of a split model. */
#include "cli/cli.h"
#include "cli/term.h"
#include "files/output_file.h"
#include "tenon/gguf.h"

static int run_merge(const struct args *args) {
    tn_gguf *file;
    char bytes[HUMAN_SIZE];
    tn_status status = tn_gguf_open(args->values[0], &(tn_gguf_params){.mode = TN_GGUF_META}, &file);
    if (status != TN_OK) return fail_status(status, "merge");
    if (tn_gguf_part_count(file) == 1)
        warn("%s is not part of a split model; it is copied unchanged", args->values[0]);
    const char *inputs[] = {args->values[0]};
    int code = check_output(args->values[1], args_flag(args, "force"), inputs, 1);
    if (code == EXIT_OK) code = copy_with_progress(file, args->values[1], &(tn_gguf_copy_params){0}, "merging");
    if (code == EXIT_OK)
        printf("%s: %s from %d files\n", args->values[1], human_bytes(bytes, tn_gguf_file_bytes(file)),
               tn_gguf_part_count(file));
    tn_gguf_close(file);
    return code;
}

static const struct option options[] = {OPTION_FORCE, {0}};

const struct command command_merge = {
    .name = "merge",
    .summary = "join the files of a split model",
    .section = SECTION_FILES,
    .arguments = "PART OUT",
    .min_arguments = 2,
    .max_arguments = 2,
    .options = options,
    .details = "PART is any of the files, which are named NAME-00001-of-0000N.gguf.",
    .examples = "tenon merge model-00001-of-00003.gguf model.gguf\n",
    .run = run_merge,
};
