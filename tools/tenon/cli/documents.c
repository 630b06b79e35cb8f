/* The command reference in Markdown and the manual page, from the command table. */
#include "cli/cli.h"

#include <string.h>

typedef void (*text_writer)(FILE *out, const char *text, size_t length);

/* The text about an option after its name, the same in both documents. */
static void describe_option(FILE *out, const struct option *option, text_writer write) {
    write(out, option->help, strlen(option->help));
    if (option->choices) {
        fputs(": ", out);
        write(out, option->choices, strlen(option->choices));
    }
    if (option->fallback && option->kind != OPTION_FLAG) {
        fputs(". Default: ", out);
        write(out, option->fallback, strlen(option->fallback));
    }
    if (option->repeats) fputs(". May be repeated", out);
    if (option->aliases) {
        fputs(". Also: ", out);
        write(out, option->aliases, strlen(option->aliases));
    }
    if (option->env) {
        fputs(". Environment: ", out);
        write(out, option->env, strlen(option->env));
    }
}

static bool on_by_default(const struct option *option) {
    return option->kind == OPTION_FLAG && option->fallback && strcmp(option->fallback, "on") == 0;
}

/* ---- Markdown ---- */

static void write_markdown(FILE *out, const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        if (strchr("|<>*_", text[i])) fputc('\\', out);
        fputc(text[i], out);
    }
}

struct markdown {
    FILE *out;
    bool common;                      /* the options of all commands are listed once, at the top */
    const struct option_group *group; /* whose heading was written last */
};

static void markdown_option(void *user, const struct option_group *group, const struct option *option) {
    struct markdown *m = user;
    if ((group == &options_common) != m->common) return;
    if (group != m->group) fprintf(m->out, "\n| %s | |\n|---|---|\n", group->title);
    m->group = group;
    fputs("| `", m->out);
    if (option->letter) fprintf(m->out, "-%s`, `", option->letter);
    fprintf(m->out, "--%s%s%s%s` | ", on_by_default(option) ? "[no-]" : "", option->name, option->value ? " " : "",
            option->value ? option->value : "");
    describe_option(m->out, option, write_markdown);
    fputs(" |\n", m->out);
}

static void markdown_command(FILE *out, const struct command *command) {
    fprintf(out, "\n### tenon %s\n\n", command->name);
    write_markdown(out, command->summary, strlen(command->summary));
    fprintf(out, "\n\n```\ntenon %s [OPTIONS]%s%s\n```\n", command->name, command->arguments ? " " : "",
            command->arguments ? command->arguments : "");
    if (command->details) {
        fputc('\n', out);
        write_markdown(out, command->details, strlen(command->details));
        fputc('\n', out);
    }
    struct markdown m = {out, false, NULL};
    options_visit(command, markdown_option, &m);
    if (command->exit_codes) {
        fputs("\nExit codes: ", out);
        write_markdown(out, command->exit_codes, strlen(command->exit_codes));
        fputc('\n', out);
    }
    if (command->examples) {
        size_t length = strlen(command->examples);
        fprintf(out, "\nExamples:\n\n```sh\n%s%s```\n", command->examples,
                length && command->examples[length - 1] == '\n' ? "" : "\n");
    }
}

void help_markdown(FILE *out) {
    fputs("# The tenon program\n\nGenerated from the command table by `make docs`: edit `tools/tenon/commands/*.c`, "
          "not this page.\n\nExit codes are 0 for success, 1 for failure, 2 for wrong usage and 130 after Ctrl-C, "
          "unless "
          "a command says otherwise.\nMessages and progress go to standard error, results to standard output. Every "
          "command takes:\n",
          out);
    struct markdown m = {out, true, NULL};
    options_visit(command_find("help"), markdown_option, &m);
    for (int section = 0; section < SECTION_COUNT; section++) {
        bool titled = false;
        for (int i = 0; command_table[i]; i++) {
            if ((int)command_table[i]->section != section) continue;
            if (!titled) fprintf(out, "\n## %s\n", section_titles[section]);
            titled = true;
            markdown_command(out, command_table[i]);
        }
    }
}

/* ---- Manual page ---- */

/* troff interprets '\' anywhere and '.' or '\'' at the start of a line, and prints an unescaped '-' as a hyphen. A
 * list without spaces may be broken after a comma. */
static void write_man(FILE *out, const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        bool line_start = i == 0 || text[i - 1] == '\n';
        if (line_start && (text[i] == '.' || text[i] == '\'')) fputs("\\&", out);
        if (text[i] == '\\')
            fputs("\\e", out);
        else if (text[i] == '-')
            fputs("\\-", out);
        else if (text[i] == ',' && i + 1 < length && text[i + 1] != ' ' && text[i + 1] != '\n')
            fputs(",\\:", out);
        else
            fputc(text[i], out);
    }
}

static void man_text(FILE *out, const char *text) { write_man(out, text, strlen(text)); }

struct man {
    FILE *out;
    bool common; /* write the common options, or all others */
};

static void man_option(void *user, const struct option_group *group, const struct option *option) {
    struct man *m = user;
    if ((group == &options_common) != m->common) return;
    fputs(".TP\n\\fB", m->out);
    if (option->letter) {
        fputs("\\-", m->out);
        man_text(m->out, option->letter);
        fputs("\\fR, \\fB", m->out);
    }
    fputs("\\-\\-", m->out);
    if (on_by_default(option)) fputs("[no\\-]", m->out);
    man_text(m->out, option->name);
    fputs("\\fR", m->out);
    if (option->value) {
        fputs(" \\fI", m->out);
        man_text(m->out, option->value);
        fputs("\\fR", m->out);
    }
    fputc('\n', m->out);
    describe_option(m->out, option, write_man);
    fputs(".\n", m->out);
}

static void man_command(FILE *out, const struct command *command) {
    fputs(".SS \"tenon ", out);
    man_text(out, command->name);
    fputs("\"\n", out);
    man_text(out, command->summary);
    fputs(".\n.PP\n\\fBtenon ", out);
    man_text(out, command->name);
    fputs("\\fR [\\fIOPTIONS\\fR]", out);
    if (command->arguments) {
        fputs(" \\fI", out);
        man_text(out, command->arguments);
        fputs("\\fR", out);
    }
    fputc('\n', out);
    for (const char *paragraph = command->details; paragraph && *paragraph;) {
        const char *end = strstr(paragraph, "\n\n");
        size_t length = end ? (size_t)(end - paragraph) : strlen(paragraph);
        fputs(".PP\n", out);
        write_man(out, paragraph, length);
        fputc('\n', out);
        paragraph += length + (end ? 2 : 0);
    }
    struct man m = {out, false};
    options_visit(command, man_option, &m);
    if (command->exit_codes) {
        fputs(".PP\nExit codes: ", out);
        man_text(out, command->exit_codes);
        fputc('\n', out);
    }
    if (command->examples) {
        fputs(".PP\n.nf\n", out);
        size_t length = strlen(command->examples);
        man_text(out, command->examples);
        fputs(length && command->examples[length - 1] == '\n' ? ".fi\n" : "\n.fi\n", out);
    }
}

void help_man(FILE *out) {
    fprintf(out, ".TH TENON 1 \"\" \"tenon %s\" \"User Commands\"\n", tn_version());
    /* Left-aligned and not hyphenated, so that names of options and files stay whole. */
    fputs(".ad l\n.nh\n", out);
    fputs(".SH NAME\ntenon \\- tensor runtime that plans every byte before anything runs\n"
          ".SH SYNOPSIS\n\\fBtenon\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR] [\\fIARGUMENTS\\fR]\n.SH COMMANDS\n",
          out);
    for (int section = 0; section < SECTION_COUNT; section++)
        for (int i = 0; command_table[i]; i++)
            if ((int)command_table[i]->section == section) man_command(out, command_table[i]);
    fputs(".SH COMMON OPTIONS\n", out);
    struct man m = {out, true};
    options_visit(command_find("help"), man_option, &m);
    fputs(
        ".SH EXIT STATUS\n0 success, 1 failure, 2 wrong usage, 130 after Ctrl\\-C, unless a command says otherwise.\n"
        ".SH ENVIRONMENT\nThe descriptions of options name the variables that set them. NO_COLOR turns colour off. "
        "TENON_LOG sets how much is logged: debug, info, warn, error or off.\n",
        out);
}
