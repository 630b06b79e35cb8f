/* Fuzzes plan files: any bytes load as a plan that the verifier accepts, or give an error.
 *
 * With an odd first byte the rest gets the header of a plan of the graph and the right checksum, so that the code
 * after these checks is reached.
 *
 *   make fuzz TARGET=plan SECONDS=60 */
#include "base/hash.h"
#include "tenon/plan.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

enum { MOST = 1 << 16, HEAD = 32 }; /* magic, version, fingerprint */

static tn_arena *arena;
static tn_graph *graph;
static unsigned char good[MOST];
static int file = -1;
static char path[64];

static void need(bool holds) {
    if (!holds) {
        fprintf(stderr, "broken: %s\n", tn_error());
        __builtin_trap();
    }
}

static tn_plan_params params(void) {
    static const tn_plan_memory memory[] = {{.name = "cpu", .alignment = 64, .max_chunk = 4096}};
    return (tn_plan_params){.memories = memory, .n_memories = 1};
}

static void start(void) {
    need(tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(32, 64), .no_alloc = true}, &arena) == TN_OK);
    tn_tensor *x = tn_input(arena, TN_F32, 16, 4), *w = tn_input(arena, TN_F32, 16, 8);
    tn_tensor *y = tn_mul_mat(arena, w, x);
    for (int i = 0; i < 3; i++) y = tn_add(arena, tn_silu(arena, y), y);
    need(tn_graph_of(arena, tn_output(y), &graph) == TN_OK);
    file = memfd_create("plan", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    tn_plan *plan;
    tn_plan_params p = params();
    char saved[64];
    snprintf(saved, sizeof saved, "/tmp/tenon-fuzz-%ld.plan", (long)getpid());
    need(tn_plan_make(graph, &p, &plan) == TN_OK && tn_plan_save(plan, graph, saved) == TN_OK);
    FILE *f = fopen(saved, "rb");
    need(f && fread(good, 1, sizeof good, f) > HEAD);
    fclose(f);
    unlink(saved);
    tn_plan_free(plan);
    tn_log_set(NULL, NULL, TN_LOG_ERROR);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    if (file < 0) start();
    if (size < 1 || size > MOST) return 0;
    bool fit = bytes[0] & 1;
    bytes++;
    size--;
    unsigned char *copy = malloc(size + 1);
    need(copy != NULL);
    memcpy(copy, bytes, size);
    if (fit && size >= HEAD + 8) {
        memcpy(copy, good, HEAD);
        uint64_t sum = tn__hash_bytes(copy, size - 8, 1);
        for (int i = 0; i < 8; i++) copy[size - 8 + (size_t)i] = (unsigned char)(sum >> 8 * i);
    }
    need(ftruncate(file, 0) == 0 && pwrite(file, copy, size, 0) == (ssize_t)size);
    free(copy);
    tn_plan *plan;
    tn_plan_params p = params();
    if (tn_plan_load(path, graph, &p, &plan) != TN_OK) return 0;
    need(tn_plan_verify(plan, graph, &p) == TN_OK);
    for (int format = 0; format <= TN_PLAN_SVG; format++) {
        char *text;
        need(tn_plan_export(plan, (tn_plan_format)format, TN_PLAN_ALL_MEMORIES, &text) == TN_OK);
        tn_free(text);
    }
    tn_plan_free(plan);
    return 0;
}
