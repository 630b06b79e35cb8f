/* "Did you mean …?": the closest command or option by edit distance, and what does the work of other programs'
 * commands. */
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_WORD = 48 };

int edit_distance(const char *a, const char *b) {
    size_t m = strlen(a), n = strlen(b);
    if (m > MAX_WORD || n > MAX_WORD) return MAX_WORD;
    /* Three rows suffice for insertion, deletion, substitution and the swap of adjacent letters. */
    int rows[3][MAX_WORD + 1];
    for (size_t j = 0; j <= n; j++) rows[0][j] = (int)j;
    for (size_t i = 1; i <= m; i++) {
        int *now = rows[i % 3], *before = rows[(i - 1) % 3], *earlier = rows[(i + 1) % 3];
        now[0] = (int)i;
        for (size_t j = 1; j <= n; j++) {
            int best = before[j - 1] + (a[i - 1] != b[j - 1]);
            if (before[j] + 1 < best) best = before[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped && earlier[j - 2] + 1 < best) best = earlier[j - 2] + 1;
            now[j] = best;
        }
    }
    return rows[m % 3][n];
}

/* Edits between a word and a candidate; -1 for too many. One letter may differ, and one more of every four; a prefix
 * of at least three letters counts as exact. */
static int typo_distance(const char *word, const char *candidate) {
    size_t length = strlen(word);
    if (length >= 3 && strncmp(word, candidate, length) == 0) return 0;
    int distance = edit_distance(word, candidate);
    return distance <= 1 + (int)length / 4 && distance < (int)length ? distance : -1;
}

const char *suggest_command(const char *word) {
    const char *best = NULL;
    int best_distance = MAX_WORD;
    for (int i = 0; command_table[i]; i++) {
        int distance = typo_distance(word, command_table[i]->name);
        if (distance >= 0 && distance < best_distance) {
            best = command_table[i]->name;
            best_distance = distance;
        }
    }
    return best;
}

const char *replacement_of(const char *word) {
    static const char *const table[][2] = {
        {"cli", "tenon chat to talk with a model, tenon run to continue a text"},
        {"completion", "tenon run"},
        {"generate", "tenon run"},
        {"server", "tenon serve"},
        {"embedding", "tenon embed"},
        {"gguf-split", "tenon split and tenon merge"},
        {"export-lora", "tenon lora"},
        {"fit-params", "tenon plan"},
        {"download", "tenon pull"},
        {"list", "tenon pull --list"},
        {"ls", "tenon pull --list"},
        {"show", "tenon inspect"},
        {"ps", "tenon serve: GET /models and the web UI name the loaded models"},
        {"stop", "Ctrl-C in the terminal of tenon serve, or --sleep-idle-seconds"},
        {"rm", "rm on a file that tenon pull --list names"},
        {"create", "tenon convert and tenon quantize"},
    };
    if (strncmp(word, "llama-", 6) == 0) word += 6;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(word, table[i][0]) == 0) return table[i][1];
    for (int i = 0; command_table[i]; i++)
        if (strcmp(word, command_table[i]->name) == 0) return command_table[i]->name;
    return NULL;
}

struct option_search {
    const char *word;
    int distance;
    char *out;
    size_t size;
};

/* Edits between two spellings of options; -1 for too many. Dashes and "no-" must be the same in both, and do not
 * count as letters in common: "--no-mmap" is not near "--no-help". */
static int option_distance(const char *word, const char *spelling) {
    size_t same = word[0] == '-' && word[1] == '-' ? (strncmp(word, "--no-", 5) == 0 ? 5 : 2) : 1;
    if (strncmp(word, spelling, same) != 0) return -1;
    const char *a = word + same, *b = spelling + same;
    const size_t length = strlen(a);
    if (length >= 4 && strncmp(a, b, length) == 0) return 0;
    int distance = edit_distance(a, b);
    return length >= 3 && distance <= (length < 6 ? 1 : 2) ? distance : -1;
}

static void consider_spelling(struct option_search *s, const char *spelling) {
    int distance = option_distance(s->word, spelling);
    if (distance < 0 || distance >= s->distance) return;
    s->distance = distance;
    snprintf(s->out, s->size, "%s", spelling);
}

static void consider_option(void *user, const struct option_group *group, const struct option *option) {
    (void)group;
    char spelling[MAX_WORD];
    snprintf(spelling, sizeof spelling, "--%s", option->name);
    consider_spelling(user, spelling);
    if (option->kind == OPTION_FLAG && option->fallback) {
        snprintf(spelling, sizeof spelling, "--no-%s", option->name);
        consider_spelling(user, spelling);
    }
    if (option->letter) {
        snprintf(spelling, sizeof spelling, "-%s", option->letter);
        consider_spelling(user, spelling);
    }
    for (const char *alias = option->aliases; alias && *alias;) {
        size_t n = strcspn(alias, " ");
        snprintf(spelling, sizeof spelling, "%.*s", (int)n, alias);
        consider_spelling(user, spelling);
        alias += n + strspn(alias + n, " ");
    }
}

bool suggest_option(const struct command *command, const char *word, char *out, size_t size) {
    char plain[MAX_WORD];
    snprintf(plain, sizeof plain, "%.*s", (int)strcspn(word, "="), word);
    struct option_search s = {plain, MAX_WORD, out, size};
    options_visit(command, consider_option, &s);
    return s.distance < MAX_WORD;
}
