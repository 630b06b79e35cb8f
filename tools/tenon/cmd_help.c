/* tenon help: the start page, or the help of one command. */
#include "cli.h"

static int run(const struct args *args) {
    if (args->count == 0) {
        help_start(stdout);
        return EXIT_OK;
    }
    const struct command *command = command_find(args->values[0]);
    if (!command) {
        const char *near = suggest_command(args->values[0]);
        return near ? fail_usage(args, "no command \"%s\"; did you mean \"%s\"?", args->values[0], near)
                    : fail_usage(args, "no command \"%s\"", args->values[0]);
    }
    help_command(stdout, command);
    return EXIT_OK;
}

const struct command command_help = {
    .name = "help",
    .summary = "what the commands are and how to use one",
    .section = SECTION_ABOUT,
    .arguments = "[COMMAND]",
    .max_arguments = 1,
    .examples = "tenon help version  # the same as tenon version --help\n",
    .run = run,
};
