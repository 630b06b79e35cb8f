/* The command line of the tenon program: command and option tables, the parser that they drive, messages, exit codes
 * and interruption. Terminal output is in term.h. */
#ifndef TENON_TOOL_CLI_H
#define TENON_TOOL_CLI_H

#include "tenon/base.h"

#include <stdio.h>

/* ---- Tables ---- */

enum option_kind {
    OPTION_FLAG,   /* --name, and --no-name to turn it off again; with `value`, on, off or auto may follow */
    OPTION_TEXT,   /* any text; `choices`, when given, limits it */
    OPTION_INT,    /* a whole number within [min, max] when min < max */
    OPTION_REAL,   /* a finite number within [min, max] when min < max */
    OPTION_SIZE,   /* bytes: 4096, 64K, 1.5G, 2GiB; suffixes are powers of 1024 */
    OPTION_SECONDS /* a duration: 0.5, 10s, 200ms, 2m */
};

/* One option. The parser, --help, the manual and the shell completions are all made from this. */
struct option {
    const char *name;     /* long name without dashes; NULL ends the table */
    const char *letter;   /* short name without its dash, may be several letters: "n", "ngl" */
    const char *aliases;  /* further spellings with their dashes, separated by spaces: "--n-gpu-layers -nl" */
    const char *value;    /* what the value is called in help: "N", "FILE"; usually NULL for flags */
    const char *help;     /* one sentence without a full stop */
    const char *fallback; /* the value when nothing is given; flags: "on" or NULL */
    const char *choices;  /* accepted texts, separated by spaces; also completed by the shell */
    const char *env; /* environment variables that set it; the first one set wins: "TENON_CTX LLAMA_ARG_CTX_SIZE" */
    enum option_kind kind;
    const char *off;   /* flags: further spellings, with their dashes, that turn it off: "-nr" */
    const char *words; /* OPTION_INT: words for numbers, "all=1048576 auto=-1" */
    bool repeats;      /* may be given several times and keeps all values; otherwise the last one wins */
    bool pair;         /* the value may be two numbers, as two words: it is their text with a space between them */
    double min, max;
};

/* Options that several commands share, under one heading in help. */
struct option_group {
    const char *title;
    const struct option *options;
};

enum command_section { SECTION_USE, SECTION_FILES, SECTION_TEXT, SECTION_MEMORY, SECTION_ABOUT, SECTION_COUNT };

struct args;

struct command {
    const char *name;
    const char *summary;   /* one line for the list of commands */
    const char *arguments; /* positional arguments as shown in the usage line: "[MODEL] [FILE…]"; NULL for none */
    const char *details;   /* further paragraphs for --help, separated by blank lines; may be NULL */
    const struct option *options;             /* its own options, ended by an entry without a name; may be NULL */
    const struct option_group *const *groups; /* shared options, ended by NULL; may be NULL */
    const char *examples;   /* one per line, each a command line, optionally followed by "  # what it does" */
    const char *exit_codes; /* for help, when they differ from the usual ones; else NULL */
    enum command_section section;
    int min_arguments, max_arguments; /* max -1: any number */
    int usage_exit;                   /* exit code for wrong usage; 0 means EXIT_USAGE */
    int (*run)(const struct args *args);
};

/* Generated from the files tools/tenon/commands/NAME.c, sorted by name, ended by NULL. */
extern const struct command *const command_table[];

/* Shorthands for options that mean the same everywhere. */
#define OPTION_JSON                                                                                                  \
    { .name = "json", .help = "print JSON for programs to read", .kind = OPTION_FLAG }
#define OPTION_THREADS                                                                                               \
    {                                                                                                                \
        .name = "threads", .letter = "t", .value = "N", .kind = OPTION_INT, .min = 0, .max = 4096, .fallback = "0",  \
        .words = "-1=0", .help = "CPU threads, 0 or -1 for one per core", .env = "TENON_THREADS LLAMA_ARG_THREADS"   \
    }
#define OPTION_OUTPUT                                                                                                \
    { .name = "output", .letter = "o", .value = "FILE", .kind = OPTION_TEXT, .help = "write to FILE" }

/* ---- Parsed arguments ---- */

struct args {
    const struct command *command;
    int count;                 /* positional arguments */
    const char *const *values; /* …and their texts */
    const char *instead;       /* a command line to run instead of this one, or NULL */
    struct args_state *state;
};

/* Values by the option's long name; the table's fallback, or NULL, 0 or false, when the option was not given. Values
 * were checked when they were parsed, so these cannot fail. A name that the command's tables lack is a bug in the
 * command and ends the program with a message. */
bool args_given(const struct args *args, const char *name); /* on the command line or in the environment */
bool args_typed(const struct args *args, const char *name); /* on the command line */
/* Sets an option as the environment does: a model that was downloaded is the value of --model-draft. `text` lives as
 * long as the arguments (args_keep). */
enum { ARGS_SET_MOST = 8 };
void args_set(const struct args *args, const char *name, const char *text);
bool args_was_set(const struct args *args, const char *name);
/* Whether fail_usage() was called. */
void args_set_misused(const struct args *args);
bool args_misused(const struct args *args);
bool args_flag(const struct args *args, const char *name);
const char *args_text(const struct args *args, const char *name);
int64_t args_int(const struct args *args, const char *name);
double args_real(const struct args *args, const char *name); /* OPTION_REAL, OPTION_SECONDS */
uint64_t args_size(const struct args *args, const char *name);
int args_repeats(const struct args *args, const char *name); /* how often a repeating option was given */
const char *args_text_at(const struct args *args, const char *name, int index);

/* Memory that lives as long as the arguments, for values made from them: a copy of `size` bytes and a NUL behind it,
 * or zeros where `bytes` is NULL. NULL without memory. */
void *args_keep(const struct args *args, const void *bytes, size_t size);

/* Parses argv[1..] of a command. Returns 0, or prints a message and returns the command's usage exit code. Texts
 * point into argv, the environment and the tables. */
int args_parse(const struct command *command, int argc, char **argv, struct args *out);
void args_free(struct args *args);
bool command_has_option(const struct command *command, const char *spelling); /* with its dashes */

bool parse_size(const char *text, uint64_t *bytes);
/* True when a value does not suit the option; `why` then says what is wrong. */
bool option_value_wrong(const struct option *option, const char *text, char *why, size_t size);
/* The number that a valid text of an OPTION_INT means. */
int64_t option_int(const struct option *option, const char *text);
bool parse_seconds(const char *text, double *seconds);

/* Calls `visit` for every option of a command: its own, then its groups', then those of all commands. */
typedef void (*option_visitor)(void *user, const struct option_group *group, const struct option *option);
void options_visit(const struct command *command, option_visitor visit, void *user);
extern const struct option_group options_common; /* --help, --verbose, --log-file, --color */

/* ---- Messages and exit codes ---- */

enum { EXIT_OK = 0, EXIT_ERROR = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 /* 128 + SIGINT, as shells report it */ };

/* "tenon: TEXT" on standard error; returns EXIT_ERROR. */
int fail(const char *format, ...) TN_PRINTF(1, 2);
/* The same for a failed library call: "tenon: CONTEXT: text of tn_error()". An empty context is left out.
 * Returns EXIT_INTERRUPTED when the status is TN_E_ABORTED and Ctrl-C was pressed. */
int fail_status(tn_status status, const char *format, ...) TN_PRINTF(2, 3);
/* Wrong usage: the message and a pointer to --help; returns the command's usage exit code. */
int fail_usage(const struct args *args, const char *format, ...) TN_PRINTF(2, 3);
/* "tenon: warning: TEXT". */
void warn(const char *format, ...) TN_PRINTF(1, 2);

/* ---- Interruption ---- */

/* Ctrl-C (SIGINT), SIGTERM and SIGHUP set a flag that long-running work polls. A second signal while the first is
 * pending ends the program at once. main() installs the handlers before a command runs. */
void interrupt_install(void);
bool interrupted(void);
void interrupt_clear(void);              /* the interruption was handled; the next signal counts as a first one */
bool interrupted_callback(void *unused); /* the same as an abort callback for the library */

/* ---- Help (help.c, suggest.c) ---- */

const struct command *command_find(const char *name);
extern const char *const section_titles[SECTION_COUNT];
void help_start(FILE *out);    /* one screen: first steps and the names of the commands */
void help_commands(FILE *out); /* all commands with their summaries */
void help_command(FILE *out, const struct command *command);

/* Documents made from the table (documents.c, completion.c). */
void help_markdown(FILE *out);                      /* docs/cli.md */
void help_man(FILE *out);                           /* the manual page tenon(1) */
bool help_completion(FILE *out, const char *shell); /* bash, zsh or fish; false for any other */

/* The command closest to `word` if it is close enough to be a typing mistake, else NULL. */
const char *suggest_command(const char *word);
/* What does the work of a command of llama.cpp or Ollama, such as "tenon serve" for "llama-server"; NULL if unknown.
 */
const char *replacement_of(const char *word);
/* The same for options: writes the closest spelling, with its dashes, to `out`. */
bool suggest_option(const struct command *command, const char *word, char *out, size_t size);
int edit_distance(const char *a, const char *b);

#endif
