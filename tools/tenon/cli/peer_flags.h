/* The options and environment variables of llama.cpp's programs: what happens to each of them here. The parser, the
 * page docs/flags.md and a test are made from the table. */
#ifndef TENON_TOOL_PEER_FLAGS_H
#define TENON_TOOL_PEER_FLAGS_H

#include "cli/cli.h"

struct peer_flag {
    const char *names;    /* spellings with their dashes, separated by spaces */
    const char *variable; /* the environment variable that sets it, or NULL */
    enum { TAKES_NONE, TAKES_ONE, TAKES_TWO, TAKES_SWITCH /* on, off or auto may follow */ } takes;
    enum {
        FLAG_HONOURED, /* commands that have the option do what it says; others accept it with a note */
        FLAG_NOTED,    /* accepted with a note: it means nothing here */
        FLAG_REFUSED,  /* an error that says what to use instead */
        FLAG_COMMAND   /* another command line is run instead */
    } action;
    enum {
        FOR_ANY,
        FOR_SERVER,
        FOR_TEXT
    } scope;          /* commands to which a note or an error applies: all that run a
                         model; serve; run and chat */
    const char *text; /* the note, the advice, or the command line */
};
extern const struct peer_flag peer_flags[]; /* ended by an entry without names */

/* What a command does with a flag. */
enum flag_outcome {
    OUTCOME_HONOURED, /* the command has the option */
    OUTCOME_NOTED,
    OUTCOME_REFUSED,
    OUTCOME_COMMAND,
    OUTCOME_UNUSED /* an option of other commands: accepted with a note as a flag, ignored as a variable */
};
enum flag_outcome peer_outcome(const struct command *command, const struct peer_flag *flag);

/* The flag with this spelling (`length` bytes of `word`), or NULL. */
const struct peer_flag *peer_flag_find(const char *word, size_t length);
/* Handles argv[*at], which the command's own tables lack, and moves *at to its last word. Returns 0, or an exit code
 * after a message; -1 where llama.cpp has no such option either. `*instead` is set for FLAG_COMMAND. */
int peer_option(const struct args *args, int argc, char **argv, int *at, const char **instead);
/* The variable that turns a flag off in llama.cpp, LLAMA_ARG_NO_X for the LLAMA_ARG_X of a list; false: there is
 * none. */
bool peer_variable_off(const char *list, char name[64]);
/* Notes and refusals for variables in the environment that the command's options do not read. */
int peer_variables(const struct args *args);
/* docs/flags.md, or the same rows separated by tabs. */
void help_flags(FILE *out);
void help_flags_tsv(FILE *out);

#endif
