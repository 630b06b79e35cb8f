/* GET /memory: the data of the web UI's memory view. */
#include "serve/serve.h"

#include "engine/loaded_model.h"

/* A device's name, which may be invalid UTF-8. */
static json_t *device_name_json(const char *name) {
    json_t *text = json_string(name);
    return text ? text : json_string("?");
}

static json_t *devices_json(const struct served *served) {
    const tn_fit *used = &served->view.used, *planned = &served->planned;
    json_t *devices = json_array();
    for (size_t i = 0; i < used->n_devices && i < planned->n_devices; i++) {
        const tn_fit_device *d = &used->devices[i];
        json_array_append_new(
            devices,
            json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:{s:I, s:I, s:I}, s:i}", "name",
                      device_name_json(d->name), "planned", (json_int_t)device_bytes(&planned->devices[i]), "used",
                      (json_int_t)device_bytes(d), "weights", (json_int_t)d->weights, "adapters",
                      (json_int_t)d->adapters, "mapped", (json_int_t)d->mapped, "cache", (json_int_t)d->cache,
                      "compute", (json_int_t)d->compute, "scratch", (json_int_t)d->scratch, "tier",
                      (json_int_t)d->tier, "free", (json_int_t)d->free, "total", (json_int_t)d->total, "domain",
                      "first", (json_int_t)d->domain, "free", (json_int_t)d->domain_free, "total",
                      (json_int_t)d->domain_total, "layers", (int)d->n_layers));
    }
    return devices;
}

static json_t *slots_json(const struct served *served) {
    json_t *slots = json_array();
    for (int i = 0; i < served->server->n_slots; i++) {
        const struct slot_view *s = &served->view.slots[i];
        json_array_append_new(slots, json_pack("{s:b, s:b, s:i, s:i, s:i, s:i, s:i}", "busy", (int)s->busy,
                                               "moved_aside", (int)s->stalled, "prompt", (int)s->n_prompt, "cached",
                                               (int)s->n_cached, "predicted", (int)s->n_predicted, "cells",
                                               (int)s->n_done, "pages", (int)s->n_pages));
    }
    return slots;
}

/* The owner of each cell, run-length encoded as [owner, count]. */
static json_t *cells_json(const struct engine_view *view) {
    json_t *runs = json_array();
    for (int32_t i = 0, n; i < view->cache.cells; i += n) {
        for (n = 1; i + n < view->cache.cells && view->map[i + n] == view->map[i];) n++;
        json_array_append_new(runs, json_pack("[i, i]", (int)view->map[i], (int)n));
    }
    return json_pack("{s:i, s:i, s:i, s:o}", "total", (int)view->cache.cells, "used", (int)view->cache.used, "peak",
                     (int)view->cache.peak, "runs", runs);
}

static json_t *pages_json(const struct engine_view *v) {
    return json_pack("{s:i, s:i, s:i, s:i, s:i}", "cells", (int)v->cache.page, "total", (int)v->cache.pages, "free",
                     (int)v->n_free_pages, "shared", (int)v->n_shared_pages, "prefixes", (int)v->n_kept_pages);
}

static json_t *prefixes_json(const struct engine_view *v) {
    const tn_prefix_usage *p = &v->prefixes;
    json_t *tree = json_array();
    for (int32_t i = 0; i < v->n_tree; i++) {
        const tn_prefix_info *t = &v->tree[i];
        json_array_append_new(tree, json_pack("{s:i, s:i, s:i, s:i, s:i, s:I}", "id", (int)t->id, "tokens",
                                              (int)t->tokens, "parent", (int)t->parent, "shared", (int)t->shared,
                                              "cells", (int)t->cells, "last_used", (json_int_t)t->last_used));
    }
    return json_pack("{s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:o}", "kept", (int)p->kept, "limit", (int)p->limit,
                     "cells", (int)p->cells, "asked", (json_int_t)p->asked, "taken", (json_int_t)p->taken, "evicted",
                     (json_int_t)p->evicted, "hits", (json_int_t)p->hits, "misses", (json_int_t)p->misses, "tree",
                     tree);
}

static json_t *tiers_json(const tn_tier_usage *t) {
    return json_pack("{s:{s:I, s:I, s:i, s:I, s:I}, s:{s:I, s:I, s:i, s:I, s:I, s:I}, s:I}", "host", "limit",
                     (json_int_t)t->host_limit, "bytes", (json_int_t)t->host_bytes, "blocks", (int)t->host_blocks,
                     "tokens_taken", (json_int_t)t->host_tokens, "blocks_stored", (json_int_t)t->host_stored, "disk",
                     "limit", (json_int_t)t->disk_limit, "bytes", (json_int_t)t->disk_bytes, "blocks",
                     (int)t->disk_blocks, "tokens_taken", (json_int_t)t->disk_tokens, "blocks_stored",
                     (json_int_t)t->disk_stored, "failed", (json_int_t)t->disk_failed, "dropped",
                     (json_int_t)t->dropped);
}

void serve_memory(struct served *served, struct evhttp_request *http, json_t *body) {
    (void)body;
    pthread_mutex_lock(&served->lock);
    const struct engine_view *v = &served->view;
    json_t *answer = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:i, s:I, s:I}", "devices", devices_json(served), "slots",
        slots_json(served), "cells", cells_json(v), "pages", pages_json(v), "prefixes", prefixes_json(v), "tiers",
        tiers_json(&v->tiers), "generated_tokens", (json_int_t)v->stats.generated_tokens, "generated_ns",
        (json_int_t)v->stats.generated_ns, "plans_reused", (json_int_t)v->stats.sched.plans_reused, "waiting",
        served->n_queued + served->n_embed_queued, "moved_aside", (json_int_t)v->n_stalls, "context_shifts",
        (json_int_t)v->n_shifts);
    /* The tree needs a comparison of all prefixes, so the engine makes it only on request: this request triggers it
     * for the next one.
     */
    served->tree_wanted = served->state_wanted = true;
    pthread_cond_signal(&served->wake);
    pthread_mutex_unlock(&served->lock);
    reply_json(served->server, http, 200, answer);
}
