/* tenon help: the start page, the help of one command, and the documents made from the command table. */
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
        const char *near = suggest_command(args->values[0]);
        if (!command && near)
            return fail_usage(args, "no command \"%s\"; did you mean \"%s\"?", args->values[0], near);
        if (!command) return fail_usage(args, "no command \"%s\"", args->values[0]);
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
    .summary = "what the commands are and how to use one",
    .section = SECTION_ABOUT,
    .arguments = "[COMMAND]",
    .max_arguments = 1,
    .options = options,
    .examples = "tenon help version                     # the same as tenon version --help\n"
                "tenon help --man | man -l -            # the manual without installing it\n"
                "source <(tenon help --completion bash) # completion in this shell\n",
    .run = run_help,
};
