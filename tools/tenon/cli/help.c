/* Help at the terminal, from the command table. */
#include "cli/cli.h"
#include "cli/term.h"

#include <string.h>

const char *const section_titles[SECTION_COUNT] = {
    [SECTION_USE] = "Use a model",           [SECTION_FILES] = "Model files", [SECTION_TEXT] = "Text and tokens",
    [SECTION_MEMORY] = "Memory and devices", [SECTION_ABOUT] = "About",
};

const struct command *command_find(const char *name) {
    for (int i = 0; command_table[i]; i++)
        if (strcmp(command_table[i]->name, name) == 0) return command_table[i];
    return NULL;
}

static void print_title(FILE *out) {
    fprintf(out, "%stenon%s %s: a tensor runtime that plans every byte before anything runs\n\n",
            style(out, STYLE_BOLD), style(out, STYLE_NONE), tn_version());
}

void help_start(FILE *out) {
    static const struct {
        const char *command, *line, *what;
    } first[] = {
        {"run", "tenon run", "write a story with the bundled model"},
        {"run", "tenon run model.gguf -p \"Dear\"", "continue a text"},
        {"chat", "tenon chat model.gguf", "talk with a model"},
        {"serve", "tenon serve model.gguf", "chat in a web UI; HTTP API for programs"},
        {"plan", "tenon plan model.gguf -c 32768", "show memory needed and whether it fits"},
        {"quantize", "tenon quantize a.gguf b.gguf Q4_K_M", "make a model smaller"},
    };
    const char *bold = style(out, STYLE_BOLD), *plain = style(out, STYLE_NONE);
    print_title(out);
    fprintf(out, "%sFirst steps%s\n", bold, plain);
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        if (command_find(first[i].command))
            fprintf(out, "  %s%-37s%s %s\n", style(out, STYLE_CYAN), first[i].line, plain, first[i].what);
    fprintf(out, "\n%sCommands%s\n", bold, plain);
    for (int section = 0; section < SECTION_COUNT; section++) {
        bool titled = false;
        for (int i = 0; command_table[i]; i++) {
            if ((int)command_table[i]->section != section) continue;
            if (!titled) fprintf(out, "  %-19s%s", section_titles[section], style(out, STYLE_CYAN));
            titled = true;
            fprintf(out, " %s", command_table[i]->name);
        }
        if (titled) fprintf(out, "%s\n", plain);
    }
    fprintf(out, "\ntenon help               list all commands with a summary\n"
                 "tenon COMMAND --help     explain a command, with examples\n");
}

void help_commands(FILE *out) {
    const char *bold = style(out, STYLE_BOLD), *plain = style(out, STYLE_NONE);
    print_title(out);
    fprintf(out, "%sUsage:%s tenon COMMAND [OPTIONS] [ARGUMENTS]\n", bold, plain);
    for (int section = 0; section < SECTION_COUNT; section++) {
        bool titled = false;
        for (int i = 0; command_table[i]; i++) {
            if ((int)command_table[i]->section != section) continue;
            if (!titled) fprintf(out, "\n%s%s%s\n", bold, section_titles[section], plain);
            titled = true;
            fprintf(out, "  %s%-12s%s %s\n", style(out, STYLE_CYAN), command_table[i]->name, plain,
                    command_table[i]->summary);
        }
    }
    fprintf(out, "\ntenon COMMAND --help explains a command and shows examples.\n");
}

/* Prints text wrapped at the terminal's width; the first line starts at column `column`, further ones at `indent`. */
static void print_wrapped(FILE *out, const char *text, int column, int indent) {
    int width = term_width(out) < 100 ? term_width(out) : 100;
    bool fresh = true;
    while (*text) {
        if (*text == '\n') {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
            text++;
            continue;
        }
        int length = (int)strcspn(text, " \n"), letters = 0;
        for (int i = 0; i < length; i++) letters += ((unsigned char)text[i] & 0xC0) != 0x80;
        bool first = column == indent || fresh;
        if (!first && column + 1 + letters >= width) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
        } else if (!first) {
            fputc(' ', out);
            column++;
        }
        fprintf(out, "%.*s", length, text);
        column += letters;
        fresh = false;
        text += length;
        if (*text == ' ') text++;
    }
    fputc('\n', out);
}

struct listing {
    FILE *out;
    const struct option_group *group;
};

enum { HELP_COLUMN = 30 };

static void list_option(void *user, const struct option_group *group, const struct option *option) {
    struct listing *l = user;
    const char *bold = style(l->out, STYLE_BOLD), *plain = style(l->out, STYLE_NONE);
    if (group != l->group) fprintf(l->out, "\n%s%s%s\n", bold, group->title, plain);
    l->group = group;
    char left[160];
    bool on_by_default = option->kind == OPTION_FLAG && option->fallback && strcmp(option->fallback, "on") == 0;
    int used = option->letter ? snprintf(left, sizeof left, "  -%s, ", option->letter)
                              : snprintf(left, sizeof left, "      ");
    used += snprintf(left + used, sizeof left - (size_t)used, "--%s%s%s%s", on_by_default ? "[no-]" : "",
                     option->name, option->value ? " " : "", option->value ? option->value : "");
    fprintf(l->out, "%s%s%s", style(l->out, STYLE_CYAN), left, plain);
    if (used >= HELP_COLUMN - 1) {
        fputc('\n', l->out);
        used = 0;
    }
    fprintf(l->out, "%*s", HELP_COLUMN - used, "");
    char text[1024];
    int n = snprintf(text, sizeof text, "%s", option->help);
    if (option->choices) n += snprintf(text + n, sizeof text - (size_t)n, ": %s", option->choices);
    if (option->fallback && option->kind != OPTION_FLAG)
        n += snprintf(text + n, sizeof text - (size_t)n, " (default %s)", option->fallback);
    if (option->repeats) n += snprintf(text + n, sizeof text - (size_t)n, "; may be repeated");
    if (option->aliases) n += snprintf(text + n, sizeof text - (size_t)n, "; also %s", option->aliases);
    if (option->env) snprintf(text + n, sizeof text - (size_t)n, " [%s]", option->env);
    print_wrapped(l->out, text, HELP_COLUMN, HELP_COLUMN);
}

void help_command(FILE *out, const struct command *command) {
    const char *bold = style(out, STYLE_BOLD), *plain = style(out, STYLE_NONE);
    fprintf(out, "%stenon %s%s: %s\n\n%sUsage:%s tenon %s [OPTIONS]%s%s\n", bold, command->name, plain,
            command->summary, bold, plain, command->name, command->arguments ? " " : "",
            command->arguments ? command->arguments : "");
    if (command->details) {
        fputc('\n', out);
        print_wrapped(out, command->details, 0, 0);
    }
    struct listing l = {out, NULL};
    options_visit(command, list_option, &l);
    if (command->exit_codes) {
        fprintf(out, "\n%sExit codes%s\n  ", bold, plain);
        print_wrapped(out, command->exit_codes, 2, 2);
    }
    if (command->examples) {
        fprintf(out, "\n%sExamples%s\n  ", bold, plain);
        for (const char *p = command->examples; *p; p++) {
            fputc(*p, out);
            if (*p == '\n' && p[1]) fputs("  ", out);
        }
        if (command->examples[strlen(command->examples) - 1] != '\n') fputc('\n', out);
    }
}
