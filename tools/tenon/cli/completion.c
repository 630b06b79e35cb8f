/* Shell completions for bash, zsh and fish, from the command table. */
#include "cli/cli.h"

#include <string.h>

/* Writes text in single quotes, inside which only the quote itself must be escaped. */
static void shell_quote(FILE *out, const char *text) {
    fputc('\'', out);
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\''", out);
        else
            fputc(*text, out);
    }
    fputc('\'', out);
}

struct completion_pass {
    FILE *out;
    const struct command *command;
};

/* ---- bash ---- */

static void bash_option(void *user, const struct option_group *group, const struct option *option) {
    (void)group;
    struct completion_pass *p = user;
    fprintf(p->out, " --%s", option->name);
    if (option->letter) fprintf(p->out, " -%s", option->letter);
    if (option->kind == OPTION_FLAG && option->fallback) fprintf(p->out, " --no-%s", option->name);
}

static void bash_choices(void *user, const struct option_group *group, const struct option *option) {
    (void)group;
    struct completion_pass *p = user;
    if (!option->choices) return;
    fprintf(p->out, "    '%s --%s'", p->command->name, option->name);
    if (option->letter) fprintf(p->out, "|'%s -%s'", p->command->name, option->letter);
    fprintf(p->out, ") COMPREPLY=($(compgen -W ");
    shell_quote(p->out, option->choices);
    fprintf(p->out, " -- \"$word\")); return ;;\n");
}

static void bash_completion(FILE *out) {
    fputs("# bash completion for tenon\n_tenon() {\n  local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} "
          "options=\n  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    COMPREPLY=($(compgen -W '",
          out);
    for (int i = 0; command_table[i]; i++) fprintf(out, "%s%s", i ? " " : "", command_table[i]->name);
    fputs("' -- \"$word\"))\n    return\n  fi\n  case \"$command ${COMP_WORDS[COMP_CWORD-1]}\" in\n", out);
    for (int i = 0; command_table[i]; i++)
        options_visit(command_table[i], bash_choices, &(struct completion_pass){out, command_table[i]});
    fputs("  esac\n  case \"$command\" in\n", out);
    for (int i = 0; command_table[i]; i++) {
        fprintf(out, "    %s) options='", command_table[i]->name);
        options_visit(command_table[i], bash_option, &(struct completion_pass){out, command_table[i]});
        fputs("' ;;\n", out);
    }
    fputs("  esac\n  if [[ $word == -* ]]; then COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n"
          "  else COMPREPLY=($(compgen -f -- \"$word\")); fi\n}\ncomplete -o filenames -F _tenon tenon\n",
          out);
}

/* ---- zsh ---- */

/* ':', brackets and backslashes in a description have a meaning for _arguments. */
static void zsh_text(FILE *out, const char *text) {
    for (; *text; text++) {
        if (strchr(":[]\\", *text)) fputc('\\', out);
        if (*text == '\'')
            fputs("'\\''", out);
        else
            fputc(*text, out);
    }
}

static void zsh_spelling(struct completion_pass *p, const char *dashes, const char *name,
                         const struct option *option) {
    fprintf(p->out, " \\\n        '%s%s%s%s[", option->repeats ? "*" : "", dashes, name,
            option->value && dashes[1] ? "=" : "");
    zsh_text(p->out, option->help);
    fputc(']', p->out);
    if (option->value) {
        fputc(':', p->out);
        zsh_text(p->out, option->value);
        if (option->choices)
            fprintf(p->out, ":(%s)", option->choices);
        else
            fputs(strstr(option->value, "FILE") ? ":_files" : ": ", p->out);
    }
    fputc('\'', p->out);
}

static void zsh_option(void *user, const struct option_group *group, const struct option *option) {
    (void)group;
    zsh_spelling(user, "--", option->name, option);
    if (option->letter) zsh_spelling(user, "-", option->letter, option);
}

static void zsh_completion(FILE *out) {
    fputs("#compdef tenon\n# zsh completion for tenon\n_tenon() {\n  if (( CURRENT == 2 )); then\n    local -a "
          "commands=(\n",
          out);
    for (int i = 0; command_table[i]; i++) {
        fprintf(out, "      '%s:", command_table[i]->name);
        zsh_text(out, command_table[i]->summary);
        fputs("'\n", out);
    }
    fputs("    )\n    _describe command commands\n    return\n  fi\n  local name=$words[2]\n  shift words\n  (( "
          "CURRENT-- ))\n"
          "  case $name in\n",
          out);
    for (int i = 0; command_table[i]; i++) {
        fprintf(out, "    %s)\n      _arguments", command_table[i]->name);
        options_visit(command_table[i], zsh_option, &(struct completion_pass){out, command_table[i]});
        fputs(" \\\n        '*:file:_files' ;;\n", out);
    }
    fputs("  esac\n}\n_tenon \"$@\"\n", out);
}

/* ---- fish ---- */

static void fish_option(void *user, const struct option_group *group, const struct option *option) {
    (void)group;
    struct completion_pass *p = user;
    fprintf(p->out, "complete -c tenon -n '__fish_seen_subcommand_from %s' -l %s", p->command->name, option->name);
    /* fish distinguishes one-letter (-s) from longer single-dash names (-o). */
    if (option->letter) fprintf(p->out, " -%c %s", option->letter[1] ? 'o' : 's', option->letter);
    if (option->choices) {
        fputs(" -x -a ", p->out);
        shell_quote(p->out, option->choices);
    } else if (option->value) {
        fputs(strstr(option->value, "FILE") ? " -r" : " -x", p->out);
    }
    fputs(" -d ", p->out);
    shell_quote(p->out, option->help);
    fputc('\n', p->out);
}

static void fish_completion(FILE *out) {
    fputs("# fish completion for tenon\n", out);
    for (int i = 0; command_table[i]; i++) {
        fprintf(out, "complete -c tenon -n __fish_use_subcommand -f -a %s -d ", command_table[i]->name);
        shell_quote(out, command_table[i]->summary);
        fputc('\n', out);
    }
    for (int i = 0; command_table[i]; i++)
        options_visit(command_table[i], fish_option, &(struct completion_pass){out, command_table[i]});
}

bool help_completion(FILE *out, const char *shell) {
    if (strcmp(shell, "bash") == 0)
        bash_completion(out);
    else if (strcmp(shell, "zsh") == 0)
        zsh_completion(out);
    else if (strcmp(shell, "fish") == 0)
        fish_completion(out);
    else
        return false;
    return true;
}
