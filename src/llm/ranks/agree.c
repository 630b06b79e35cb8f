/* Ranks compare their configurations before anything is loaded. */
#include "llm/ranks/lead.h"

#include "base/checked.h"
#include "base/hash.h"
#include "llm/session_internal.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A refusal lists this much of what does not fit: a message of the library has at most 2,048 bytes. */
enum { LISTED_DEVICES = 4, LISTED_RANKS = 6, REASON = 160, MESSAGE = 2048 };

/* Memory of one device of a rank. Ranks with devices of the same hash use it together. */
typedef struct device_facts {
    uint64_t device; /* 0: none */
    char name[16];
    uint64_t needed, available;
} device_facts;
enum { FACTS_DEVICES = 17 }; /* tn_session_params.devices and the CPU */
typedef struct rank_facts {
    uint64_t model, session;
    char machine[40];
    uint64_t fits;       /* by its own plan */
    char reason[REASON]; /* of a rank that does not: its plan's message */
    device_facts devices[FACTS_DEVICES];
} rank_facts;

tn_status tn__ranks_break(tn_net *net, tn_status status) {
    char text[MESSAGE];
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
                             p->model->division.n_stages,
                             tn_net_get_type(p->model->division.net)};
    uint64_t h = tn__hash_bytes(facts, sizeof facts, 0);
    h = tn__hash_bytes(p->model->division.shares, sizeof p->model->division.shares, h);
    for (int g = 0; g < TN__CACHE_GROUPS; g++) h = tn__hash_combine(h, (uint64_t)p->kv.groups[g].n_pages);
    return tn__hash_combine(h, (uint64_t)p->kv.states.n_rows);
}

static rank_facts facts_of(const tn_session_plan *p, bool fits) {
    rank_facts f = {.model = tn__hash_combine(p->model->identity, (uint64_t)tn_gguf_tensor_count(p->model->file)),
                    .session = hash_session(p),
                    .fits = fits};
    tn__machine_name(f.machine, sizeof f.machine);
    const uint64_t machine = tn__machine_hash();
    for (size_t d = 0; d < p->placement.n_devices && d < FACTS_DEVICES; d++) {
        device_facts *to = &f.devices[d];
        const char *name = tn_device_name(p->devices[d].device);
        size_t available, total;
        to->device = tn__hash_combine(machine, tn__hash_bytes(name, strlen(name), 0));
        snprintf(to->name, sizeof to->name, "%s", name);
        to->needed = tn__device_plan_bytes(&p->devices[d]);
        if (tn_device_memory(p->devices[d].device, &available, &total) == TN_OK) to->available = available;
    }
    return f;
}

static const device_facts *same_device(const rank_facts *rank, uint64_t device) {
    for (int d = 0; d < FACTS_DEVICES; d++)
        if (device && rank->devices[d].device == device) return &rank->devices[d];
    return NULL;
}

/* The ranks on the device with this hash. */
typedef struct device_use {
    uint64_t needed, available;
    int first, users;
} device_use;

static device_use use_of(const rank_facts *all, int n_ranks, uint64_t device) {
    device_use u = {.available = UINT64_MAX, .first = n_ranks};
    for (int r = n_ranks - 1; r >= 0; r--) {
        const device_facts *d = same_device(&all[r], device);
        if (!d) continue;
        u.needed += d->needed;
        u.available = TN__MIN(u.available, d->available);
        u.first = r;
        u.users++;
    }
    return u;
}

static void append_too_big(const rank_facts *all, int n_ranks, uint64_t device, const device_use *u) {
    int listed = 0;
    tn_fail_more(TN_E_TOO_BIG, " %s of %s:", same_device(&all[u->first], device)->name, all[u->first].machine);
    for (int r = u->first; r < n_ranks && listed < LISTED_RANKS; r++) {
        const device_facts *d = same_device(&all[r], device);
        if (!d) continue;
        tn_fail_more(TN_E_TOO_BIG, " rank %d needs %llu bytes,", r, (unsigned long long)d->needed);
        listed++;
    }
    if (listed < u->users) tn_fail_more(TN_E_TOO_BIG, " and %d more ranks,", u->users - listed);
    if (u->users > 1) tn_fail_more(TN_E_TOO_BIG, " %llu together,", (unsigned long long)u->needed);
    tn_fail_more(TN_E_TOO_BIG, " %llu are free;", (unsigned long long)u->available);
}

/* Lists the devices whose ranks need more than there is; returns how many there are. */
static int append_devices(const rank_facts *all, int n_ranks) {
    int lacking = 0;
    for (int r = 0; r < n_ranks; r++)
        for (int d = 0; d < FACTS_DEVICES; d++) {
            const uint64_t device = all[r].devices[d].device;
            if (!device) continue;
            const device_use u = use_of(all, n_ranks, device);
            if (u.first < r || u.needed <= u.available) continue; /* listed before, or it fits */
            if (lacking++ < LISTED_DEVICES) append_too_big(all, n_ranks, device, &u);
        }
    if (lacking > LISTED_DEVICES) tn_fail_more(TN_E_TOO_BIG, " and %d more devices;", lacking - LISTED_DEVICES);
    return lacking;
}

static tn_status compare_memory(const rank_facts *all, int n_ranks) {
    tn_fail(TN_E_TOO_BIG, "the session does not fit its ranks:");
    const int lacking = append_devices(all, n_ranks);
    int alone = 0, first = n_ranks; /* ranks that do not fit by their own plans */
    for (int r = n_ranks - 1; r >= 0; r--) {
        if (all[r].fits) continue;
        alone++;
        first = r;
    }
    if (!lacking && !alone) {
        tn_error_clear();
        return TN_OK;
    }
    if (!lacking) tn_fail_more(TN_E_TOO_BIG, " rank %d of %s has too little memory;", first, all[first].machine);
    tn_fail_more(TN_E_TOO_BIG, " try a smaller context (-c), more machines, or other shares (-ts)");
    if (alone) tn_fail_more(TN_E_TOO_BIG, "; rank %d: %s", first, all[first].reason);
    return alone > 1 ? tn_fail_more(TN_E_TOO_BIG, " (and %d more ranks)", alone - 1) : TN_E_TOO_BIG;
}

static tn_status compare_facts(const rank_facts *all, int n_ranks) {
    for (int r = 0; r < n_ranks; r++) {
        if (all[r].model != all[0].model) return tn_fail(TN_E_STATE, "rank %d has a different model than rank 0", r);
        if (all[r].session != all[0].session)
            return tn_fail(
                TN_E_STATE,
                "rank %d plans a different session than rank 0: give all ranks the same options, and -c where "
                "their memory differs",
                r);
    }
    return compare_memory(all, n_ranks);
}

tn_status tn__ranks_agree(tn_session_plan *p, tn_status status) {
    tn_net *net = p->model->division.net;
    if (!net) return status;
    if (status != TN_OK && status != TN_E_TOO_BIG) return tn__ranks_fail(p->model, status);
    rank_facts all[TN_NET_RANKS_MOST];
    size_t sizes[TN_NET_RANKS_MOST];
    const int n_ranks = tn_net_size(net);
    for (int r = 0; r < n_ranks; r++) sizes[r] = sizeof *all;
    rank_facts own = facts_of(p, status == TN_OK);
    if (status != TN_OK) snprintf(own.reason, sizeof own.reason, "%s", tn_error());
    TN_TRY(tn_net_all_gather(net, &own, sizes, all));
    return tn__ranks_fail(p->model, compare_facts(all, n_ranks));
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
