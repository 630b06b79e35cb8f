/* Cost and quality of planning: packing instances, graphs of models, and growth with size.
 *
 *     plan [FOLDER]    FOLDER holds packing/ and archs/ (default: $TENON_GOLDEN or ../shared/golden)
 *     plan --files FILE.csv...    packs files at all efforts
 *     plan --generate training|inference|random [--items N] [--seeds N] [--first N] [--orders all|needed]
 *                      generated traces against the best of ten greedy orders (default: 10,000, 30,000 and 100,000
 *                      items, 20 seeds from seed 0); exits with 1 if a packing is larger, takes more than 2 s, or if
 *                      the median ratio is above 1.03. No order beats a packing at the lower bound: with
 *                      `--orders needed` such traces are packed in no order, which saves minutes.
 *
 * Results are compared with an online allocator, which handles one request after another in execution order and uses
 * the smallest free block that fits. Times are medians of the processor time of several runs. */
#include "plan/plan_internal.h"
#include "tenon/llm.h"
#include "traces.h"

#include "base/checked.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const char *what) {
    fprintf(stderr, "plan: %s: %s\n", what, tn_error());
    exit(1);
}

/* ---- The online allocator ---- */

typedef struct hole {
    size_t at, size;
} hole;
typedef struct event {
    int64_t time;
    size_t item;
    bool start;
} event;

static int by_time(const void *a, const void *b) {
    const event *x = a, *y = b;
    if (x->time != y->time) return x->time < y->time ? -1 : 1;
    if (x->start != y->start) return x->start ? 1 : -1; /* frees first */
    return x->item < y->item ? -1 : x->item > y->item;
}

static size_t best_fit(const tn_pack_item *items, size_t count) {
    event *events = malloc(2 * count * sizeof *events);
    hole *holes = malloc((count + 2) * sizeof *holes);
    size_t *at = malloc(count * sizeof *at), n_events = 0, n_holes = 0, end = 0;
    for (size_t i = 0; i < count; i++) {
        if (items[i].size == 0 || items[i].start >= items[i].end) continue;
        events[n_events++] = (event){items[i].start, i, true};
        events[n_events++] = (event){items[i].end, i, false};
    }
    qsort(events, n_events, sizeof *events, by_time);
    for (size_t e = 0; e < n_events; e++) {
        size_t i = events[e].item, align = items[i].alignment ? items[i].alignment : 1,
               size = tn__align_up(items[i].size, align);
        if (events[e].start) {
            size_t best = SIZE_MAX;
            for (size_t h = 0; h < n_holes; h++)
                if (holes[h].size >= size && (best == SIZE_MAX || holes[h].size < holes[best].size)) best = h;
            if (best == SIZE_MAX) {
                /* Memory grows, starting with the hole at its end, if there is one. */
                if (n_holes && holes[n_holes - 1].at + holes[n_holes - 1].size == end) end = holes[--n_holes].at;
                at[i] = end;
                end += size;
            } else {
                at[i] = holes[best].at;
                holes[best].at += size;
                holes[best].size -= size;
                if (holes[best].size == 0)
                    memmove(&holes[best], &holes[best + 1], (--n_holes - best) * sizeof *holes);
            }
        } else {
            size_t h = 0;
            while (h < n_holes && holes[h].at < at[i]) h++;
            bool below_free = h > 0 && holes[h - 1].at + holes[h - 1].size == at[i],
                 above_free = h < n_holes && at[i] + size == holes[h].at;
            if (below_free) holes[h - 1].size += size;
            if (above_free && below_free) {
                holes[h - 1].size += holes[h].size;
                memmove(&holes[h], &holes[h + 1], (--n_holes - h) * sizeof *holes);
            } else if (above_free) {
                holes[h].at -= size;
                holes[h].size += size;
            } else if (!below_free) {
                memmove(&holes[h + 1], &holes[h], (n_holes++ - h) * sizeof *holes);
                holes[h] = (hole){at[i], size};
            }
        }
    }
    free(events);
    free(holes);
    free(at);
    return end;
}

/* ---- Measurement ---- */

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Packs several times, fewer times if it takes long. The caller owns the result of the last run. */
static double pack_time(const tn_pack_item *items, size_t count, const tn_pack_params *params, tn_pack_result *result,
                        tn_status *status) {
    double times[15], total = 0;
    int runs = 0;
    while (runs < 15 && (runs == 0 || total < 0.5)) {
        if (runs) tn_pack_result_free(result);
        double begun = now();
        *status = tn_pack(items, count, params, result);
        times[runs] = now() - begun;
        total += times[runs++];
    }
    if (*status != TN_OK && *status != TN_E_UNDECIDED) die("tn_pack");
    if (tn_pack_verify(items, count, params, result) != TN_OK) die("tn_pack_verify");
    qsort(times, (size_t)runs, sizeof *times, ascending);
    return times[runs / 2];
}

static void print_head(const char *title) {
    printf("\n%s\n%-28s %9s %-14s %14s %14s %8s %12s\n", title, "instance", "items", "method", "size", "lower bound",
           "ratio", "ms");
}
static void print_row(const char *name, size_t items, const char *method, size_t size, size_t bound, double seconds) {
    printf("%-28s %9zu %-14s %14zu %14zu %8.4f %12.3f\n", name, items, method, size, bound,
           bound ? (double)size / (double)bound : 1, 1e3 * seconds);
    fflush(stdout);
}

static const char *const effort_names[] = {"fast", "balanced", "exact"};
static bool larger_than_online;
typedef struct worst_case {
    double plan, online, seconds;
} worst_case;

static void measure(const char *name, const tn_pack_item *items, size_t count, int most_effort, size_t capacity) {
    tn_pack_result result;
    tn_status status;
    double begun = now();
    size_t online = best_fit(items, count), bound = 0;
    double online_time = now() - begun;
    for (int effort = TN_PACK_FAST; effort <= most_effort; effort++) {
        tn_pack_params params = {.effort = (tn_pack_effort)effort};
        double seconds = pack_time(items, count, &params, &result, &status);
        print_row(name, count, effort_names[effort], result.size, result.lower_bound, seconds);
        if (result.size > online) larger_than_online = true;
        bound = result.lower_bound;
        tn_pack_result_free(&result);
    }
    if (capacity) {
        tn_pack_params params = {.effort = TN_PACK_EXACT, .capacity = capacity};
        double seconds = pack_time(items, count, &params, &result, &status);
        char method[32];
        snprintf(method, sizeof method, "<= %zu%s", capacity, status == TN_OK ? "" : " NOT MET");
        print_row(name, count, method, result.size, result.lower_bound, seconds);
        tn_pack_result_free(&result);
    }
    print_row(name, count, "online", online, bound, online_time);
}

static int ends_with(const char *name, const char *end) {
    size_t length = strlen(name), tail = strlen(end);
    return length > tail && strcmp(name + length - tail, end) == 0 ? (int)(length - tail) : 0;
}

/* ---- Packing files ---- */

static void pack_file(const char *path) {
    static char text[1 << 24];
    const char *slash = strrchr(path, '/');
    char name[64];
    snprintf(name, sizeof name, "%s", slash ? slash + 1 : path);
    name[TN__MAX(ends_with(name, ".csv"), 0)] = '\0';
    FILE *file = fopen(path, "rb");
    if (!file) die(path);
    size_t size = fread(text, 1, sizeof text, file);
    fclose(file);
    tn_pack_table table;
    if (tn_pack_table_parse(text, size, &table) != TN_OK) die(path);
    bool small = strncmp(name, "minimalloc", 10) == 0;
    measure(name, table.items, table.count, TN_PACK_BALANCED, small ? 1048576 : 0);
    tn_pack_table_free(&table);
}

static void pack_files(const char *folder) {
    struct dirent **entries;
    int count = scandir(folder, &entries, NULL, alphasort);
    if (count < 0) {
        printf("\nno packing files in %s\n", folder);
        return;
    }
    print_head("Packing files");
    for (int i = 0; i < count; i++) {
        char path[8192];
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        if (ends_with(entries[i]->d_name, ".csv")) pack_file(path);
        free(entries[i]);
    }
    free(entries);
}

/* ---- Graphs ---- */

typedef tn_tensor *(*shape_maker)(tn_arena *a, int layers);

/* Weights have their own memory. */
static tn_tensor *weight(tn_arena *a, tn_type type, int64_t n0, int64_t n1, int64_t n2) {
    static char elsewhere;
    tn_tensor *t = tn_tensor_nd(a, type, n0, n1, n2);
    if (t) t->data = &elsewhere;
    return t;
}

static tn_tensor *attention_block(tn_arena *a, tn_tensor *x, tn_tensor *pos, int64_t width, int64_t heads,
                                  int64_t kv_heads, int64_t tokens) {
    int64_t head = width / heads;
    tn_rope_params rope = tn_rope_params_default((int32_t)head, TN_ROPE_NEOX);
    tn_tensor *h = tn_rms_norm(a, x, weight(a, TN_F32, width, 1, 1), 1e-5f);
    tn_tensor *q =
        tn_rope(a, tn_reshape(a, tn_mul_mat(a, weight(a, TN_F16, width, width, 1), h), head, heads, tokens), pos,
                NULL, &rope);
    tn_tensor *k = tn_rope(
        a, tn_reshape(a, tn_mul_mat(a, weight(a, TN_F16, width, head * kv_heads, 1), h), head, kv_heads, tokens), pos,
        NULL, &rope);
    tn_tensor *v =
        tn_reshape(a, tn_mul_mat(a, weight(a, TN_F16, width, head * kv_heads, 1), h), head, kv_heads, tokens);
    tn_tensor *o = tn_attention(a, &(tn_attention_sources){.q = q, .k = k, .v = v},
                                &(tn_attention_params){.scale = 0.1f, .causal = 1});
    return tn_add(a, x, tn_mul_mat(a, weight(a, TN_F16, width, width, 1), tn_reshape(a, o, width, tokens)));
}

static tn_tensor *transformer(tn_arena *a, int layers) {
    int64_t heads = 4 << below(4), head = 64 << below(2), width = heads * head, kv = heads >> below(3),
            tokens = 1 + (int64_t)below(512), hidden = width * (2 + (int64_t)below(3));
    tn_tensor *x = tn_input(a, TN_F32, width, tokens), *pos = tn_input(a, TN_I32, tokens);
    for (int l = 0; l < layers; l++) {
        x = attention_block(a, x, pos, width, heads, kv, tokens);
        tn_tensor *h = tn_rms_norm(a, x, weight(a, TN_F32, width, 1, 1), 1e-5f);
        tn_tensor *gate = tn_mul_mat(a, weight(a, TN_F16, width, hidden, 1), h),
                  *up = tn_mul_mat(a, weight(a, TN_F16, width, hidden, 1), h);
        x = tn_add(a, x, tn_mul_mat(a, weight(a, TN_F16, hidden, width, 1), tn_swiglu(a, gate, up)));
    }
    return tn_mul_mat(a, weight(a, TN_F16, width, 32000, 1),
                      tn_rms_norm(a, x, weight(a, TN_F32, width, 1, 1), 1e-5f));
}

static tn_tensor *mixture(tn_arena *a, int layers) {
    int64_t heads = 4 << below(3), width = heads * 64, tokens = 1 + (int64_t)below(300), experts = 8 << below(3),
            hidden = width;
    int used = 2 + (int)below(4);
    tn_tensor *x = tn_input(a, TN_F32, width, tokens), *pos = tn_input(a, TN_I32, tokens);
    for (int l = 0; l < layers; l++) {
        x = attention_block(a, x, pos, width, heads, heads, tokens);
        tn_tensor *h = tn_rms_norm(a, x, weight(a, TN_F32, width, 1, 1), 1e-5f);
        tn_tensor *scores = tn_soft_max(a, tn_mul_mat(a, weight(a, TN_F32, width, experts, 1), h), NULL, NULL, 1, 0);
        tn_tensor *ids = tn_top_k(a, scores, used);
        tn_tensor *w = tn_reshape(a, tn_get_rows(a, tn_reshape(a, scores, 1, experts, tokens), ids), used, tokens);
        tn_tensor *each = tn_reshape(a, h, width, 1, tokens);
        tn_tensor *gate = tn_mul_mat_id(a, weight(a, TN_F16, width, hidden, experts), each, ids),
                  *up = tn_mul_mat_id(a, weight(a, TN_F16, width, hidden, experts), each, ids);
        tn_tensor *down = tn_mul_mat_id(a, weight(a, TN_F16, hidden, width, experts), tn_swiglu(a, gate, up), ids);
        tn_tensor *shared = tn_silu(a, tn_mul_mat(a, weight(a, TN_F16, width, width, 1), h));
        x = tn_add(a, x, tn_add(a, tn_mix(a, down, w), shared));
    }
    return tn_rms_norm(a, x, weight(a, TN_F32, width, 1, 1), 1e-5f);
}

/* A U-net: the results of the downward levels live until the upward levels read them. */
static tn_tensor *unet(tn_arena *a, int layers) {
    enum { LEVELS = 4 };
    int64_t size = 32 << below(2), channels = 16 << below(3);
    int n_skips = 0, blocks = layers / (2 * LEVELS) + 1;
    tn_tensor *x = tn_input(a, TN_F32, size, size, channels),
              **skips = calloc((size_t)LEVELS * (size_t)blocks, sizeof(tn_tensor *));
    tn_conv_params same = tn_conv_params_default();
    same.pad[0] = same.pad[1] = 1;
    tn_pool_params half = {.kind = TN_POOL_AVG, .kernel = {2, 2}, .stride = {2, 2}};
    for (int level = 0; level < LEVELS; level++) {
        for (int b = 0; b < blocks; b++) {
            tn_tensor *kernel = tn_reshape(a, weight(a, TN_F16, 9, channels, channels), 3, 3, channels, channels);
            tn_tensor *h = tn_conv_2d(a, kernel, tn_silu(a, tn_group_norm(a, x, 8, 1e-5f)), &same);
            x = skips[n_skips++] =
                tn_add(a, x, tn_conv_2d(a, kernel, tn_silu(a, tn_group_norm(a, h, 8, 1e-5f)), &same));
        }
        tn_tensor *wider = tn_reshape(a, weight(a, TN_F16, 9, channels, 2 * channels), 3, 3, channels, 2 * channels);
        x = tn_conv_2d(a, wider, tn_pool_2d(a, x, &half), &same);
        channels *= 2;
        size /= 2;
    }
    for (int level = 0; level < LEVELS; level++) {
        channels /= 2;
        size *= 2;
        tn_tensor *narrower =
            tn_reshape(a, weight(a, TN_F16, 9, 2 * channels, channels), 3, 3, 2 * channels, channels);
        x = tn_conv_2d(a, narrower, tn_upscale(a, x, (int64_t[]){size, size, 2 * channels, 1}, TN_UPSCALE_NEAREST),
                       &same);
        for (int b = 0; b < blocks; b++) {
            tn_tensor *both = tn_concat(a, x, skips[--n_skips], 2);
            x = tn_silu(a, tn_group_norm(a, tn_conv_2d(a, narrower, both, &same), 8, 1e-5f));
        }
    }
    free(skips);
    return x;
}

/* An encoder and a decoder of different widths: the encoder's result lives to the end, attention and feed-forward may
 * be parallel, and some layers pass a result to a later one. */
static tn_tensor *translator(tn_arena *a, int layers) {
    int64_t width = 64 * (2 + (int64_t)below(14)), heads = width / 64, tokens = 1 + (int64_t)below(700),
            outputs = 1 + (int64_t)below(400), hidden = width / 2 * (1 + (int64_t)below(8));
    tn_tensor *x = tn_input(a, TN_F32, width, tokens), *pos = tn_input(a, TN_I32, tokens), *memory = NULL,
              *early = NULL;
    for (int l = 0; l < layers; l++) {
        if (l == layers / 2) {
            memory = tn_rms_norm(a, x, weight(a, TN_F32, width, 1, 1), 1e-5f);
            tokens = outputs;
            x = tn_input(a, TN_F32, width, tokens);
            pos = tn_input(a, TN_I32, tokens);
            early = NULL;
        }
        tn_tensor *side = below(3) ? NULL : x;
        x = attention_block(a, x, pos, width, heads, heads, tokens);
        if (memory) {
            tn_tensor *h = tn_rms_norm(a, x, weight(a, TN_F32, width, 1, 1), 1e-5f);
            tn_tensor *q = tn_reshape(a, tn_mul_mat(a, weight(a, TN_F16, width, width, 1), h), 64, heads, tokens);
            tn_tensor *k = tn_reshape(a, tn_mul_mat(a, weight(a, TN_F16, width, width, 1), memory), 64, heads,
                                      memory->ne[1]),
                      *v = tn_reshape(a, tn_mul_mat(a, weight(a, TN_F16, width, width, 1), memory), 64, heads,
                                      memory->ne[1]);
            tn_tensor *o = tn_attention(a, &(tn_attention_sources){.q = q, .k = k, .v = v},
                                        &(tn_attention_params){.scale = 0.1f});
            x = tn_add(a, x, tn_mul_mat(a, weight(a, TN_F16, width, width, 1), tn_reshape(a, o, width, tokens)));
        }
        tn_tensor *h = tn_rms_norm(a, side ? side : x, weight(a, TN_F32, width, 1, 1), 1e-5f);
        tn_tensor *up = tn_silu(a, tn_mul_mat(a, weight(a, TN_F16, width, hidden, 1), h));
        x = tn_add(a, x, tn_mul_mat(a, weight(a, TN_F16, hidden, width, 1), up));
        if (early && below(2)) {
            x = tn_add(a, x, early);
            early = NULL;
        } else if (!early && below(2)) {
            early = tn_scale(a, x, 0.5f, 0);
        }
    }
    return tn_mul_mat(a, weight(a, TN_F16, width, 1000 + (int64_t)below(60000), 1), x);
}

/* Experts as separate branches, each with the rows assigned to it. */
static tn_tensor *branches(tn_arena *a, int layers) {
    int64_t width = 64 * (1 + (int64_t)below(12)), heads = width / 64, tokens = 16 + (int64_t)below(300);
    tn_tensor *x = tn_input(a, TN_F32, width, tokens), *pos = tn_input(a, TN_I32, tokens);
    for (int l = 0; l < layers; l++) {
        x = attention_block(a, x, pos, width, heads, heads, tokens);
        tn_tensor *h = tn_rms_norm(a, x, weight(a, TN_F32, width, 1, 1), 1e-5f), *sum = tn_dup(a, x);
        int experts = 2 + (int)below(4);
        int64_t left = tokens;
        for (int e = 0; e < experts && left; e++) {
            int64_t rows = e == experts - 1 ? left : (int64_t)below((uint64_t)left + 1);
            left -= rows;
            if (rows == 0) continue;
            int64_t hidden = 32 * (1 + (int64_t)below(60));
            tn_tensor *ids = tn_input(a, TN_I32, rows), *own = tn_get_rows(a, h, ids);
            tn_tensor *gate = tn_mul_mat(a, weight(a, TN_F16, width, hidden, 1), own),
                      *up = tn_mul_mat(a, weight(a, TN_F16, width, hidden, 1), own);
            tn_tensor *down = tn_mul_mat(a, weight(a, TN_F16, hidden, width, 1), tn_swiglu(a, gate, up));
            sum = tn_set_rows(a, sum, tn_add(a, down, tn_get_rows(a, sum, ids)), ids);
        }
        x = sum;
    }
    return tn_rms_norm(a, x, weight(a, TN_F32, width, 1, 1), 1e-5f);
}

/* A U-net with odd sizes, attention below, and a time embedding that every block reads. */
static tn_tensor *odd_unet(tn_arena *a, int layers) {
    int levels = 2 + (int)below(4), blocks = layers / (2 * levels) + 1, n_skips = 0;
    int64_t size[8], channels[8];
    tn_tensor **skips = calloc((size_t)levels * (size_t)blocks, sizeof(tn_tensor *));
    size[0] = 8 * (4 + (int64_t)below(12));
    channels[0] = 8 * (1 + (int64_t)below(8));
    for (int l = 1; l < levels; l++) {
        size[l] = (size[l - 1] + 1) / 2;
        channels[l] = channels[l - 1] * (1 + (int64_t)below(3));
    }
    tn_tensor *x = tn_input(a, TN_F32, size[0], size[0], channels[0]), *time = tn_input(a, TN_F32, 64);
    tn_conv_params same = tn_conv_params_default();
    same.pad[0] = same.pad[1] = 1;
    for (int step = 0; step < 2 * levels; step++) {
        bool down = step < levels;
        int l = down ? step : 2 * levels - 1 - step;
        int64_t n = size[l], c = channels[l];
        x = tn_upscale(a, x, (int64_t[]){n, n, x->ne[2], 1}, TN_UPSCALE_NEAREST);
        for (int b = 0; b < blocks; b++) {
            tn_tensor *in = down ? x : tn_concat(a, x, skips[--n_skips], 2);
            int64_t wide = in->ne[2];
            tn_tensor *first = tn_reshape(a, weight(a, TN_F16, 9, wide, c), 3, 3, wide, c),
                      *second = tn_reshape(a, weight(a, TN_F16, 9, c, c), 3, 3, c, c),
                      *short_cut = tn_reshape(a, weight(a, TN_F16, 9, wide, c), 3, 3, wide, c);
            tn_tensor *h = tn_conv_2d(a, first, tn_silu(a, tn_group_norm(a, in, 8, 1e-5f)), &same);
            tn_tensor *t = tn_mul_mat(a, weight(a, TN_F16, 64, c, 1), tn_silu(a, time));
            h = tn_add(a, h, tn_reshape(a, t, 1, 1, c));
            h = tn_conv_2d(a, second, tn_silu(a, tn_group_norm(a, h, 8, 1e-5f)), &same);
            x = tn_add(a, wide == c ? in : tn_conv_2d(a, short_cut, in, &same), h);
            if (down) skips[n_skips++] = x;
        }
    }
    free(skips);
    return x;
}

/* Compares one plan in one memory with the online allocator. */
static void show_plan(const char *label, const tn_plan *plan, size_t memory, double seconds, bool print,
                      worst_case *worst) {
    size_t n = tn_plan_tensor_count(plan), count = 0;
    tn_pack_item *items = calloc(n + 1, sizeof *items);
    for (size_t i = 0; i < n; i++) {
        const tn_plan_entry *entry = &plan->entries[i];
        if (tn__plan_owns(entry) && (size_t)entry->memory == memory)
            items[count++] = (tn_pack_item){.start = entry->first,
                                            .end = (int64_t)plan->until[i] + 1,
                                            .size = entry->size,
                                            .alignment = plan->parts[memory].alignment};
    }
    double begun = now();
    size_t online = best_fit(items, count), bound = tn_plan_lower_bound(plan, memory);
    double online_time = now() - begun;
    if (seconds < 0) {
        tn_pack_result result;
        tn_status status;
        seconds = pack_time(items, count, NULL, &result, &status);
        tn_pack_result_free(&result);
    }
    free(items);
    size_t size = tn_plan_size(plan, memory);
    if (size > online) larger_than_online = true;
    worst->plan = fmax(worst->plan, (double)size / (double)bound);
    worst->online = fmax(worst->online, (double)online / (double)bound);
    worst->seconds = fmax(worst->seconds, seconds);
    if (!print) return;
    print_row(label, count, "plan", size, bound, seconds);
    print_row(label, count, "online", online, bound, online_time);
}

static void show_worst(const char *name, int graphs, const worst_case *worst) {
    printf("%-28s %9d graphs, worst ratio: plan %.4f, online %.4f; longest %.3f ms\n", name, graphs, worst->plan,
           worst->online, 1e3 * worst->seconds);
    fflush(stdout);
}

static void plan_graphs(const char *name, shape_maker make, int graphs, int layers) {
    static const tn_plan_memory memory = {"memory", 64, 0};
    tn_plan_params params = {.memories = &memory, .n_memories = 1};
    worst_case worst = {0};
    for (int g = 0; g < graphs; g++) {
        size_t room = (size_t)(layers + 8) * 96;
        tn_arena *a;
        tn_graph *graph;
        tn_plan *plan;
        if (tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(room, 2 * room), .no_alloc = true}, &a) !=
            TN_OK)
            die("arena");
        tn_tensor *y = tn_output(make(a, layers));
        if (tn_graph_of(a, y, &graph) != TN_OK) die(name);
        enum { RUNS = 9 };
        double times[RUNS];
        for (int run = 0; run < RUNS; run++) {
            double begun = now();
            if (tn_plan_make(graph, &params, &plan) != TN_OK) die("tn_plan_make");
            times[run] = now() - begun;
            if (run < RUNS - 1) tn_plan_free(plan);
        }
        qsort(times, RUNS, sizeof *times, ascending);
        if (tn_plan_verify(plan, graph, &params) != TN_OK) die("tn_plan_verify");
        char label[96];
        snprintf(label, sizeof label, "%s %d: %zu nodes", name, g, plan->n_nodes);
        show_plan(label, plan, 0, times[RUNS / 2], g < 2, &worst);
        tn_plan_free(plan);
        tn_arena_free(a);
    }
    show_worst(name, graphs, &worst);
}

/* ---- Models ---- */

/* The plans of a model's graphs in a session on the CPU: 512 tokens, and 1. */
static void plan_model(const char *path, const char *name, worst_case *worst) {
    tn_model *model;
    tn_session_plan *session_plan;
    if (tn_model_open(path, NULL, &model) != TN_OK) die(path);
    tn_session_params params = tn_session_params_default();
    params.n_ctx = 1024;
    params.n_ubatch = 512;
    params.n_threads = 1;
    if (tn_session_plan_new(model, &params, &session_plan) != TN_OK) die(path);
    for (int decode = 0; decode < 2; decode++) {
        const tn_plan *plan;
        char label[64];
        if (tn_session_plan_graph(session_plan, !decode, 0, &plan, NULL) != TN_OK) die(path);
        snprintf(label, sizeof label, "%.20s, %s", name, decode ? "1 token" : "512");
        for (size_t m = 0; m < tn_plan_memory_count(plan); m++) show_plan(label, plan, m, -1, true, worst);
    }
    tn_session_plan_free(session_plan);
    tn_model_close(model);
}

static void models(const char *folder) {
    struct dirent **entries;
    int count = scandir(folder, &entries, NULL, alphasort), graphs = 0;
    if (count < 0) {
        printf("\nno models in %s\n", folder);
        return;
    }
    print_head("Graphs of models, as sessions plan them (default effort; the time is that of packing)");
    worst_case worst = {0};
    for (int i = 0; i < count; i++) {
        char path[8192], name[64];
        int length = ends_with(entries[i]->d_name, ".gguf");
        if (length) {
            snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
            snprintf(name, sizeof name, "%.*s", length, entries[i]->d_name);
            plan_model(path, name, &worst);
            graphs += 2;
        }
        free(entries[i]);
    }
    free(entries);
    show_worst("models", graphs, &worst);
}

/* ---- Growth ---- */

static void growth(void) {
    print_head("Growth (random traces, fast effort; the last column should be constant)");
    for (size_t count = 1000; count <= 1000000; count *= 10) {
        for (int half = 0; half < 2 && count * (half ? 3 : 1) <= 1000000; half++) {
            size_t n = count * (half ? 3 : 1);
            tn_pack_item *items = calloc(n, sizeof *items);
            tn_pack_result result;
            tn_status status;
            random_state = n;
            random_trace(items, n);
            double seconds = pack_time(items, n, NULL, &result, &status);
            char name[64];
            snprintf(name, sizeof name, "trace, %.1f ns/(n log2 n)", 1e9 * seconds / ((double)n * log2((double)n)));
            print_row(name, n, "fast", result.size, result.lower_bound, seconds);
            tn_pack_result_free(&result);
            free(items);
        }
    }
}

/* ---- Generated traces ---- */

typedef struct comparison {
    const char *kind;
    size_t count, seeds, first; /* items; traces and the seed of the first one */
    bool all_orders;
} comparison;

static void generate_trace(const char *kind, size_t seed, tn_pack_item *items, size_t count) {
    random_state = seed * 1000003 + count;
    memset(items, 0, count * sizeof *items);
    if (strcmp(kind, "training") == 0)
        training_trace(items, count);
    else if (strcmp(kind, "inference") == 0)
        inference_trace(items, count);
    else
        random_trace(items, count);
}

/* Packs the traces of all seeds and compares them with the ten orders. False if one is larger or takes too long. */
static bool compare_with_orders(const comparison *c) {
    tn_pack_item *items = calloc(c->count, sizeof *items);
    double *ratios = calloc(c->seeds, sizeof *ratios), *best_ratios = calloc(c->seeds, sizeof *best_ratios);
    double longest = 0;
    size_t wins[ORDERS] = {0}, larger = 0, equal = 0, compared = 0;
    for (size_t s = 0; s < c->seeds; s++) {
        generate_trace(c->kind, c->first + s, items, c->count);
        tn_pack_params params = {.effort = TN_PACK_BALANCED};
        tn_pack_result result;
        double begun = now();
        if (tn_pack(items, c->count, &params, &result) != TN_OK) die("tn_pack");
        longest = fmax(longest, now() - begun);
        if (tn_pack_verify(items, c->count, &params, &result) != TN_OK) die("tn_pack_verify");
        ratios[s] = result.ratio;
        if (c->all_orders || !result.optimal) {
            size_t heights[ORDERS], best = 0;
            greedy_heights(items, c->count, heights);
            for (size_t o = 1; o < ORDERS; o++)
                if (heights[o] < heights[best]) best = o;
            wins[best]++;
            larger += result.size > heights[best];
            equal += result.size == heights[best];
            best_ratios[compared++] = (double)heights[best] / (double)result.lower_bound;
        }
        tn_pack_result_free(&result);
    }
    qsort(ratios, c->seeds, sizeof *ratios, ascending);
    qsort(best_ratios, compared, sizeof *best_ratios, ascending);
    size_t common = 0;
    for (size_t o = 1; o < ORDERS; o++)
        if (wins[o] > wins[common]) common = o;
    printf("%-10s %8zu %6zu %9.4f %9.4f %9zu %9.4f %9.4f %7zu %7zu %7.2f  %s\n", c->kind, c->count, c->seeds,
           ratios[c->seeds / 2], ratios[c->seeds - 1], compared, compared ? best_ratios[compared / 2] : 0,
           compared ? best_ratios[compared - 1] : 0, larger, equal, longest, compared ? order_names[common] : "-");
    fflush(stdout);
    bool held = larger == 0 && ratios[c->seeds / 2] <= 1.03 && longest <= 2;
    free(items);
    free(ratios);
    free(best_ratios);
    return held;
}

static int generated_traces(comparison c) {
    static const size_t sizes[] = {10000, 30000, 100000};
    bool held = true, given = c.count;
    printf("%-10s %8s %6s %9s %9s %9s %9s %9s %7s %7s %7s  %s\n", "trace", "items", "seeds", "median", "worst",
           "compared", "10 median", "10 worst", "larger", "equal", "s", "best order");
    for (size_t i = 0; i < (given ? 1 : TN__COUNT(sizes)); i++) {
        if (!given) c.count = sizes[i];
        held &= compare_with_orders(&c);
    }
    printf("%s\n", held ? "held" : "NOT held");
    return !held;
}

static int command_line(int argc, char **argv) {
    comparison c = {.seeds = 20, .all_orders = true};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--generate") == 0)
            c.kind = value;
        else if (strcmp(argv[i], "--items") == 0)
            c.count = strtoull(value, NULL, 10);
        else if (strcmp(argv[i], "--seeds") == 0)
            c.seeds = strtoull(value, NULL, 10);
        else if (strcmp(argv[i], "--first") == 0)
            c.first = strtoull(value, NULL, 10);
        else if (strcmp(argv[i], "--orders") == 0)
            c.all_orders = strcmp(value, "needed") != 0;
        else
            die("unknown option");
        i++;
    }
    if (!c.kind || !c.seeds ||
        (strcmp(c.kind, "training") && strcmp(c.kind, "inference") && strcmp(c.kind, "random")))
        die("usage: --generate training|inference|random [--items N] [--seeds N] [--first N] [--orders all|needed]");
    return generated_traces(c);
}

int main(int argc, char **argv) {
    if (argc > 2 && strcmp(argv[1], "--files") == 0) {
        print_head("Packing files");
        for (int i = 2; i < argc; i++) pack_file(argv[i]);
        return 0;
    }
    if (argc > 1 && strncmp(argv[1], "--", 2) == 0) return command_line(argc, argv);
    const char *golden = argc > 1 ? argv[1] : getenv("TENON_GOLDEN");
    char folder[4096];
    snprintf(folder, sizeof folder, "%s/packing", golden ? golden : "../shared/golden");
    pack_files(folder);
    snprintf(folder, sizeof folder, "%s/archs", golden ? golden : "../shared/golden");
    models(folder);
    print_head("Graphs (default effort, all of tn_plan_make)");
    static const struct {
        const char *name;
        shape_maker make;
        int deep; /* layers of about 10,000 nodes */
    } shapes[] = {{"transformer", transformer, 527}, {"translator", translator, 420}, {"mixture", mixture, 335},
                  {"experts", branches, 262},        {"u-net", unet, 1700},           {"odd u-net", odd_unet, 800}};
    for (size_t i = 0; i < TN__COUNT(shapes); i++) plan_graphs(shapes[i].name, shapes[i].make, 100, 24);
    for (size_t i = 0; i < TN__COUNT(shapes); i++) {
        char name[64];
        for (int times = 1; times <= 10; times *= 10) {
            snprintf(name, sizeof name, "%s%s deep", shapes[i].name, times > 1 ? ", very" : ",");
            plan_graphs(name, shapes[i].make, 1, shapes[i].deep * times);
        }
    }
    growth();
    printf("\n%s\n", larger_than_online ? "LARGER than the online allocator somewhere"
                                        : "never larger than the online allocator");
    return larger_than_online;
}
