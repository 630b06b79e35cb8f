/* Speed of tokenizers in MB/s, on text and on adversarial input.
 *
 *     build/bench/tokenizer [VOCAB.gguf [TEXT-FILE]] [--megabytes N]
 *
 * Times are processor times: encoding uses one thread, and other work on the machine does not count. Without a file,
 * the text consists of random words of the vocabulary with a skewed distribution, punctuation and line ends. */
#include "tenon/tokenizer.h"
#include "tenon/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t random_state = 1;
static uint64_t next_random(void) {
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static double cpu_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void fill(char *out, size_t size, const char *unit) {
    size_t length = strlen(unit);
    for (size_t i = 0; i < size; i++) out[i] = unit[i % length];
}

/* Draws early tokens, which are the frequent ones, more often. */
static void fill_words(char *out, size_t size, const tn_tokenizer *t) {
    double n = tn_tokenizer_size(t);
    size_t at = 0;
    while (at < size) {
        double u = (double)(next_random() >> 11) * 0x1p-53;
        tn_token id = (tn_token)((u * u * u) * n);
        size_t length;
        const char *piece = tn_token_piece(t, id, &length);
        if (!piece || tn_token_get_type(t, id) != TN_TOKEN_NORMAL) continue;
        for (size_t i = 0; i < length && at < size; i++) out[at++] = piece[i];
        if (next_random() % 12 == 0 && at < size) out[at++] = '.';
        if (next_random() % 90 == 0 && at < size) out[at++] = '\n';
    }
}

static void measure(const tn_tokenizer *t, const char *name, const char *text, size_t size) {
    tn_tokens tokens = {0};
    double start = cpu_seconds();
    tn_status status = tn_tokenizer_encode(t, text, size, 0, &tokens);
    double seconds = cpu_seconds() - start;
    if (status != TN_OK)
        printf("%-24s %s\n", name, tn_error());
    else
        printf("%-24s %8.2f MB/s %8.3f s %10zu tokens\n", name, (double)size / seconds * 1e-6, seconds, tokens.count);
    fflush(stdout);
    tn_tokens_free(&tokens);
}

static const struct {
    const char *name, *unit;
} hostile[] = {
    {"one letter", "a"},
    {"spaces", " "},
    {"line ends", "\n"},
    {"digits", "7"},
    {"signs", "!"},
    {"capitals", "A"},
    {"emoji", "\xf0\x9f\x98\x80"},
    {"joined emoji", "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb"},
    {"one Chinese character", "\xe4\xb8\xad"},
    {"combining marks", "\xcc\x96\xcc\x81"},
    {"not UTF-8: ff", "\xff"},
    {"not UTF-8: cut", "\xe4\xb8"},
    {"mixed broken", "a\xff \xc3"},
    {"letters and spaces", "a "},
    {"tabs and spaces", "\t "},
    {"half a special token", "<|"},
    {"quotes", "'"},
};

int main(int argc, char **argv) {
    const char *model = NULL, *path = NULL;
    size_t size = 10000000;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--megabytes") && i + 1 < argc)
            size = (size_t)(atof(argv[++i]) * 1e6);
        else if (!model)
            model = argv[i];
        else
            path = argv[i];
    }
    if (!size) {
        fprintf(stderr, "usage: %s [VOCAB.gguf [TEXT-FILE]] [--megabytes N]\n", argv[0]);
        return 2;
    }
    if (!model) model = "models/tales.gguf"; /* relative to the root of the repository, as in `make bench` */
    tn_gguf *file;
    tn_tokenizer *t;
    if (tn_gguf_open(model, &(tn_gguf_params){.mode = TN_GGUF_META}, &file) != TN_OK) {
        fprintf(stderr, "%s\n", tn_error());
        return 1;
    }
    double start = cpu_seconds();
    if (tn_tokenizer_new(file, NULL, &t) != TN_OK) {
        fprintf(stderr, "%s\n", tn_error());
        return 1;
    }
    printf("%s: %d tokens, made in %.1f ms\n", model, tn_tokenizer_size(t), (cpu_seconds() - start) * 1e3);
    char *text = malloc(size);
    if (!text) return 1;
    if (path) {
        FILE *in = fopen(path, "rb");
        size_t have = in ? fread(text, 1, size, in) : 0;
        if (have == 0) {
            fprintf(stderr, "cannot read %s\n", path);
            return 1;
        }
        fclose(in);
        for (size_t i = have; i < size; i++) text[i] = text[i - have];
        measure(t, "the file", text, size);
    }
    fill_words(text, size, t);
    measure(t, "words", text, size);
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        fill(text, size, hostile[i].unit);
        measure(t, hostile[i].name, text, size);
    }
    for (size_t i = 0; i < size; i++) text[i] = (char)next_random();
    measure(t, "random bytes", text, size);
    for (size_t i = 0; i < size; i++) text[i] = (char)('a' + next_random() % 26);
    measure(t, "random letters", text, size);
    fill(text, size, " ");
    text[size - 1] = 'x';
    measure(t, "spaces and a letter", text, size);
    free(text);
    tn_tokenizer_free(t);
    tn_gguf_close(file);
    return 0;
}
