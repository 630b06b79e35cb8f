/* A conversation at the terminal, by the model's own template: commands, lines, replies. */
#include "chat/conversation.h"

#include "chat/dialog.h"
#include "cli/line_input.h"
#include "cli/term.h"
#include "cli/text_input.h"
#include "engine/context_shift.h"
#include "engine/loaded_model.h"
#include "engine/options.h"
#include "hub/hub.h"
#include "speculate/speculation.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct chat {
    struct loaded_model loaded;
    struct speculation speculation;
    struct dialog dialog;
    struct line_reader *lines;
    const struct args *args;
    const char *question; /* the argument, or NULL */
    char path[4096];      /* of the model */
    char file[4096];      /* of the conversation: saved to or loaded from */
    json_t *variables;
    bool quit, failed; /* failed: the last reply */
};

static void note(const char *format, ...) TN_PRINTF(1, 2);

/* Prints a remark of the program to standard error, so that standard output has only the model's text. */
static void note(const char *format, ...) {
    va_list list;
    fflush(stdout);
    fputs(style(stderr, STYLE_DIM), stderr);
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fprintf(stderr, "%s\n", style(stderr, STYLE_NONE));
}

static void print_reply(struct chat *c) {
    int dropped = c->dialog.dropped;
    enum reply_end end = dialog_reply(&c->dialog);
    c->failed = end == REPLY_FAILED;
    if (end != REPLY_FAILED) putchar('\n');
    if (end == REPLY_INTERRUPTED) note("(interrupted)");
    if (end == REPLY_LIMIT)
        note("(cut off after %lld tokens; -n or /set n changes that)", (long long)c->dialog.limit);
    if (end == REPLY_FULL)
        note("(cut off: the context is full; -c sets a longer one%s)",
             c->dialog.shifts ? "" : ", --context-shift makes room");
    if (c->dialog.dropped > dropped)
        note("(the context was full: the oldest %d messages were dropped)", c->dialog.dropped - dropped);
    if (line_is_terminal(c->lines)) putchar('\n');
    fflush(stdout);
}

/* ---- Commands ---- */

static void do_help(struct chat *c, const char *argument);

static void do_quit(struct chat *c, const char *argument) {
    (void)argument;
    c->quit = true;
}

static void do_reset(struct chat *c, const char *argument) {
    (void)argument;
    dialog_reset(&c->dialog);
    note("(a new conversation)");
}

/* The name of a file as it was typed, without quotes around it. False after a message. */
static bool read_file_name(const char *argument, const char *command, char name[4096]) {
    const size_t length = strlen(argument);
    const bool quoted = length > 2 && (*argument == '"' || *argument == '\'') && argument[length - 1] == *argument;
    snprintf(name, 4096, "%.*s", (int)(length - 2 * quoted), argument + quoted);
    if (!*name) fail("which file? %s FILE", command);
    return *name;
}

/* Without a name the file that the conversation was saved to or loaded from. */
static void do_save(struct chat *c, const char *argument) {
    static const char force[] = "--force ";
    const bool replace = strncmp(argument, force, strlen(force)) == 0;
    char name[4096];
    if (replace) argument += strlen(force);
    if (!read_file_name(*argument ? argument : c->file, "/save", name)) return;
    if (dialog_save(&c->dialog, name, replace || strcmp(name, c->file) == 0) != EXIT_OK) return;
    snprintf(c->file, sizeof c->file, "%s", name);
    note("(%zu messages saved to %s)", json_array_size(c->dialog.messages), name);
}

static void do_load(struct chat *c, const char *argument) {
    char name[4096];
    if (!read_file_name(argument, "/load", name) || dialog_load(&c->dialog, name) != EXIT_OK) return;
    snprintf(c->file, sizeof c->file, "%s", name);
    note("(%zu messages loaded from %s)", json_array_size(c->dialog.messages), name);
}

static void do_system(struct chat *c, const char *text) {
    const char *now = dialog_system(&c->dialog);
    if (*text) {
        bool none = strcmp(text, "-") == 0;
        if (dialog_set_system(&c->dialog, none ? "" : text))
            note(none ? "(no system message)" : "(the system message is set)");
        else
            fail("the system message is not valid UTF-8");
    } else if (now)
        printf("%s\n", now);
    else
        note("(no system message; /system TEXT sets one)");
}

static void do_regen(struct chat *c, const char *argument) {
    (void)argument;
    if (dialog_take_back(&c->dialog))
        print_reply(c);
    else
        fail("there is no reply to regenerate");
}

static double tokens_per_second(uint64_t tokens, uint64_t ns) { return ns ? (double)tokens * 1e9 / (double)ns : 0; }

static void do_stats(struct chat *c, const char *argument) {
    struct dialog *d = &c->dialog;
    tn_session_stats s = tn_session_get_stats(d->session);
    struct memory_use m;
    char a[HUMAN_SIZE], b[HUMAN_SIZE], e[HUMAN_SIZE];
    (void)argument;
    if (!loaded_model_memory(&c->loaded, &m)) return;
    printf("  messages     %zu%s\n", json_array_size(d->messages), d->dropped ? ", older ones were dropped" : "");
    printf("  context      %zu of %d tokens\n", d->cached.count, tn_session_get_params(d->session).n_ctx);
    printf("  prompt       %llu tokens, %.1f tokens/s\n", (unsigned long long)s.prompt_tokens,
           tokens_per_second(s.prompt_tokens, s.prompt_ns));
    printf("  generation   %llu tokens, %.1f tokens/s\n", (unsigned long long)s.generated_tokens,
           tokens_per_second(s.generated_tokens, s.generated_ns));
    printf("  memory       planned %s %s used %s; %s of weights mapped\n", human_bytes(a, m.planned),
           m.planned == m.used ? "=" : "but", human_bytes(b, m.used), human_bytes(e, m.mapped));
}

static void set_limit(struct dialog *d, const char *value) {
    char *end;
    const long long limit = strtoll(value, &end, 10);
    if (!*value) {
        printf("  %-18s %lld\n", "n", (long long)d->limit);
    } else if (*end) {
        fail("n takes a whole number, not \"%s\"", value);
    } else {
        d->limit = limit;
        note("(n = %lld)", limit);
    }
}

static void do_set(struct chat *c, const char *argument) {
    static const char parameter[] = "parameter ", system[] = "system ";
    struct dialog *d = &c->dialog;
    char name[64], why[256];
    if (strncmp(argument, parameter, strlen(parameter)) == 0) argument += strlen(parameter); /* as Ollama has it */
    if (strncmp(argument, system, strlen(system)) == 0) {
        do_system(c, argument + strlen(system));
        return;
    }
    size_t length = strcspn(argument, " =");
    const char *value = argument + length + strspn(argument + length, " =");
    if (!*argument) {
        printf("  %-18s %lld\n", "n", (long long)d->limit);
        sampling_print(stdout, &d->sampling, NULL);
        return;
    }
    snprintf(name, sizeof name, "%.*s", (int)length, argument);
    for (char *p = name; *p; p++) *p = *p == '_' ? '-' : *p;
    if (strcmp(name, "n") == 0 || strcmp(name, "predict") == 0 || strcmp(name, "num-predict") == 0) {
        set_limit(d, value);
        return;
    }
    if (!*value && sampling_print(stdout, &d->sampling, name)) return;
    if (!sampling_set(&d->sampling, name, value, why, sizeof why)) {
        fail("%s; /set alone lists the settings", why);
        return;
    }
    tn_sampler_free(d->sampler);
    d->sampler = NULL;
    note("(%s = %s)", name, value);
}

static int open_dialog(struct chat *c, const struct loaded_model *loaded, struct dialog *dialog);

/* Another model continues the conversation. The old one stays until the new one is ready. */
static void do_model(struct chat *c, const char *argument) {
    static const char repo[] = "-hf ";
    struct loaded_model loaded;
    struct dialog dialog;
    tn_session_params params;
    char path[HUB_PATH];
    if (!*argument) {
        printf("%s\n", c->path);
        return;
    }
    if (strncmp(argument, repo, strlen(repo)) == 0) {
        argument += strlen(repo);
        if (hub_fetch(c->args, argument + strspn(argument, " "), NULL, path)) return;
    } else if (!read_file_name(argument, "/model", path)) {
        return;
    }
    if (session_params_from(c->args, &params) || speculation_prepare(c->args, &params) ||
        loaded_model_open(c->args, path, &params, &loaded))
        return;
    if (open_dialog(c, &loaded, &dialog)) {
        dialog_close(&dialog);
        loaded_model_close(&loaded);
        return;
    }
    json_decref(dialog.messages);
    dialog.messages = json_incref(c->dialog.messages);
    dialog.sampling = c->dialog.sampling;
    dialog.limit = c->dialog.limit;
    dialog_close(&c->dialog);
    speculation_close(&c->speculation);
    loaded_model_close(&c->loaded);
    c->dialog = dialog;
    c->loaded = loaded;
    if (speculation_open(c->args, loaded.session, loaded.threads, &c->speculation))
        warn("no tokens are guessed for this model");
    c->dialog.speculator = c->speculation.speculator;
    snprintf(c->path, sizeof c->path, "%s", path);
    note("(%s continues the conversation)", path);
}

static const struct chat_command {
    const char *name, *argument, *help;
    void (*run)(struct chat *c, const char *argument);
} commands[] = {
    {"/help", "", "this list", do_help},
    {"/reset", "", "new conversation, same system message; also /clear", do_reset},
    {"/clear", "", NULL, do_reset},
    {"/regen", "", "answer the last message again", do_regen},
    {"/system", "[TEXT]", "show or set the system message, - for none", do_system},
    {"/set", "[NAME VALUE]", "show or change settings: temp, top-k, seed, n …", do_set},
    {"/stats", "", "tokens, speed and memory", do_stats},
    {"/save", "FILE", "save the conversation to a file", do_save},
    {"/load", "FILE", "load a conversation from a file", do_load},
    {"/model", "[FILE]", "show it, or continue with FILE or -hf OWNER/REPO", do_model},
    {"/quit", "", "leave; so do /bye and Ctrl-D", do_quit},
    {"/bye", "", NULL, do_quit},
    {"/exit", "", NULL, do_quit},
    {"/?", "", NULL, do_help},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void do_help(struct chat *c, const char *argument) {
    (void)c;
    (void)argument;
    for (int i = 0; i < COMMANDS; i++)
        if (commands[i].help)
            printf("  %s%-8s%s %-13s %s\n", style(stdout, STYLE_CYAN), commands[i].name, style(stdout, STYLE_NONE),
                   commands[i].argument, commands[i].help);
    printf("A line that ends in \\ continues on the next, as with Alt-Enter.\nCtrl-C interrupts a reply.\n");
}

/* Runs "/name argument". */
static void run_command(struct chat *c, const char *line) {
    size_t length = strcspn(line, " \n");
    const char *argument = line + length + strspn(line + length, " \n"), *similar = NULL;
    int best = length > 4 ? 3 : 2;
    char word[64];
    for (int i = 0; i < COMMANDS; i++) {
        if (strlen(commands[i].name) == length && memcmp(commands[i].name, line, length) == 0) {
            commands[i].run(c, argument);
            return;
        }
        snprintf(word, sizeof word, "%.*s", (int)length, line);
        int distance =
            length > 1 && strncmp(commands[i].name, word, length) == 0 ? 0 : edit_distance(commands[i].name, word);
        if (distance < best) {
            best = distance;
            similar = commands[i].name;
        }
    }
    if (similar)
        fail("unknown command %.*s; did you mean %s?", (int)length, line, similar);
    else
        fail("unknown command %.*s; /help lists them", (int)length, line);
}

/* ---- The conversation ---- */

enum { DEFAULT_REPLY = 1024 }; /* tokens; also where tenon run has another default */

/* The reply to one question, for scripts: the exit code says whether there is one. */
static int answer_once(struct chat *c, const char *question) {
    if (!dialog_add(&c->dialog, "user", question)) return fail("the message is not valid UTF-8");
    print_reply(c);
    return c->failed ? EXIT_ERROR : EXIT_OK;
}

/* A line that begins with / and a letter, or is /?, is a command, any other a message. */
static void handle_line(struct chat *c, const char *text) {
    if (!text[strspn(text, " \t\n")]) return;
    bool command = text[0] == '/' && (isalpha((unsigned char)text[1]) || strcmp(text, "/?") == 0);
    if (command)
        run_command(c, text);
    else if (!dialog_add(&c->dialog, "user", text))
        fail("the message is not valid UTF-8");
    else
        print_reply(c);
}

static void converse(struct chat *c) {
    bool warned = false;
    while (!c->quit) {
        char *text;
        enum line_result result = line_read(c->lines, &text);
        if (result == LINE_END) break;
        if (result != LINE_TEXT) {
            interrupt_clear();
            putchar('\n');
            if (result == LINE_CLEARED) continue;
            if (!line_is_terminal(c->lines) || warned) break;
            note("(Ctrl-C again, Ctrl-D or /quit to leave)");
            warned = true;
            continue;
        }
        warned = false;
        const size_t before = json_array_size(c->dialog.messages);
        handle_line(c, text);
        free(text);
        if (args_flag(c->args, "single-turn") && json_array_size(c->dialog.messages) != before) return;
    }
    if (line_is_terminal(c->lines) && !c->quit) putchar('\n');
}

static void greet(struct chat *c, const char *path) {
    tn_model_info info = tn_model_get_info(c->dialog.model);
    char size[HUMAN_SIZE];
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    if (!line_is_terminal(c->lines)) return;
    printf("%s%s%s, %s parameters, context %d. /help lists commands, Ctrl-D leaves.\n", style(stdout, STYLE_BOLD),
           name, style(stdout, STYLE_NONE), human_count(size, (double)info.n_params),
           tn_session_get_params(c->dialog.session).n_ctx);
    if (c->dialog.no_template) note("This model has no chat template: it continues your text.");
    putchar('\n');
}

static int open_dialog(struct chat *c, const struct loaded_model *loaded, struct dialog *d) {
    char *template = NULL;
    *d = (struct dialog){0};
    int code = read_chat_template(c->args, &template);
    if (!code) code = dialog_open(d, c->args, loaded->model, loaded->session, template);
    free(template);
    if (code) return code;
    d->limit = args_given(c->args, "predict") ? args_int(c->args, "predict") : DEFAULT_REPLY;
    d->shifts = context_shift_wanted(c->args, loaded->session);
    d->keep = (int32_t)args_int(c->args, "keep");
    d->variables = c->variables;
    if ((code = chat_format_from(c->args, &d->format))) return code;
    return sampling_params(c->args, &d->sampling);
}

/* -p, -f or the QUESTION, which is followed by what a pipe or a file gives. `*once`: the reply ends the program. */
static int read_first_message(struct chat *c, char **first, bool *once) {
    const char *question = c->question;
    char *piped = NULL, *both;
    size_t size = 0;
    int code = read_text_option(c->args, "prompt", "file", first);
    if (code) return code;
    if (question && *first)
        return fail_usage(c->args, "give the question as an argument, with -p or with -f, not twice");
    *once = question || (*first && args_flag(c->args, "single-turn"));
    if (question && !(*first = strdup(question))) return fail("out of memory");
    if (*first && !args_text(c->args, "file") && args_flag(c->args, "escape")) {
        size = strlen(*first);
        replace_escapes(*first, &size);
    }
    if (!question || (code = read_piped_input(&piped, &size)) || !piped) return code;
    if (!(both = malloc(strlen(*first) + size + 3))) return fail("out of memory");
    sprintf(both, "%s\n\n%s", *first, piped);
    free(piped);
    free(*first);
    *first = both;
    return EXIT_OK;
}

static int set_first_system(struct chat *c) {
    char *system = NULL;
    int code = read_text_option(c->args, "system", "system-file", &system);
    size_t size = system ? strlen(system) : 0;
    if (system && args_text(c->args, "system") && args_flag(c->args, "escape")) replace_escapes(system, &size);
    if (!code && system && !dialog_set_system(&c->dialog, system))
        code = fail("the system message is not valid UTF-8");
    free(system);
    return code;
}

static int hold_conversation(struct chat *c, const char *path) {
    static const char *words[COMMANDS + 1];
    char *first = NULL;
    bool once = false;
    int code = read_first_message(c, &first, &once);
    if (!code) code = open_dialog(c, &c->loaded, &c->dialog);
    if (code) goto out;
    c->dialog.speculator = c->speculation.speculator;
    for (int i = 0; i < COMMANDS; i++) words[i] = commands[i].name;
    code = set_first_system(c);
    if (!code && !(c->lines = line_open(words, once || args_flag(c->args, "simple-io"))))
        code = fail("out of memory");
    if (code) goto out;
    if (once) {
        code = answer_once(c, first);
        goto out;
    }
    greet(c, path);
    if (first) {
        if (line_is_terminal(c->lines))
            printf("%s>%s %s\n", style(stdout, STYLE_GREEN), style(stdout, STYLE_NONE), first);
        handle_line(c, first);
    }
    converse(c);
out:
    free(first);
    return code;
}

int converse_with(const struct args *args) {
    char buffer[4096];
    struct chat c = {.args = args};
    const char *path = find_model_and_question(args, &c.question, buffer, sizeof buffer);
    tn_session_params params;
    if (!path) return EXIT_ERROR;
    snprintf(c.path, sizeof c.path, "%s", path);
    int code = session_params_from(args, &params);
    if (!code) code = speculation_prepare(args, &params);
    if (!code) code = template_variables(args, &c.variables);
    if (!code) code = loaded_model_open(args, path, &params, &c.loaded);
    if (code) {
        json_decref(c.variables);
        return code;
    }
    code = speculation_open(args, c.loaded.session, c.loaded.threads, &c.speculation);
    if (!code) code = hold_conversation(&c, path);
    if (!code && args_flag(args, "show-timings") && line_is_terminal(c.lines) && c.dialog.cached.count)
        print_closing_line(&c.loaded, c.speculation.speculator);
    if (!code && args_flag(args, "stats")) speculation_print_stats(c.speculation.speculator);
    line_close(c.lines);
    dialog_close(&c.dialog);
    speculation_close(&c.speculation);
    loaded_model_close(&c.loaded);
    json_decref(c.variables);
    return code;
}
