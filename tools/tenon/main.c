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
    static const tn_log_level levels[] = {TN_LOG_OFF, TN_LOG_ERROR, TN_LOG_WARN, TN_LOG_INFO, TN_LOG_DEBUG};
    tn_log_level level = verbose ? TN_LOG_DEBUG : path ? TN_LOG_INFO : TN_LOG_WARN;
    if (args_given(args, "verbosity")) {
        const int64_t n = args_int(args, "verbosity");
        level = levels[n < 4 ? n : 4];
    }
    if (args_flag(args, "log-disable")) level = TN_LOG_OFF;
    if (path && !(log_file = fopen(path, "a+"))) return fail("cannot write the log to %s: %m", path);
    char magic[4] = "";
    if (path && fread(magic, 1, sizeof magic, log_file) == sizeof magic && memcmp(magic, "GGUF", 4) == 0) {
        fclose(log_file);
        log_file = NULL;
        return fail("%s is a model: give another file for the log", path);
    }
    if (path)
        tn_log_set(log_to_file, log_file, level);
    else if (verbose || args_given(args, "verbosity") || args_flag(args, "log-disable"))
        tn_log_set(NULL, NULL, level);
    return EXIT_OK;
}

static int parse_and_run(const struct command *command, int argc, char **argv);

/* Runs a command line such as "help --completion bash", which an option of llama.cpp stands for. */
static int run_instead(const char *line) {
    enum { MOST_WORDS = 8 };
    char text[128], *words[MOST_WORDS + 1] = {NULL}, *rest = NULL;
    int count = 0;
    snprintf(text, sizeof text, "%s", line);
    for (char *word = strtok_r(text, " ", &rest); word && count < MOST_WORDS; word = strtok_r(NULL, " ", &rest))
        words[count++] = word;
    return parse_and_run(command_find(words[0]), count, words);
}

static int parse_and_run(const struct command *command, int argc, char **argv) {
    struct args args;
    int code = args_parse(command, argc, argv, &args);
    if (code == EXIT_OK && args.instead) {
        const char *instead = args.instead;
        args_free(&args);
        return run_instead(instead);
    }
    if (code == EXIT_OK) code = apply_common_options(&args);
    if (code == EXIT_OK) {
        if (args_flag(&args, "help"))
            help_command(stdout, command);
        else
            code = command->run(&args);
        /* Functions that return no exit code found the usage wrong. */
        if (code == EXIT_ERROR && args_misused(&args)) code = command->usage_exit ? command->usage_exit : EXIT_USAGE;
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
    const char *replacement = replacement_of(name), *suggestion = replacement ? NULL : suggest_command(name);
    size_t length = strlen(name);
    if (replacement)
        fail("unknown command \"%s\"; use %s%s", name, command_find(replacement) ? "tenon " : "", replacement);
    else if (suggestion)
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
