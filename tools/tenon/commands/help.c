/* tenon help: the list of commands, the help of one command, and the documents made from the command table. */
#include "cli/cli.h"

static int run_help(const struct args *args) {
    const char *shell = args_text(args, "completion");
    if (shell)
        help_completion(stdout, shell);
    else if (args_flag(args, "markdown"))
        help_markdown(stdout);
    else if (args_flag(args, "man"))
        help_man(stdout);
    else if (args->count == 0)
        help_commands(stdout);
    else {
        const struct command *command = command_find(args->values[0]);
        const char *suggestion = suggest_command(args->values[0]);
        if (!command && suggestion)
            return fail_usage(args, "unknown command \"%s\"; did you mean \"%s\"?", args->values[0], suggestion);
        if (!command) return fail_usage(args, "unknown command \"%s\"", args->values[0]);
        help_command(stdout, command);
    }
    return EXIT_OK;
}

static const struct option options[] = {
    {.name = "markdown", .help = "print the reference of all commands in Markdown", .kind = OPTION_FLAG},
    {.name = "man", .help = "print the manual page", .kind = OPTION_FLAG},
    {.name = "completion",
     .value = "SHELL",
     .choices = "bash zsh fish",
     .kind = OPTION_TEXT,
     .help = "print the completion script for a shell"},
    {0},
};

const struct command command_help = {
    .name = "help",
    .summary = "list the commands, or explain one",
    .section = SECTION_ABOUT,
    .arguments = "[COMMAND]",
    .max_arguments = 1,
    .options = options,
    .examples = "tenon help version                     # same as: tenon version --help\n"
                "tenon help --man | man -l -            # read the manual without installing it\n"
                "source <(tenon help --completion bash) # enable completion in this shell\n",
    .run = run_help,
};
