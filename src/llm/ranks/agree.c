/* Ranks compare their configurations before anything is loaded. */
#include "llm/ranks/lead.h"

#include "base/checked.h"
#include "base/hash.h"
#include "llm/session_internal.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct rank_facts {
    uint64_t model, session, machine;
    uint64_t host_bytes, host_free; /* host memory that the session takes, and free host memory */
} rank_facts;

tn_status tn__ranks_break(tn_net *net, tn_status status) {
    char text[512];
    snprintf(text, sizeof text, "%s", tn_error());
    tn_net_abort(net, status, text);
    return tn_fail(status, "%s", text);
}
tn_status tn__ranks_fail(const tn_model *m, tn_status status) {
    return status == TN_OK || !m->division.net ? status : tn__ranks_break(m->division.net, status);
}

/* The layout is fixed, so that other versions can read it. */
tn_status tn__ranks_meet(const tn_model_params *params) {
    struct {
        uint64_t version, shares;
    } all[TN_NET_RANKS_MOST], own = {tn__hash_bytes(tn_version(), strlen(tn_version()), 0), params->share_weights};
    size_t sizes[TN_NET_RANKS_MOST];
    if (!params->net || params->vocab_only) return TN_OK;
    const int n_ranks = tn_net_size(params->net);
    for (int r = 0; r < n_ranks; r++) sizes[r] = sizeof own;
    TN_TRY(tn_net_all_gather(params->net, &own, sizes, all));
    for (int r = 0; r < n_ranks; r++) {
        if (all[r].version != all[0].version)
            return tn_fail(TN_E_VERSION, "rank %d runs a different version of Tenon than rank 0", r);
        if (all[r].shares != all[0].shares)
            return tn_fail(TN_E_STATE, "rank 0 %s and rank %d %s: give all ranks the same options (--share-weights)",
                           all[0].shares ? "sends weights" : "expects all ranks to have the file", r,
                           all[r].shares ? "waits for weights" : "opens its own file");
    }
    return TN_OK;
}

/* Settings that must be the same on all ranks: shapes of graphs and cells of the cache. */
static uint64_t hash_session(const tn_session_plan *p) {
    const tn_session_params *s = &p->params;
    const int64_t facts[] = {s->n_ctx,
                             s->n_batch,
                             s->n_ubatch,
                             s->n_seqs,
                             s->n_outputs,
                             s->page,
                             s->n_prefixes,
                             s->embeddings,
                             s->repeatable,
                             s->n_checkpoints,
                             s->pooling,
                             s->n_candidates,
                             s->cache_k,
                             s->cache_v,
                             p->model->division.n_ranks,
                             p->model->division.by_layers,
                             tn_net_get_type(p->model->division.net)};
    uint64_t h = tn__hash_bytes(facts, sizeof facts, 0);
    h = tn__hash_bytes(p->model->division.shares, sizeof p->model->division.shares, h);
    for (int g = 0; g < TN__CACHE_GROUPS; g++) h = tn__hash_combine(h, (uint64_t)p->kv.groups[g].n_pages);
    return tn__hash_combine(h, (uint64_t)p->kv.states.n_rows);
}

static rank_facts facts_of(const tn_session_plan *p) {
    char machine[256] = "";
    const tn__device_plan *host = &p->devices[p->placement.n_devices - 1];
    size_t total;
    rank_facts f = {.model = tn__hash_combine(p->model->identity, (uint64_t)tn_gguf_tensor_count(p->model->file)),
                    .session = hash_session(p),
                    .host_bytes = tn__device_plan_bytes(host)};
    (void)gethostname(machine, sizeof machine - 1);
    f.machine = tn__hash_bytes(machine, strlen(machine), 0);
    size_t free_bytes = 0;
    if (tn_device_memory(host->device, &free_bytes, &total) == TN_OK) f.host_free = free_bytes;
    return f;
}

static tn_status compare_facts(const rank_facts *all, int rank, int n_ranks) {
    uint64_t needed = 0, least = UINT64_MAX;
    for (int r = 0; r < n_ranks; r++) {
        if (all[r].model != all[0].model) return tn_fail(TN_E_STATE, "rank %d has a different model than rank 0", r);
        if (all[r].session != all[0].session)
            return tn_fail(
                TN_E_STATE,
                "rank %d plans a different session than rank 0: give all ranks the same options, and -c where "
                "their memory differs",
                r);
        if (all[r].machine != all[rank].machine) continue;
        needed += all[r].host_bytes;
        least = TN__MIN(least, all[r].host_free);
    }
    if (needed > least)
        return tn_fail(TN_E_TOO_BIG,
                       "the ranks of this machine need %llu bytes of host memory together, %llu are free: a smaller "
                       "context (-c) or fewer ranks",
                       (unsigned long long)needed, (unsigned long long)least);
    return TN_OK;
}

tn_status tn__ranks_agree(tn_session_plan *p) {
    tn_net *net = p->model->division.net;
    if (!net) return TN_OK;
    rank_facts all[TN_NET_RANKS_MOST];
    size_t sizes[TN_NET_RANKS_MOST];
    const int n_ranks = tn_net_size(net);
    for (int r = 0; r < n_ranks; r++) sizes[r] = sizeof *all;
    const rank_facts own = facts_of(p);
    TN_TRY(tn_net_all_gather(net, &own, sizes, all));
    return tn__ranks_fail(p->model, compare_facts(all, tn_net_rank(net), n_ranks));
}

tn_status tn__ranks_context(const tn_model *m, int32_t *n_ctx) {
    if (!m->division.net) return TN_OK;
    int32_t all[TN_NET_RANKS_MOST];
    size_t sizes[TN_NET_RANKS_MOST];
    const int n_ranks = tn_net_size(m->division.net);
    for (int r = 0; r < n_ranks; r++) sizes[r] = sizeof *all;
    TN_TRY(tn_net_all_gather(m->division.net, n_ctx, sizes, all));
    for (int r = 0; r < n_ranks; r++) *n_ctx = TN__MIN(*n_ctx, all[r]);
    return TN_OK;
}
