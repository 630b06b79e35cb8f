/* How many sums over ranks a layer needs: for every architecture at most two, in decode and in a micro-batch of 512
 * tokens. */
#include "models/reference_models.h"

#include "llm/session_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAYERS_MOST = 64 };

static const char *tiny_path(void) {
    static char path[64];
    snprintf(path, sizeof path, "/tmp/tenon-rank-sums-%d.gguf", (int)getpid());
    return path;
}

/* Sums are named WHAT_reduced.LAYER or WHAT_reduced.LAYER@CHUNK. */
static int count_sums(const tn_graph *graph, int sums[LAYERS_MOST]) {
    static const char mark[] = "_reduced.";
    int all = 0;
    for (size_t i = 0; i < tn_graph_node_count(graph); i++) {
        const char *at = strstr(tn_graph_node(graph, i)->name, mark);
        if (!at) continue;
        const int layer = atoi(at + strlen(mark));
        assert_in_range(layer, 0, LAYERS_MOST - 1);
        sums[layer]++;
        all++;
    }
    return all;
}

/* The largest number of sums of any layer; *all: of a decode. */
static int most_sums(const char *path, int n_ranks, int *all) {
    tn_model *model;
    tn_session_plan *plan;
    tn_session_params p = tn_session_params_default();
    int most = 0;
    p.n_ctx = 1024;
    p.n_batch = p.n_ubatch = 512;
    p.n_threads = 1;
    p.devices[0] = "cpu";
    assert_ok(tn_model_open(path, &(tn_model_params){.n_ranks = n_ranks}, &model));
    assert_ok(tn_session_plan_new(model, &p, &plan));
    static const int graphs[] = {TN__REPORTED_PREFILL, TN__REPORTED_DECODE};
    for (size_t g = 0; g < sizeof graphs / sizeof *graphs; g++) {
        int sums[LAYERS_MOST] = {0};
        *all = count_sums(plan->graphs.kept[graphs[g]]->graph, sums);
        for (int i = 0; i < LAYERS_MOST; i++) most = sums[i] > most ? sums[i] : most;
    }
    tn_session_plan_free(plan);
    tn_model_close(model);
    return most;
}

static void layers_of_every_architecture_have_at_most_two_sums(void **state) {
    (void)state;
    int n_models = 0, n_single = 0;
    for (size_t i = 0; tn_arch_at(i); i++) {
        const tn_arch *arch = tn_arch_at(i);
        if (getenv("TENON_ARCH") && strcmp(getenv("TENON_ARCH"), arch->name) != 0) continue;
        if (arch->traits & TN_ARCH_ENCODER) continue;
        const tiny_options options = {.arch = arch->name,
                                      .heads = 8,
                                      .kv_heads = 4,
                                      .width = 64,
                                      .head = strcmp(arch->name, "deci") == 0 ? 8 : 16};
        if (tiny_model_write(tiny_path(), &options) != TN_OK) fail_msg("%s: %s", arch->name, tn_error());
        int all = 0;
        const int most = most_sums(tiny_path(), 2, &all);
        if (getenv("TENON_VERBOSE")) print_message("%-20s at most %d, %d in a decode\n", arch->name, most, all);
        if (most > 2) fail_msg("%s: a layer needs %d sums", arch->name, most);
        n_models++;
        n_single += most == 1;
    }
    remove(tiny_path());
    assert_true(getenv("TENON_ARCH") || (n_models >= 60 && n_single >= 1));
}

/* Attention and feed-forward side by side share one sum; a dense part beside experts shares theirs. */
static void parts_side_by_side_share_a_sum(void **state) {
    (void)state;
    static const struct {
        const char *arch;
        int most;
    } cases[] = {{"llama", 2}, {"falcon", 1}, {"command-r", 1}, {"phi2", 1}, {"arctic", 2}, {"grok", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int all;
        const tiny_options options = {.arch = cases[i].arch, .heads = 8, .kv_heads = 4, .width = 64, .head = 16};
        assert_ok(tiny_model_write(tiny_path(), &options));
        const int most = most_sums(tiny_path(), 2, &all);
        if (most != cases[i].most) fail_msg("%s: %d sums in a layer, not %d", cases[i].arch, most, cases[i].most);
    }
    remove(tiny_path());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_of_every_architecture_have_at_most_two_sums),
        cmocka_unit_test(parts_side_by_side_share_a_sum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
