/* Cost of a grammar per token: bench/grammar [n_vocab | vocabulary.gguf]. Follows a document token by token and
 * computes the mask at each, with and without the mask cache. Times are processor times, so that other work on the
 * machine does not count. Every document is followed three times from an empty state and the minimum per mask is
 * used, because CPU caches are shared with other programs. */
#include "tenon/grammar.h"
#include "tenon/gguf.h"
#include "tenon/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double cpu_microseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static void check(tn_status status) {
    if (status == TN_OK) return;
    fprintf(stderr, "%s: %s\n", tn_status_name(status), tn_error());
    exit(1);
}

static uint64_t state = 1;
static uint32_t below(uint32_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % n;
}

/* A vocabulary that resembles large ones: all bytes, words with and without a leading space, numbers, runs of
 * punctuation and spaces, and characters beyond ASCII. */
static tn_pieces *make_vocabulary(size_t n) {
    static const char *syllables[] = {"th", "er", "in", "on",  "al", "re", "st", "ent", "ing", "a",  "o",  "e",
                                      "ti", "de", "co", "pro", "un", "ly", "s",  "ed",  "is",  "or", "me", "ne"};
    static const char *marks[] = {"\"", "{", "}", "[", "]",  ":", ",", ".", "\n",
                                  " ",  "(", ")", ";", "\\", "/", "-", "="};
    tn_piece *pieces = calloc(n, sizeof *pieces);
    char *text = malloc(n * 64), *at = text;
    if (!pieces || !text) exit(1);
    for (size_t i = 0; i < n; i++) {
        char *start = at;
        uint32_t kind = below(100);
        if (i < 256) {
            *at++ = (char)i;
        } else if (kind < 75) {
            if (below(2)) *at++ = ' ';
            for (uint32_t k = 1 + below(4); k > 0; k--) at = stpcpy(at, syllables[below(24)]);
            if (start[0] != ' ' && below(4) == 0) start[0] = (char)(start[0] - 32);
        } else if (kind < 80) {
            for (uint32_t k = 1 + below(3); k > 0; k--) *at++ = (char)('0' + below(10));
        } else if (kind < 90) {
            for (uint32_t k = 2 + below(5); k > 0; k--) at = stpcpy(at, marks[below(17)]);
        } else {
            for (uint32_t k = 1 + below(3); k > 0; k--) {
                uint32_t code = 0x4e00 + below(0x5000);
                *at++ = (char)(0xe0 | code >> 12);
                *at++ = (char)(0x80 | (code >> 6 & 63));
                *at++ = (char)(0x80 | (code & 63));
            }
        }
        pieces[i] = (tn_piece){start, (size_t)(at - start)};
    }
    tn_pieces *out;
    tn_token end = 0;
    check(tn_pieces_new(pieces, n, &end, 1, &out));
    free(pieces);
    free(text);
    return out;
}

static tn_pieces *read_vocabulary(const char *path) {
    tn_gguf *file;
    tn_tokenizer *tokenizer;
    tn_pieces *out;
    check(tn_gguf_open(path, NULL, &file));
    check(tn_tokenizer_new(file, NULL, &tokenizer));
    check(tn_pieces_from_tokenizer(tokenizer, &out));
    tn_tokenizer_free(tokenizer);
    tn_gguf_close(file);
    return out;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The longest allowed token that is a prefix of the rest of the text. */
static tn_token next_token(const tn_pieces *pieces, const uint64_t *mask, const char *rest) {
    tn_token best = -1;
    size_t length = 0, left = strlen(rest);
    for (size_t i = 0; i < tn_pieces_count(pieces); i++) {
        tn_piece p = tn_pieces_get(pieces, (tn_token)i);
        if (p.length <= length || p.length > left || memcmp(p.bytes, rest, p.length) != 0) continue;
        if (!(mask[i / 64] >> (i % 64) & 1)) continue;
        best = (tn_token)i;
        length = p.length;
    }
    return best;
}

enum { ROUNDS = 3, MASKS = 10000 };

/* One round. Returns the number of masks and updates their minimum times. */
static size_t round_through(const char *name, const tn_grammar_state_params *params, const char *text, double *times,
                            size_t *allowed) {
    tn_grammar_state *s;
    size_t n = 0;
    check(tn_grammar_state_new(params, &s));
    *allowed = 0;
    for (const char *rest = text; n < MASKS;) {
        const uint64_t *mask;
        double start = cpu_microseconds();
        check(tn_grammar_mask(s, &mask));
        double took = cpu_microseconds() - start;
        times[n] = took < times[n] ? took : times[n];
        n++;
        for (size_t i = 0; i < (tn_pieces_count(params->pieces) + 63) / 64; i++)
            *allowed += (size_t)__builtin_popcountll(mask[i]);
        if (!*rest) break;
        tn_token token = next_token(params->pieces, mask, rest);
        if (token < 0) {
            fprintf(stderr, "%s: no token for \"%.20s\"\n", name, rest);
            exit(1);
        }
        check(tn_grammar_accept_token(s, token));
        rest += tn_pieces_get(params->pieces, token).length;
    }
    tn_grammar_state_free(s);
    return n;
}

static void follow(const char *name, const char *gbnf, const char *text, const tn_pieces *pieces, bool remember) {
    tn_grammar *grammar;
    check(tn_grammar_new(gbnf, NULL, &grammar));
    tn_grammar_state_params params = {.grammar = grammar, .pieces = pieces, .masks = remember ? 0 : 1};
    static double times[MASKS];
    size_t n = 0, allowed;
    for (size_t i = 0; i < MASKS; i++) times[i] = 1e9;
    for (int round = 0; round < ROUNDS; round++) n = round_through(name, &params, text, times, &allowed);
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += times[i];
    qsort(times, n, sizeof *times, compare);
    printf("%-22s %-11s %4zu masks, %6zu tokens allowed: %8.1f mean %8.1f median %8.1f worst us\n", name,
           remember ? "cached" : "computed", n, allowed / n, sum / (double)n, times[n / 2], times[n - 1]);
    tn_grammar_free(grammar);
}

static void follow_schema(const char *name, const char *schema, const char *text, const tn_pieces *pieces,
                          bool remember) {
    char *gbnf;
    check(tn_schema_to_grammar(schema, &gbnf));
    follow(name, gbnf, text, pieces, remember);
    tn_free(gbnf);
}

int main(int argc, char **argv) {
    size_t n = argc > 1 ? strtoul(argv[1], NULL, 10) : 128000;
    uint64_t start = tn_time_ns();
    tn_pieces *pieces = argc > 1 && n == 0 ? read_vocabulary(argv[1]) : make_vocabulary(n < 256 ? 256 : n);
    printf("%zu pieces organised in %.1f ms\n", tn_pieces_count(pieces), (double)(tn_time_ns() - start) / 1e6);
    static const char *json =
        "{\"name\": \"Tenon\", \"tags\": [\"runtime\", \"tensors\", \"plans before it runs\"], \"size\": 12345,\n"
        "  \"nested\": {\"a\": [1, 2.5, -3e4, [true, false, null, {\"deep\": [[[\"in\"]]]}]], \"text\": \"a longer "
        "text, "
        "with some punctuation; numbers 1234 and escapes \\n \\u00e9, so that most masks are in strings\"}}";
    static const char *arithmetic = "root ::= (expr \"=\" \" \"? number \"\\n\")+\n"
                                    "expr ::= term ([-+*/] term)*\n"
                                    "term ::= number | \"(\" expr \")\"\n"
                                    "number ::= [0-9]+\n";
    static const char *counted = "root ::= \"\\\"\" [^\"]{0,300} \"\\\"\"\n";
    static const char *strings =
        "{\"type\": \"object\", \"properties\": {\"title\": {\"type\": \"string\", \"maxLength\": 2000}, "
        "\"when\": {\"type\": \"string\", \"format\": \"date\"}, \"code\": {\"type\": \"string\", \"pattern\": "
        "\"^[A-Z]{2}-[0-9]{3,8}$\"}, \"kind\": {\"enum\": [\"first\", \"second\", \"third\"]}, \"what\": {\"type\": "
        "\"string\", \"minLength\": 5, \"maxLength\": 200}, \"others\": {\"type\": \"object\", "
        "\"additionalProperties\": {\"type\": \"string\"}}}}";
    static const char *ambiguous = "root ::= (word \" \")* word \".\"\n"
                                   "word ::= [a-z]+ | [a-m] [a-z]* | part part? part? | [^ .]+\n"
                                   "part ::= [a-z] [a-z]? [a-z]? [a-z]?\n";
    for (int remember = 1; remember >= 0; remember--) {
        follow("JSON", tn_grammar_json(), json, pieces, remember);
        follow("arithmetic", arithmetic, "(12+34)*5-6/(7+(8*9))=1234\n", pieces, remember);
        follow("string of at most 300", counted, "\"this is a text with a bounded number of characters in it\"",
               pieces, remember);
        follow_schema("strings of a schema", strings,
                      "{\"title\": \"A short title\", \"when\": \"2026-11-15\", \"code\": \"AB-12345\", "
                      "\"kind\": \"second\", \"what\": \"a note of bounded length\", \"others\": {\"key\": "
                      "\"and text without an end\"}}",
                      pieces, remember);
        follow("words in many ways", ambiguous, "this is a text that could be read in several ways at once.", pieces,
               remember);
    }
    tn_pieces_free(pieces);
    return 0;
}
