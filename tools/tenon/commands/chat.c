/* tenon chat: a conversation at the terminal, by the model's own template. */
#include "cli/line_input.h"
#include "cli/term.h"
#include "cli/text_input.h"
#include "engine/context_shift.h"
#include "engine/dialog.h"
#include "engine/loaded_model.h"
#include "engine/options.h"

#include <stdlib.h>
#include <string.h>

struct chat {
    struct loaded_model loaded;
    struct dialog dialog;
    struct line_reader *lines;
    bool quit;
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

static void do_save(struct chat *c, const char *path) {
    if (!*path)
        fail("which file? /save FILE");
    else if (dialog_save(&c->dialog, path) == EXIT_OK)
        note("(%zu messages saved to %s)", json_array_size(c->dialog.messages), path);
}

static void do_load(struct chat *c, const char *path) {
    if (!*path)
        fail("which file? /load FILE");
    else if (dialog_load(&c->dialog, path) == EXIT_OK)
        note("(%zu messages loaded from %s)", json_array_size(c->dialog.messages), path);
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

static void do_set(struct chat *c, const char *argument) {
    struct dialog *d = &c->dialog;
    char name[64], why[256];
    size_t length = strcspn(argument, " =");
    const char *value = argument + length + strspn(argument + length, " =");
    if (!*argument) {
        printf("  %-18s %lld\n", "n", (long long)d->limit);
        sampling_print(stdout, &d->sampling);
        return;
    }
    snprintf(name, sizeof name, "%.*s", (int)length, argument);
    for (char *p = name; *p; p++) *p = *p == '_' ? '-' : *p;
    if (strcmp(name, "n") == 0 || strcmp(name, "predict") == 0) {
        char *end;
        long long limit = strtoll(value, &end, 10);
        if (!*value || *end)
            fail("n takes a whole number, not \"%s\"", value);
        else
            d->limit = limit;
        return;
    }
    if (!sampling_set(&d->sampling, name, value, why, sizeof why)) {
        fail("%s; /set alone lists the settings", why);
        return;
    }
    tn_sampler_free(d->sampler);
    d->sampler = NULL;
    note("(%s = %s)", name, value);
}

static const struct chat_command {
    const char *name, *argument, *help;
    void (*run)(struct chat *c, const char *argument);
} commands[] = {
    {"/help", "", "this list", do_help},
    {"/reset", "", "start a new conversation, keep the system message", do_reset},
    {"/regen", "", "answer the last message again", do_regen},
    {"/system", "[TEXT]", "show or set the system message, - for none", do_system},
    {"/set", "[NAME VALUE]", "show or change settings: temp, top-k, seed, n …", do_set},
    {"/stats", "", "tokens, speed and memory", do_stats},
    {"/save", "FILE", "save the conversation to a file", do_save},
    {"/load", "FILE", "load a conversation from a file", do_load},
    {"/quit", "", "leave; so does Ctrl-D", do_quit},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void do_help(struct chat *c, const char *argument) {
    (void)c;
    (void)argument;
    for (int i = 0; i < COMMANDS; i++)
        printf("  %s%-8s%s %-13s %s\n", style(stdout, STYLE_CYAN), commands[i].name, style(stdout, STYLE_NONE),
               commands[i].argument, commands[i].help);
    printf("A line that ends in \\ continues on the next, as with Alt-Enter. Ctrl-C interrupts a reply.\n");
}

/* Runs "/name argument". */
static void run_command(struct chat *c, const char *line) {
    size_t length = strcspn(line, " \n");
    const char *argument = line + length + strspn(line + length, " \n"), *similar = NULL;
    int best = 3;
    char word[64];
    if (strncmp(line, "/exit", length) == 0 && length == 5) line = "/quit";
    for (int i = 0; i < COMMANDS; i++) {
        if (strlen(commands[i].name) == length && memcmp(commands[i].name, line, length) == 0) {
            commands[i].run(c, argument);
            return;
        }
        snprintf(word, sizeof word, "%.*s", (int)length, line);
        int distance = edit_distance(commands[i].name, word);
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

/* A line that begins with / and a letter is a command, any other a message. */
static void handle_line(struct chat *c, const char *text) {
    if (!text[strspn(text, " \t\n")]) return;
    bool command = text[0] == '/' && ((text[1] >= 'a' && text[1] <= 'z') || (text[1] >= 'A' && text[1] <= 'Z'));
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
        handle_line(c, text);
        free(text);
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

static int hold_conversation(struct chat *c, const struct args *args, const char *path) {
    static const char *words[COMMANDS + 1];
    char *template = NULL, *first = NULL;
    int code = read_text_option(args, "chat-template", "chat-template-file", &template);
    if (!code) code = read_text_option(args, "prompt", "file", &first);
    if (!code) code = dialog_open(&c->dialog, args, c->loaded.model, c->loaded.session, template);
    if (code) goto out;
    for (int i = 0; i < COMMANDS; i++) words[i] = commands[i].name;
    sampling_params(args, &c->dialog.sampling);
    c->dialog.limit = args_int(args, "predict");
    c->dialog.shifts = context_shift_wanted(args, c->loaded.session);
    c->dialog.keep = (int32_t)args_int(args, "keep");
    c->dialog.variables = args_text(args, "chat-template-kwargs");
    if ((code = chat_format_from(args, &c->dialog.format))) goto out;
    const char *system = args_text(args, "system");
    if (system && !dialog_set_system(&c->dialog, system)) code = fail("the system message is not valid UTF-8");
    if (!code && !(c->lines = line_open(words))) code = fail("out of memory");
    if (code) goto out;
    greet(c, path);
    if (first) {
        if (line_is_terminal(c->lines))
            printf("%s>%s %s\n", style(stdout, STYLE_GREEN), style(stdout, STYLE_NONE), first);
        handle_line(c, first);
    }
    converse(c);
out:
    free(template);
    free(first);
    return code;
}

static int run_chat(const struct args *args) {
    char buffer[4096];
    const char *path = find_model(args, buffer, sizeof buffer);
    tn_session_params params;
    struct chat c = {0};
    if (!path) return EXIT_ERROR;
    int code = session_params_from(args, &params);
    if (code || (code = loaded_model_open(args, path, &params, &c.loaded))) return code;
    code = hold_conversation(&c, args, path);
    if (!code && line_is_terminal(c.lines) && c.dialog.cached.count) print_closing_line(&c.loaded);
    line_close(c.lines);
    dialog_close(&c.dialog);
    loaded_model_close(&c.loaded);
    return code;
}

static const struct option options[] = {
    {.name = "system",
     .letter = "sys",
     .aliases = "--system-prompt",
     .value = "TEXT",
     .kind = OPTION_TEXT,
     .help = "the system message"},
    {.name = "prompt", .letter = "p", .value = "TEXT", .kind = OPTION_TEXT, .help = "the first message"},
    {.name = "file", .letter = "f", .value = "FILE", .kind = OPTION_TEXT, .help = "read the first message from FILE"},
    {.name = "predict",
     .letter = "n",
     .aliases = "--n-predict",
     .value = "N",
     .kind = OPTION_INT,
     .min = -1,
     .max = 1e9,
     .fallback = "1024",
     .help = "max tokens of a reply, -1 for no limit",
     .env = "LLAMA_ARG_N_PREDICT"},
    OPTIONS_CONTEXT_SHIFT("on", "-1"),
    {.name = "chat-template-kwargs",
     .value = "JSON",
     .kind = OPTION_TEXT,
     .help = "more variables for the template, e.g. '{\"enable_thinking\": false}'",
     .env = "LLAMA_ARG_CHAT_TEMPLATE_KWARGS LLAMA_CHAT_TEMPLATE_KWARGS"},
    {0},
};
static const struct option_group *const groups[] = {&model_options, &template_options, &sampling_options, NULL};

const struct command command_chat = {
    .name = "chat",
    .summary = "talk with a model",
    .arguments = "[MODEL]",
    .options = options,
    .groups = groups,
    .details =
        "Lines can be edited, and their history is kept between conversations. A line that ends in a backslash "
        "continues on the next, Alt-Enter starts a new line, and pasted lines stay together. Ctrl-C interrupts a "
        "reply. When the context is full, the oldest messages are dropped, unless --no-context-shift is given. /help "
        "lists more commands.\n\n"
        "If standard input is not a terminal, every line is a message, and only replies go to standard output.",
    .examples = "tenon chat model.gguf\n"
                "tenon chat model.gguf -sys \"You answer in rhymes.\" --temp 0.5\n"
                "tenon chat model.gguf < questions.txt > answers.txt\n"
                "tenon chat model.gguf -j '{\"type\": \"object\"}'        # replies in JSON",
    .section = SECTION_USE,
    .max_arguments = 1,
    .run = run_chat,
};
