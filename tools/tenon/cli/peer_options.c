/* What commands do with llama.cpp's options that they do not have, and the page about all of them. */
#include "cli/peer_flags.h"

#include "cli/term.h"

#include <stdlib.h>
#include <string.h>

static bool has_word(const char *list, const char *word, size_t length) {
    for (; *list; list += strcspn(list, " "), list += strspn(list, " "))
        if (strcspn(list, " ") == length && memcmp(list, word, length) == 0) return true;
    return false;
}

const struct peer_flag *peer_flag_find(const char *word, size_t length) {
    char spelling[64];
    if (length >= sizeof spelling) return NULL;
    for (size_t i = 0; i < length; i++) spelling[i] = i > 1 && word[i] == '_' ? '-' : word[i];
    for (const struct peer_flag *f = peer_flags; f->names; f++)
        if (has_word(f->names, spelling, length)) return f;
    return NULL;
}

/* The first long name: short ones mean other things in some commands. */
static void long_name(const struct peer_flag *flag, char out[64]) {
    const char *name = strstr(flag->names, "--");
    if (!name) name = flag->names;
    snprintf(out, 64, "%.*s", (int)strcspn(name, " "), name);
}

static bool in_scope(const struct command *command, const struct peer_flag *flag) {
    const bool serve = strcmp(command->name, "serve") == 0;
    const bool text = strcmp(command->name, "run") == 0 || strcmp(command->name, "chat") == 0;
    return flag->scope == FOR_ANY || (flag->scope == FOR_SERVER && serve) || (flag->scope == FOR_TEXT && text);
}

enum flag_outcome peer_outcome(const struct command *command, const struct peer_flag *flag) {
    char name[64];
    long_name(flag, name);
    if (command_has_option(command, name)) return OUTCOME_HONOURED;
    if (flag->action == FLAG_COMMAND) return OUTCOME_COMMAND;
    if (flag->action == FLAG_HONOURED || !in_scope(command, flag)) return OUTCOME_UNUSED;
    return flag->action == FLAG_NOTED ? OUTCOME_NOTED : OUTCOME_REFUSED;
}

/* ---- Flags ---- */

static void note_flag(const char *name, int length, const char *format, const char *text) {
    fflush(stdout);
    fprintf(stderr, "%stenon: note:%s %.*s ", style(stderr, STYLE_DIM), style(stderr, STYLE_NONE), length, name);
    fprintf(stderr, format, text);
    fputc('\n', stderr);
}

/* "tenon serve" and others that have the option. */
static const char *users_of(const struct peer_flag *flag, char text[128]) {
    char name[64];
    int used = 0;
    long_name(flag, name);
    *text = '\0';
    for (int i = 0, n = 0; command_table[i]; i++)
        if (command_has_option(command_table[i], name) && used < 100 && n++ < 3)
            used += snprintf(text + used, 128 - (size_t)used, "%stenon %s", used ? ", " : "", command_table[i]->name);
    return text;
}

/* "on"; "0,1" as llama-bench takes it. */
static bool is_switch(const char *text) {
    static const char words[] = "on off auto true false enabled disabled 0 1";
    if (!text || !*text) return false;
    for (size_t n; *text; text += n + (text[n] == ','))
        if (n = strcspn(text, ","), !has_word(words, text, n)) return false;
    return true;
}

static bool is_off(const char *text) {
    static const char words[] = "off false no disabled 0";
    return has_word(words, text, strlen(text));
}

/* Words after the flag that are its values; -1: one is missing. */
static int values_after(const struct args *args, const struct peer_flag *flag, const char *word, size_t length,
                        int argc, char **argv, int at) {
    /* All switches of llama-bench have a value. */
    const bool bench = strcmp(args->command->name, "bench") == 0 && flag->takes == TAKES_NONE;
    if (word[length] == '=' || (flag->takes == TAKES_NONE && !bench)) return 0;
    if (flag->takes == TAKES_SWITCH || bench) return is_switch(at + 1 < argc ? argv[at + 1] : NULL);
    const int count = flag->takes == TAKES_TWO ? 2 : 1;
    return at + count < argc ? count : -1;
}

int peer_option(const struct args *args, int argc, char **argv, int *at, const char **instead) {
    const char *word = argv[*at];
    const size_t length = strcspn(word, "=");
    const struct peer_flag *flag = peer_flag_find(word, length);
    if (!flag || !command_has_option(args->command, "--ctx")) return -1;
    const int values = values_after(args, flag, word, length, argc, argv, *at);
    char users[128];
    if (values < 0) return fail_usage(args, "%s needs a value", word);
    *at += values;
    if (values == 1 && flag->takes == TAKES_NONE && is_off(argv[*at])) return 0;
    switch (peer_outcome(args->command, flag)) {
    case OUTCOME_HONOURED: return -1; /* another spelling of an option that the command's own tables have */
    case OUTCOME_COMMAND: *instead = flag->text; return 0;
    case OUTCOME_NOTED: note_flag(word, (int)length, "has no effect: %s", flag->text); return 0;
    case OUTCOME_REFUSED: return fail_usage(args, "%.*s is not supported: %s", (int)length, word, flag->text);
    case OUTCOME_UNUSED:
        if (flag->action != FLAG_HONOURED)
            note_flag(word, (int)length, "has no effect on tenon %s", args->command->name);
        else
            note_flag(word, (int)length, "has no effect here; it is an option of %s", users_of(flag, users));
        return 0;
    }
    return -1;
}

/* ---- Variables ---- */

bool peer_variable_off(const char *list, char name[64]) {
    static const char prefix[] = "LLAMA_ARG_";
    const char *begin = list ? strstr(list, prefix) : NULL;
    if (!begin) return false;
    begin += strlen(prefix);
    return snprintf(name, 64, "%sNO_%.*s", prefix, (int)strcspn(begin, " "), begin) < 64;
}

/* LLAMA_ARG_NO_X turns off what is off or always on here. */
static void note_variable_off(const struct args *args, const struct peer_flag *f) {
    char name[64];
    if (f->takes == TAKES_ONE || !peer_variable_off(f->variable, name) || !getenv(name)) return;
    if (peer_outcome(args->command, f) == OUTCOME_NOTED)
        note_flag(name, (int)strlen(name), "has no effect: %s", f->text);
}

int peer_variables(const struct args *args) {
    if (!command_has_option(args->command, "--ctx")) return 0;
    for (const struct peer_flag *f = peer_flags; f->names; f++) {
        const char *text = f->variable ? getenv(f->variable) : NULL;
        note_variable_off(args, f);
        if (!text || !*text || (f->takes != TAKES_ONE && is_off(text))) continue;
        const enum flag_outcome outcome = peer_outcome(args->command, f);
        if (outcome == OUTCOME_REFUSED) return fail_usage(args, "%s is not supported: %s", f->variable, f->text);
        if (outcome == OUTCOME_NOTED) note_flag(f->variable, (int)strlen(f->variable), "has no effect: %s", f->text);
    }
    return 0;
}

/* ---- The page ---- */

static const char *const walked[] = {"run", "chat", "serve", "bench"};
static const char *const outcome_names[] = {"yes", "note", "refused", "command", "–"};

/* "yes" also where the option sets the variable's value. */
static void print_flag_row(FILE *out, const struct peer_flag *f, const char *before, const char *between,
                           const char *after) {
    bool honoured = false;
    fprintf(out, "%s%s%s%s", before, f->names, between, f->variable ? f->variable : "");
    for (size_t i = 0; i < sizeof walked / sizeof *walked; i++) {
        const enum flag_outcome outcome = peer_outcome(command_find(walked[i]), f);
        honoured = honoured || outcome == OUTCOME_HONOURED;
        fprintf(out, "%s%s", between, outcome_names[outcome]);
    }
    fputs(between, out);
    if (f->action == FLAG_COMMAND)
        fprintf(out, "runs tenon %s", f->text);
    else if (f->text && !(honoured && f->action == FLAG_REFUSED))
        fputs(f->text, out);
    fputs(after, out);
}

void help_flags_tsv(FILE *out) {
    for (const struct peer_flag *f = peer_flags; f->names; f++) print_flag_row(out, f, "", "\t", "\n");
}

void help_flags(FILE *out) {
    int counts[5] = {0}, total = 0;
    for (const struct peer_flag *f = peer_flags; f->names; f++, total++) {
        int best = OUTCOME_UNUSED;
        for (size_t i = 0; i < sizeof walked / sizeof *walked; i++) {
            const int outcome = peer_outcome(command_find(walked[i]), f);
            if (outcome == OUTCOME_HONOURED || (best != OUTCOME_HONOURED && outcome < best)) best = outcome;
        }
        counts[best]++;
    }
    fprintf(
        out,
        "# Options of llama.cpp\n\n"
        "All options and environment variables of llama.cpp's server, cli and completion programs, and what "
        "`tenon run`, `chat`,\n`serve` and `bench` do with them. Generated by `tenon help --flags` from the table "
        "in `tools/tenon/cli/peer_flags.c`, which the\nparser uses; a test tries every row.\n\n"
        "Of %d rows %d are honoured by at least one of these commands or run another command, %d are accepted "
        "with a note because\nthey mean nothing here, and %d are refused with advice.\n\n"
        "- **yes**: the command has the option; [the reference](cli.md) explains it.\n"
        "- **note**: accepted; a line on standard error says why it has no effect.\n"
        "- **refused**: an error that says what to use instead. A variable that is set is refused too.\n"
        "- **command**: another command is run instead.\n"
        "- **–**: an option of other commands; accepted with a note, the variable is ignored.\n\n"
        "| Option | Variable | run | chat | serve | bench | What happens |\n|---|---|---|---|---|---|---|\n",
        total, counts[OUTCOME_HONOURED] + counts[OUTCOME_COMMAND], counts[OUTCOME_NOTED] + counts[OUTCOME_UNUSED],
        counts[OUTCOME_REFUSED]);
    for (const struct peer_flag *f = peer_flags; f->names; f++) print_flag_row(out, f, "| ", " | ", " |\n");
}
