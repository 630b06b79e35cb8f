/* An engine of bench-peers: a program that reads one command per line and answers each with one line, "ok NUMBERS…"
 * or "error TEXT". compare.c sends commands to two of them in turn. Each engine measures its own time, with the same
 * clock.
 *
 *     load MODEL CELLS THREADS SEQUENCES   seconds to open the file, seconds until the session is ready. The
 * sequences share the cells equally prefill N                   seconds for N tokens into an empty cache fill N the
 * same, but the tokens stay in the cache: the depth of the following decodes extend N                    adds N more
 * tokens to the cache decode N                    seconds for N tokens, one at a time, at that depth; they are
 * removed again spread N S                  fills sequence 0 with N tokens and copies them to the others of S
 * sequences; no two sequences share a cell then: the depth of the following steps steps N S seconds, and seconds of
 * CPU time of all threads, for N decodes of one token for each of S sequences; they are removed again read the
 * machine's read rate in bytes per second, bytes of weights that a decode reads memory                      bytes:
 * compute buffers, KV cache, and scratch of a run, if known tokenize FILE TIMES         seconds and number of tokens
 *     quantize IN OUT TYPE THREADS   seconds
 *
 * The first line an engine writes is "ready NAME VERSION VARIANT". */
#ifndef BENCH_PEERS_ENGINE_H
#define BENCH_PEERS_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCH = 2048, MICRO_BATCH = 512, MOST_SEQUENCES = 256 };

/* Each returns NULL or an error message. */
const char *engine_start(const char *folder, char *name, char *version, char *variant, size_t room);
const char *engine_load(const char *path, int cells, int threads, int sequences, double seconds[2]);
int engine_vocabulary(void);
const char *engine_decode(int32_t *tokens, int n); /* of sequence 0; waits for the logits */
const char *engine_step(int32_t *tokens, int position,
                        int n); /* one token for each of n sequences, with its logits */
const char *engine_copy(int n); /* sequence 0 to 1 … n-1, without sharing cells */
void engine_keep(int n);        /* removes all but the first n tokens of every sequence */
const char *engine_read(double *rate, double *weights);
const char *engine_memory(double bytes[3]);
const char *engine_tokenize(const char *text, size_t size, int *n_tokens);
const char *engine_quantize(const char *from, const char *to, const char *type, int threads);

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double cpu_time(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Both engines get the same tokens; their values do not affect the speed. */
static const char *feed(int from, int n, int at_once) {
    static int32_t tokens[BATCH];
    int vocabulary = engine_vocabulary();
    for (int done = 0; done < n;) {
        int part = n - done < at_once ? n - done : at_once;
        for (int i = 0; i < part; i++)
            tokens[i] = (int32_t)((unsigned)(from + done + i) * 7919u % (unsigned)vocabulary);
        const char *wrong = engine_decode(tokens, part);
        if (wrong) return wrong;
        done += part;
    }
    return NULL;
}

static const char *take_steps(int depth, int steps, int sequences) {
    static int32_t tokens[MOST_SEQUENCES];
    int vocabulary = engine_vocabulary();
    for (int i = 0; i < steps; i++) {
        for (int s = 0; s < sequences; s++)
            tokens[s] = (int32_t)((unsigned)(depth + i + s * 31) * 7919u % (unsigned)vocabulary);
        const char *wrong = engine_step(tokens, depth + i, sequences);
        if (wrong) return wrong;
    }
    return NULL;
}

static const char *tokenize_file(const char *path, int times, double *seconds, int *n_tokens) {
    FILE *f = fopen(path, "rb");
    if (!f) return "cannot open the text";
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    char *text = malloc((size_t)size + 1);
    const char *wrong = text && fread(text, 1, (size_t)size, f) == (size_t)size ? NULL : "cannot read the text";
    fclose(f);
    double start = now();
    for (int i = 0; !wrong && i < times; i++) wrong = engine_tokenize(text, (size_t)size, n_tokens);
    *seconds = now() - start;
    free(text);
    return wrong;
}

static const char *obey(const char *line, int *depth) {
    char word[16], a[1024], b[1024], c[64];
    int n = 0, m = 0, sequences = 1;
    const char *wrong = "unknown command";
    if (sscanf(line, "%15s", word) != 1) return "empty line";
    if (sscanf(line, "load %1023s %d %d %d", a, &n, &m, &sequences) >= 3) {
        double seconds[2];
        *depth = 0;
        if (!(wrong = engine_load(a, n, m, sequences, seconds))) printf("ok %.6f %.6f\n", seconds[0], seconds[1]);
    } else if (sscanf(line, "prefill %d", &n) == 1 || sscanf(line, "fill %d", &n) == 1) {
        engine_keep(0);
        double start = now();
        if (!(wrong = feed(0, n, BATCH))) printf("ok %.6f\n", now() - start);
        *depth = word[0] == 'f' ? n : 0;
        engine_keep(*depth);
    } else if (sscanf(line, "extend %d", &n) == 1) {
        double start = now();
        if (!(wrong = feed(*depth, n, BATCH))) printf("ok %.6f\n", now() - start);
        *depth += n;
    } else if (sscanf(line, "decode %d", &n) == 1) {
        double start = now();
        if (!(wrong = feed(*depth, n, 1))) printf("ok %.6f\n", now() - start);
        engine_keep(*depth);
    } else if (sscanf(line, "spread %d %d", &n, &m) == 2 && m <= MOST_SEQUENCES) {
        double start = now();
        engine_keep(0);
        if (!(wrong = feed(0, n, BATCH)) && !(wrong = engine_copy(m))) printf("ok %.6f\n", now() - start);
        *depth = n;
    } else if (sscanf(line, "steps %d %d", &n, &m) == 2 && m <= MOST_SEQUENCES) {
        double start = now(), cpu = cpu_time();
        if (!(wrong = take_steps(*depth, n, m))) printf("ok %.6f %.6f\n", now() - start, cpu_time() - cpu);
        engine_keep(*depth);
    } else if (strcmp(word, "read") == 0) {
        double rate = 0, weights = 0;
        if (!(wrong = engine_read(&rate, &weights))) printf("ok %.0f %.0f\n", rate, weights);
    } else if (strcmp(word, "memory") == 0) {
        double bytes[3] = {0};
        if (!(wrong = engine_memory(bytes))) printf("ok %.0f %.0f %.0f\n", bytes[0], bytes[1], bytes[2]);
    } else if (sscanf(line, "tokenize %1023s %d", a, &n) == 2) {
        double seconds;
        if (!(wrong = tokenize_file(a, n, &seconds, &m))) printf("ok %.6f %d\n", seconds, m);
    } else if (sscanf(line, "quantize %1023s %1023s %63s %d", a, b, c, &n) == 4) {
        double start = now();
        if (!(wrong = engine_quantize(a, b, c, n))) printf("ok %.6f\n", now() - start);
    }
    return wrong;
}

int main(int argc, char **argv) {
    char line[4096], name[64] = "", version[64] = "", variant[128] = "";
    int depth = 0;
    const char *wrong = engine_start(argc > 1 ? argv[1] : NULL, name, version, variant, 64);
    if (wrong)
        printf("error %s\n", wrong);
    else
        printf("ready %s %s %s\n", name, version, variant);
    fflush(stdout);
    while (!wrong && fgets(line, sizeof line, stdin)) {
        const char *failed = obey(line, &depth);
        if (failed) printf("error %s\n", failed);
        fflush(stdout);
    }
    return wrong != NULL;
}
#endif
