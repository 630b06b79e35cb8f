/* The option parser: command line and environment against a command's option tables. */
#include "cli/cli.h"
#include "cli/peer_flags.h"
#include "cli/term.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct option common[] = {
    {.name = "help", .letter = "h", .aliases = "--usage", .help = "show this help", .kind = OPTION_FLAG},
    {.name = "verbose",
     .letter = "v",
     .aliases = "--log-verbose",
     .help = "log each step in detail",
     .kind = OPTION_FLAG,
     .env = "LLAMA_ARG_VERBOSE"},
    {.name = "log-file",
     .value = "FILE",
     .help = "write the log to FILE instead of standard error",
     .kind = OPTION_TEXT,
     .env = "TENON_LOG_FILE LLAMA_ARG_LOG_FILE"},
    {.name = "verbosity",
     .letter = "lv",
     .aliases = "--log-verbosity",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = 1000,
     .help = "what is logged: 0 nothing, 1 errors, 2 also warnings, 3 also information, 4 each step",
     .env = "LLAMA_ARG_LOG_VERBOSITY"},
    {.name = "log-disable", .kind = OPTION_FLAG, .help = "log nothing"},
    {.name = "color",
     .letter = "co",
     .value = "[on|off|auto]",
     .help = "colour on terminals (NO_COLOR turns it off too)",
     .kind = OPTION_FLAG,
     .fallback = "on"},
    {0},
};
const struct option_group options_common = {"Common options", common};

struct args_entry {
    const struct option *option;
    const char *text;
    const char *source; /* as the user wrote it: "-ngl", "LLAMA_ARG_THREADS" */
};

struct kept {
    struct kept *next;
    max_align_t bytes[];
};

struct args_state {
    struct kept *kept;
    int entries, set; /* `set`: those of args_set() */
    bool misused;
    struct args_entry *entry; /* environment first, then the command line, so that the last one wins */
};

void options_visit(const struct command *command, option_visitor visit, void *user) {
    static const struct option_group own = {"Options", NULL};
    for (const struct option *o = command->options; o && o->name; o++) visit(user, &own, o);
    for (int i = 0; command->groups && command->groups[i]; i++)
        for (const struct option *o = command->groups[i]->options; o->name; o++) visit(user, command->groups[i], o);
    for (const struct option *o = common; o->name; o++) visit(user, &options_common, o);
}

/* ---- Values ---- */

/* Whether the word of `length` bytes is one of the space-separated words in `list`. */
static bool in_list(const char *list, const char *word, size_t length) {
    while (list && *list) {
        size_t n = strcspn(list, " ");
        if (n == length && memcmp(list, word, n) == 0) return true;
        list += n + strspn(list + n, " ");
    }
    return false;
}

static bool parse_flag(const char *text, bool *value) {
    static const char *yes = "on true yes enabled 1 auto", *no = "off false no disabled 0";
    *value = in_list(yes, text, strlen(text));
    return *value || in_list(no, text, strlen(text));
}

/* A whole number, or one of the option's words for numbers. */
static bool parse_int_value(const struct option *option, const char *text, int64_t *value) {
    char *end;
    errno = 0;
    for (const char *word = option->words; word && *word; word += strcspn(word, " "), word += strspn(word, " ")) {
        const size_t length = strcspn(word, "=");
        if (strlen(text) == length && strncasecmp(word, text, length) == 0) text = word + length + 1;
        if (text == word + length + 1) {
            *value = strtoll(text, NULL, 10);
            return true;
        }
    }
    long long parsed = strtoll(text, &end, 10);
    *value = parsed;
    return errno == 0 && end != text && *end == '\0';
}

int64_t option_int(const struct option *option, const char *text) {
    int64_t value = 0;
    return parse_int_value(option, text, &value) ? value : 0;
}

static bool parse_real_value(const char *text, double *value) {
    char *end;
    *value = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*value);
}

bool parse_size(const char *text, uint64_t *bytes) {
    char *end;
    /* A plain integer is parsed as one: a double would round beyond 2^53. */
    if (*text && strspn(text, "0123456789") == strlen(text)) {
        errno = 0;
        *bytes = strtoull(text, NULL, 10);
        return errno == 0;
    }
    double number = strtod(text, &end), scale = 1;
    if (end == text || !isfinite(number) || number < 0) return false;
    static const char units[] = "KMGT";
    const char *unit = *end ? strchr(units, *end >= 'a' ? *end - 'a' + 'A' : *end) : NULL;
    if (unit) {
        scale = (double)(UINT64_C(1) << (10 * (unit - units + 1)));
        end++;
        if (*end == 'i') end++;
    }
    if (*end == 'B' || *end == 'b') end++;
    if (*end != '\0' || number * scale >= 0x1p64) return false;
    *bytes = (uint64_t)(number * scale);
    return true;
}

bool parse_seconds(const char *text, double *seconds) {
    static const struct {
        const char *suffix;
        double scale;
    } units[] = {{"", 1}, {"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"m", 60}, {"min", 60}, {"h", 3600}};
    char *end;
    double number = strtod(text, &end);
    if (end == text || !isfinite(number) || number < 0) return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(end, units[i].suffix) == 0) {
            *seconds = number * units[i].scale;
            return true;
        }
    return false;
}

bool option_value_wrong(const struct option *option, const char *text, char *why, size_t size) {
    bool flag, limited = option->min < option->max;
    int64_t whole = 0;
    double real = 0;
    uint64_t bytes;
    const char *expected = NULL;
    switch (option->kind) {
    case OPTION_FLAG: expected = parse_flag(text, &flag) ? NULL : "on or off"; break;
    case OPTION_TEXT: break;
    case OPTION_INT:
        expected = parse_int_value(option, text, &whole) ? NULL : "a whole number";
        real = (double)whole;
        break;
    case OPTION_REAL: expected = parse_real_value(text, &real) ? NULL : "a number"; break;
    case OPTION_SIZE:
        expected = parse_size(text, &bytes) ? NULL : "a size such as 4096, 64K or 1.5G";
        limited = false;
        break;
    case OPTION_SECONDS: expected = parse_seconds(text, &real) ? NULL : "a time such as 0.5, 10s or 2m"; break;
    }
    if (expected)
        snprintf(why, size, "takes %s, not \"%s\"", expected, text);
    else if (option->choices && !in_list(option->choices, text, strlen(text)))
        snprintf(why, size, "takes one of: %s; not \"%s\"", option->choices, text);
    else if (limited && (real < option->min || real > option->max))
        snprintf(why, size, "must be between %.15g and %.15g, not %s", option->min, option->max, text);
    else
        return false;
    return true;
}

/* ---- Matching ---- */

struct option_match {
    const char *word; /* without its value */
    size_t length;
    const struct option *option;
    bool negated;
};

/* Compares long names; '_' counts as '-', since both spellings are in use. */
static bool same_name(const char *name, const char *word, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (name[i] == '\0' || name[i] != (word[i] == '_' ? '-' : word[i])) return false;
    return name[length] == '\0';
}

static void match_visit(void *user, const struct option_group *group, const struct option *option) {
    (void)group;
    struct option_match *m = user;
    if (m->option) return;
    const char *word = m->word;
    if (m->length > 2 && word[0] == '-' && word[1] == '-') {
        if (same_name(option->name, word + 2, m->length - 2))
            m->option = option;
        else if (option->kind == OPTION_FLAG && m->length > 5 && memcmp(word, "--no-", 5) == 0 &&
                 same_name(option->name, word + 5, m->length - 5)) {
            m->option = option;
            m->negated = true;
        }
    } else if (option->letter && strlen(option->letter) == m->length - 1 &&
               memcmp(option->letter, word + 1, m->length - 1) == 0) {
        m->option = option;
    } else if (option->letter && option->kind == OPTION_FLAG && m->length == strlen(option->letter) + 4 &&
               memcmp(word, "-no-", 4) == 0 && memcmp(option->letter, word + 4, m->length - 4) == 0) {
        m->option = option;
        m->negated = true;
    }
    if (m->option) return;
    char positive[64] = "";
    if (option->kind == OPTION_FLAG && m->length > 5 && m->length < sizeof positive && memcmp(word, "--no-", 5) == 0)
        snprintf(positive, sizeof positive, "--%.*s", (int)m->length - 5, word + 5);
    if (in_list(option->aliases, word, m->length))
        m->option = option;
    else if (in_list(option->off, word, m->length) ||
             (*positive && in_list(option->aliases, positive, m->length - 3)))
        *m = (struct option_match){word, m->length, option, true};
}

static struct option_match match_option(const struct command *command, const char *word) {
    char plain[64]; /* aliases too are known with '_' */
    struct option_match m = {.word = word, .length = strcspn(word, "=")};
    if (m.length > 2 && m.length < sizeof plain && memcmp(word, "--", 2) == 0 && memchr(word, '_', m.length)) {
        for (size_t i = 0; i < m.length; i++) plain[i] = word[i] == '_' ? '-' : word[i];
        m.word = plain;
    }
    if (m.length > 1) options_visit(command, match_visit, &m);
    m.word = word;
    return m;
}

bool command_has_option(const struct command *command, const char *spelling) {
    return match_option(command, spelling).option != NULL;
}

/* ---- Parsing ---- */

static bool add_entry(struct args *args, const struct option *option, const char *text, const char *source) {
    char why[256];
    if (option_value_wrong(option, text, why, sizeof why)) {
        fail_usage(args, "%.*s %s", (int)strcspn(source, "="), source, why);
        return false;
    }
    args->state->entry[args->state->entries++] = (struct args_entry){option, text, source};
    return true;
}

struct env_pass {
    struct args *args;
    bool count_only, failed;
    int count;
};

static void env_visit(void *user, const struct option_group *group, const struct option *option) {
    (void)group;
    struct env_pass *pass = user;
    if (!option->env || pass->failed) return;
    pass->count++;
    if (pass->count_only) return;
    char off[64];
    if (option->kind == OPTION_FLAG && peer_variable_off(option->env, off) && getenv(off)) {
        const char *source = args_keep(pass->args, off, strlen(off));
        pass->failed = !source || !add_entry(pass->args, option, "off", source);
        return;
    }
    for (const char *name = option->env; *name;) {
        size_t n = strcspn(name, " ");
        char variable[64];
        snprintf(variable, sizeof variable, "%.*s", (int)n, name);
        const char *text = getenv(variable);
        if (text && *text) {
            pass->failed = !add_entry(pass->args, option, text, variable);
            if (!pass->failed) pass->args->state->entry[pass->args->state->entries - 1].source = name;
            return;
        }
        name += n + strspn(name + n, " ");
    }
}

static int unknown_option(struct args *args, const char *word) {
    char suggestion[128];
    if (suggest_option(args->command, word, suggestion, sizeof suggestion))
        return fail_usage(args, "unknown option %s; did you mean %s?", word, suggestion);
    return fail_usage(args, "unknown option %s", word);
}

static bool looks_like_number(const char *word) {
    return word[0] == '-' && (strchr("0123456789.", word[1]) != NULL) && word[1] != '\0';
}

static const char *join_pair(const struct args *args, const char *first, const char *second) {
    const size_t size = strlen(first) + strlen(second) + 2;
    char *text = args_keep(args, NULL, size);
    if (text) snprintf(text, size, "%s %s", first, second);
    return text;
}

static int parse_words(struct args *args, int argc, char **argv, const char **values) {
    const struct command *command = args->command;
    bool options_end = false;
    for (int i = 1; i < argc; i++) {
        char *word = argv[i];
        if (options_end || word[0] != '-' || word[1] == '\0' || looks_like_number(word)) {
            values[args->count++] = word;
            continue;
        }
        if (strcmp(word, "--") == 0) {
            options_end = true;
            continue;
        }
        struct option_match m = match_option(command, word);
        if (!m.option) {
            int code = peer_option(args, argc, argv, &i, &args->instead);
            if (code > 0) return code;
            if (code < 0) return unknown_option(args, word);
            continue;
        }
        const char *text = word[m.length] == '=' ? word + m.length + 1 : NULL;
        if (m.option->kind == OPTION_FLAG) {
            bool on = true;
            if (!text && m.option->value && i + 1 < argc && parse_flag(argv[i + 1], &on)) text = argv[++i];
            on = true;
            if (text && !parse_flag(text, &on))
                return fail_usage(args, "%.*s takes on or off, not \"%s\"", (int)m.length, word, text);
            if (!text || strcmp(text, "auto") != 0) text = on != m.negated ? "on" : "off";
        } else if (!text) {
            /* An option where a value should be is far more often a mistake than the value. */
            bool missing = i + 1 == argc || (!looks_like_number(argv[i + 1]) && argv[i + 1][0] == '-' &&
                                             match_option(command, argv[i + 1]).option);
            if (missing)
                return fail_usage(args, "%s needs a value: %s %s", word, word,
                                  m.option->value ? m.option->value : "VALUE");
            text = argv[++i];
            if (m.option->pair && i + 1 < argc && !strpbrk(text, ", ") && isdigit((unsigned char)argv[i + 1][0]) &&
                !(text = join_pair(args, text, argv[++i])))
                return fail("out of memory");
        }
        if (!add_entry(args, m.option, text, word)) return command->usage_exit ? command->usage_exit : EXIT_USAGE;
    }
    return 0;
}

int args_parse(const struct command *command, int argc, char **argv, struct args *out) {
    *out = (struct args){.command = command};
    struct env_pass pass = {.args = out, .count_only = true};
    options_visit(command, env_visit, &pass);
    out->state = tn_calloc(1, sizeof *out->state);
    const char **values = tn_calloc((size_t)argc + 1, sizeof *values);
    if (out->state)
        out->state->entry = tn_calloc((size_t)argc + (size_t)pass.count + ARGS_SET_MOST, sizeof *out->state->entry);
    out->values = values;
    if (!out->state || !values || !out->state->entry) return fail("%s", tn_error());
    pass.count_only = false;
    options_visit(command, env_visit, &pass);
    int code =
        pass.failed ? (command->usage_exit ? command->usage_exit : EXIT_USAGE) : parse_words(out, argc, argv, values);
    if (code == 0) code = peer_variables(out);
    if (code != 0 || out->instead || args_flag(out, "help")) return code;
    if (out->count < command->min_arguments)
        return fail_usage(out, "missing argument: tenon %s %s", command->name, command->arguments);
    if (command->max_arguments >= 0 && out->count > command->max_arguments)
        return fail_usage(out, "unexpected argument \"%s\"", out->values[command->max_arguments]);
    return 0;
}

void *args_keep(const struct args *args, const void *bytes, size_t size) {
    struct kept *kept = tn_calloc(1, sizeof *kept + size + 1);
    if (!kept) return NULL;
    if (bytes) memcpy(kept->bytes, bytes, size);
    kept->next = args->state->kept;
    args->state->kept = kept;
    return kept->bytes;
}

void args_free(struct args *args) {
    for (struct kept *kept = args->state ? args->state->kept : NULL, *next; kept; kept = next) {
        next = kept->next;
        tn_free(kept);
    }
    if (args->state) tn_free(args->state->entry);
    tn_free(args->state);
    tn_free((void *)args->values);
    *args = (struct args){0};
}

/* ---- Values by name ---- */

struct lookup {
    const char *name;
    const struct option *found;
};

static void lookup_visit(void *user, const struct option_group *group, const struct option *option) {
    (void)group;
    struct lookup *l = user;
    if (!l->found && strcmp(l->name, option->name) == 0) l->found = option;
}

static const struct option *lookup(const struct args *args, const char *name) {
    struct lookup l = {name, NULL};
    options_visit(args->command, lookup_visit, &l);
    if (!l.found) {
        fail("internal error: tenon %s has no option \"%s\"", args->command->name, name);
        exit(EXIT_ERROR);
    }
    return l.found;
}

static bool is_option(const struct args_entry *entry, const char *name) {
    return strcmp(entry->option->name, name) == 0;
}

bool args_given(const struct args *args, const char *name) {
    lookup(args, name);
    for (int i = 0; i < args->state->entries; i++)
        if (is_option(&args->state->entry[i], name)) return true;
    return false;
}

const char *args_text(const struct args *args, const char *name) {
    const struct option *option = lookup(args, name);
    for (int i = args->state->entries; i-- > 0;)
        if (is_option(&args->state->entry[i], name)) return args->state->entry[i].text;
    return option->fallback;
}

bool args_flag(const struct args *args, const char *name) {
    const char *text = args_text(args, name);
    bool value = false;
    return text && parse_flag(text, &value) && value;
}

int64_t args_int(const struct args *args, const char *name) {
    const char *text = args_text(args, name);
    int64_t value = 0;
    return text && parse_int_value(lookup(args, name), text, &value) ? value : 0;
}

double args_real(const struct args *args, const char *name) {
    const char *text = args_text(args, name);
    double value = 0;
    return text && (lookup(args, name)->kind == OPTION_SECONDS ? parse_seconds(text, &value)
                                                               : parse_real_value(text, &value))
               ? value
               : 0;
}

uint64_t args_size(const struct args *args, const char *name) {
    const char *text = args_text(args, name);
    uint64_t value = 0;
    return text && parse_size(text, &value) ? value : 0;
}

bool args_typed(const struct args *args, const char *name) {
    lookup(args, name);
    for (int i = 0; i < args->state->entries; i++)
        if (is_option(&args->state->entry[i], name) && args->state->entry[i].source[0] == '-') return true;
    return false;
}

/* Values of the command line replace those of the environment. */
static bool counts(const struct args_entry *entry, const char *name, bool typed) {
    return is_option(entry, name) && (!typed || entry->source[0] == '-');
}

bool args_was_set(const struct args *args, const char *name) {
    lookup(args, name);
    for (int i = 0; i < args->state->entries; i++)
        if (is_option(&args->state->entry[i], name) && !args->state->entry[i].source[0]) return true;
    return false;
}

void args_set_misused(const struct args *args) {
    if (args->state) args->state->misused = true;
}

bool args_misused(const struct args *args) { return args->state && args->state->misused; }

void args_set(const struct args *args, const char *name, const char *text) {
    struct args_state *state = args->state;
    if (state->set++ == ARGS_SET_MOST) exit(fail("internal error: too many options were set"));
    state->entry[state->entries++] = (struct args_entry){lookup(args, name), text, ""};
}

int args_repeats(const struct args *args, const char *name) {
    const bool typed = args_typed(args, name);
    int count = 0;
    for (int i = 0; i < args->state->entries; i++) count += counts(&args->state->entry[i], name, typed);
    return count;
}

const char *args_text_at(const struct args *args, const char *name, int index) {
    const bool typed = args_typed(args, name);
    for (int i = 0; i < args->state->entries; i++)
        if (counts(&args->state->entry[i], name, typed) && index-- == 0) return args->state->entry[i].text;
    return NULL;
}
