/* The tenon program: finds the command, parses its options and runs it. */
#include "cli/cli.h"
#include "cli/term.h"

#include <stdlib.h>
#include <string.h>

static FILE *log_file;

static void log_to_file(void *user, tn_log_level level, const char *text) {
    static const char *const names[] = {"debug", "info", "warn", "error"};
    fprintf(user, "%s: %s\n", level < TN_LOG_OFF ? names[level] : "?", text);
    fflush(user);
}

static int apply_common_options(const struct args *args) {
    if (!args_flag(args, "color")) term_no_colour();
    const char *path = args_text(args, "log-file");
    bool verbose = args_flag(args, "verbose");
    if (path && !(log_file = fopen(path, "w"))) return fail("cannot write the log to %s: %m", path);
    if (path)
        tn_log_set(log_to_file, log_file, verbose ? TN_LOG_DEBUG : TN_LOG_INFO);
    else if (verbose)
        tn_log_set(NULL, NULL, TN_LOG_DEBUG);
    return EXIT_OK;
}

static int parse_and_run(const struct command *command, int argc, char **argv) {
    struct args args;
    int code = args_parse(command, argc, argv, &args);
    if (code == EXIT_OK) code = apply_common_options(&args);
    if (code == EXIT_OK) {
        if (args_flag(&args, "help"))
            help_command(stdout, command);
        else
            code = command->run(&args);
    }
    args_free(&args);
    if (log_file) fclose(log_file);
    /* Output that did not reach its file or pipe is a failure even when the command succeeded. */
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == EXIT_OK)
        code = fail("cannot write to standard output: %m");
    return code;
}

/* Suggests what was probably meant: a similar command, or "run" in front of a model or an option. */
static int unknown_command(const char *name) {
    const char *suggestion = suggest_command(name);
    size_t length = strlen(name);
    if (suggestion)
        fail("unknown command \"%s\"; did you mean \"%s\"?", name, suggestion);
    else if (length > 5 && strcmp(name + length - 5, ".gguf") == 0)
        fail("\"%s\" is a file, not a command; did you mean \"tenon run %s\"?", name, name);
    else if (name[0] == '-')
        fail("the command goes before its options, for example: tenon run %s …", name);
    else
        fail("unknown command \"%s\"", name);
    fprintf(stderr, "See: tenon help\n");
    return EXIT_USAGE;
}

int main(int argc, char **argv) {
    interrupt_install();
    if (argc < 2) {
        help_start(stdout);
        return fflush(stdout) == 0 ? EXIT_OK : fail("cannot write to standard output: %m");
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) name = "help";
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) name = "version";
    const struct command *command = command_find(name);
    return command ? parse_and_run(command, argc - 1, argv + 1) : unknown_command(name);
}
