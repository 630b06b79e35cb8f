/* Shares of ranks where the user gives none: ranks exchange their peaks and free memory before they open the model.
 */
#include "ranks/ranks.h"

#include "cli/term.h"

#include "tenon/gguf.h"
#include "tenon/net/ranks.h"

#include <math.h>
#include <string.h>

static bool shares_given(const tn_model_params *model) {
    for (size_t r = 0; r < sizeof model->shares / sizeof *model->shares; r++)
        if (model->shares[r] > 0) return true;
    return false;
}

/* Bytes of the weights; 0 for a rank without the file. A file that is damaged is reported when it is opened. */
static uint64_t weight_bytes(const char *path) {
    tn_gguf *file;
    uint64_t bytes = 0;
    if (tn_gguf_open(path, &(tn_gguf_params){.mode = TN_GGUF_META}, &file) != TN_OK) {
        tn_error_clear();
        return 0;
    }
    for (uint64_t i = 0; i < tn_gguf_tensor_count(file); i++) bytes += tn_gguf_tensor_at(file, i)->size;
    tn_gguf_close(file);
    return bytes;
}

/* Those that are named, else all GPUs, else the CPU. */
static tn_status own_resources(const tn_session_params *params, int n_threads, tn_rank_resources *resources) {
    const char *names[RANK_DEVICES_MOST];
    tn_device *devices[RANK_DEVICES_MOST];
    const int n = ranks_list_devices(params, names);
    for (int i = 0; i < n; i++) TN_TRY(tn_device_find(names[i], &devices[i]));
    if (!n) TN_TRY(tn_device_find("cpu", &devices[0]));
    return tn_rank_resources_of(devices, n ? n : 1, n_threads, resources);
}

static uint64_t free_memory(const tn_rank_resources *r) {
    uint64_t memory = 0;
    for (int i = 0; i < r->n_devices && i < TN_RANK_DEVICES; i++) memory += r->devices[i].memory;
    return memory;
}

static void print_shares(const tn_rank_resources *all, int n, const float *shares) {
    double sum = 0, least = shares[0], most = shares[0];
    for (int r = 0; r < n; r++) {
        sum += shares[r];
        least = fmin(least, shares[r]);
        most = fmax(most, shares[r]);
    }
    if (most < least * 1.01) return;
    fprintf(stderr, "%sShares of the ranks:", style(stderr, STYLE_DIM));
    for (int r = 0; r < n && sum > 0; r++) {
        char memory[HUMAN_SIZE];
        fprintf(stderr, "%s %.0f%% on rank %d (%s free", r ? "," : "", 100 * shares[r] / sum, r,
                human_bytes(memory, free_memory(&all[r])));
        if (all[r].read > 0) fprintf(stderr, ", %.1f GB/s", all[r].read / 1e9);
        fputc(')', stderr);
    }
    fprintf(stderr, "%s\n", style(stderr, STYLE_NONE));
}

/* With several machines the ranks of each form a stage. On one machine every rank has layers of its own. */
static void count_stage_ranks(const tn_rank_resources *all, int n, int rank, tn_model_params *model) {
    const int count = tn_ranks_per_machine(all, n);
    if (count && count < n) model->stage_ranks = count;
    if (!count && rank == 0)
        fprintf(stderr, "%sThe machines have different numbers of ranks: every rank has layers of its own.%s\n",
                style(stderr, STYLE_DIM), style(stderr, STYLE_NONE));
}

tn_status ranks_balance(tn_net *net, const char *path, const tn_session_params *params, int n_threads,
                        tn_model_params *model) {
    tn_rank_resources own, all[TN_NET_RANKS_MOST];
    if (tn_net_size(net) < 2) return TN_OK;
    TN_TRY(own_resources(params, n_threads, &own));
    own.model_bytes = weight_bytes(path);
    TN_TRY(tn_ranks_exchange(net, &own, all));
    if (model->by_layers && !model->stage_ranks) count_stage_ranks(all, tn_net_size(net), tn_net_rank(net), model);
    if (shares_given(model)) return TN_OK;
    tn_ranks_shares(all, tn_net_size(net), model->by_layers, model->shares);
    if (tn_net_rank(net) == 0 && shares_given(model)) print_shares(all, tn_net_size(net), model->shares);
    return TN_OK;
}

tn_status ranks_balance_devices(const char *path, const char *const *devices, int n, int n_threads,
                                tn_model_params *model) {
    tn_rank_resources all[RANK_DEVICES_MOST];
    if (shares_given(model)) return TN_OK;
    const uint64_t model_bytes = weight_bytes(path);
    for (int r = 0; r < n; r++) {
        tn_device *device;
        TN_TRY(tn_device_find(devices[r], &device));
        TN_TRY(tn_rank_resources_of(&device, 1, n_threads, &all[r]));
        all[r].model_bytes = model_bytes;
    }
    tn_ranks_shares(all, n, false, model->shares);
    if (shares_given(model)) print_shares(all, n, model->shares);
    return TN_OK;
}
