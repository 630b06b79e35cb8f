/* The placement policy: layers to devices, from sizes alone. */
#include "tenon/placement.h"

#include "base/checked.h"

#include <string.h>

const char *tn_placement_cause_text(tn_placement_cause cause) {
    static const char *const texts[] = {
#define TN_X(name, text) text,
        TN_PLACEMENT_CAUSE_TABLE(TN_X)
#undef TN_X
    };
    return (size_t)cause < TN__COUNT(texts) ? texts[cause] : "?";
}

typedef struct placement_search {
    const tn_placement_params *p;
    tn_placement *placements;
    size_t *needed;
    size_t *moving;   /* layers that may leave the host, the first to leave first */
    size_t n_moving;  /* without those that the caller assigned to a device */
    size_t *by_speed; /* devices but the host */
    bool *leaves;     /* per layer, in the current attempt */
    bool *used;       /* per device: it has a run of layers */
    double shares;    /* their sum; 0: by speed and room */
} placement_search;

static size_t layer_bytes(const placement_search *j, size_t layer, size_t device) {
    return j->p->bytes[layer * j->p->n_devices + device];
}
/* A sum that overflows is larger than any memory. */
static size_t add_saturated(size_t a, size_t b) { return a > SIZE_MAX - b ? SIZE_MAX : a + b; }

static void put_layer(placement_search *j, size_t layer, size_t device, tn_placement_cause cause) {
    if (j->needed[device] == 0) j->needed[device] = j->p->devices[device].fixed;
    j->needed[device] = add_saturated(j->needed[device], layer_bytes(j, layer, device));
    j->placements[layer] = (tn_placement){(int)device, cause};
}
/* Whether the device's domain has this many bytes beside what its other devices need. */
static bool domain_has_room(const placement_search *j, size_t device, size_t bytes) {
    const tn_placement_params *p = j->p;
    const size_t domain = p->devices[device].domain;
    if (!domain) return true;
    for (size_t d = 0; d < p->n_devices; d++)
        if (d != device && p->devices[d].domain == domain) bytes = add_saturated(bytes, j->needed[d]);
    return bytes <= p->domain_free[domain - 1];
}
static bool has_room_for(const placement_search *j, size_t layer, size_t device) {
    size_t before = j->needed[device] ? j->needed[device] : j->p->devices[device].fixed;
    size_t bytes = add_saturated(before, layer_bytes(j, layer, device));
    return bytes <= j->p->devices[device].free && domain_has_room(j, device, bytes);
}

/* Puts layers off the host, the last one first, each run of them on the fastest device that is not in use yet. A
 * layer that fits nowhere joins the last run; the result is false then. */
static bool fill_by_speed(placement_search *j) {
    size_t n_devices = j->p->n_devices, current = n_devices;
    bool all_fit = true;
    memset(j->used, 0, n_devices * sizeof *j->used);
    for (size_t k = j->p->n_layers; k-- > 0;) {
        if (!j->leaves[k]) continue;
        size_t at = current;
        if (at == n_devices || !has_room_for(j, k, at)) {
            for (size_t s = 0; s + 1 < n_devices; s++) {
                size_t d = j->by_speed[s];
                if (j->used[d] || !has_room_for(j, k, d)) continue;
                at = d;
                break;
            }
            if (at == current) {
                all_fit = false;
                if (at == n_devices) at = j->by_speed[0];
            }
        }
        current = at;
        j->used[at] = true;
        put_layer(j, k, at, at == j->by_speed[0] ? TN_PLACEMENT_FASTEST : TN_PLACEMENT_NEXT);
    }
    return all_fit;
}

static void fill_by_share(placement_search *j, size_t count) {
    size_t seen = 0;
    for (size_t k = 0; k < j->p->n_layers; k++) {
        if (!j->leaves[k]) continue;
        double at = ((double)seen++ + 0.5) / (double)count, sum = 0;
        size_t d = 0, last = 0;
        for (; d + 1 < j->p->n_devices; d++) {
            if (j->p->devices[d].share <= 0) continue;
            last = d;
            sum += j->p->devices[d].share / j->shares;
            if (at < sum) break;
        }
        put_layer(j, k, last, TN_PLACEMENT_SHARE);
    }
}

/* Makes the placement with `count` layers off the host. Returns whether it fits every device. */
static bool try_placement(placement_search *j, size_t count) {
    const tn_placement_params *p = j->p;
    size_t host = p->n_devices - 1;
    memset(j->needed, 0, p->n_devices * sizeof *j->needed);
    memset(j->leaves, 0, p->n_layers * sizeof *j->leaves);
    j->needed[host] = p->devices[host].fixed;
    for (size_t i = 0; i < count; i++) j->leaves[j->moving[i]] = true;
    tn_placement_cause stays = host == 0            ? TN_PLACEMENT_ONLY
                               : p->n_off_host >= 0 ? TN_PLACEMENT_LIMIT
                                                    : TN_PLACEMENT_FULL;
    for (size_t k = 0; k < p->n_layers; k++) {
        if (p->layers[k].device != TN_PLACEMENT_FREE)
            put_layer(j, k, (size_t)p->layers[k].device, TN_PLACEMENT_PINNED);
        else if (!j->leaves[k])
            put_layer(j, k, host, stays);
    }
    bool fits = true;
    if (j->shares > 0)
        fill_by_share(j, count);
    else if (count)
        fits = fill_by_speed(j);
    for (size_t d = 0; d < p->n_devices; d++)
        fits = fits && j->needed[d] <= p->devices[d].free && domain_has_room(j, d, j->needed[d]);
    return fits;
}

static tn_status check_placement_params(const tn_placement_params *p) {
    if (!p->devices || p->n_devices == 0 || (p->n_layers && (!p->layers || !p->bytes)))
        return tn_fail(TN_E_INVALID, "tn_placement_choose: devices, layers and their bytes are needed");
    for (size_t k = 0; k < p->n_layers; k++)
        if (p->layers[k].device != TN_PLACEMENT_FREE &&
            (p->layers[k].device < 0 || (size_t)p->layers[k].device >= p->n_devices))
            return tn_fail(TN_E_INVALID, "layer %zu is assigned to device %d of %zu", k, p->layers[k].device,
                           p->n_devices);
    for (size_t d = 0; d < p->n_devices; d++)
        if (p->devices[d].domain > p->n_domains || (p->devices[d].domain && !p->domain_free))
            return tn_fail(TN_E_INVALID, "device %zu draws from domain %zu of %zu", d, p->devices[d].domain,
                           p->n_domains);
    for (size_t d = 0; d < p->n_devices; d++)
        if (!(p->devices[d].share >= 0 && p->devices[d].share < 1e300))
            return tn_fail(TN_E_INVALID, "device %zu's share is %g; it must be 0 or more", d, p->devices[d].share);
    return TN_OK;
}

static void search_placement(placement_search *j, bool *fits) {
    const tn_placement_params *p = j->p;
    size_t n_others = p->n_devices - 1;
    for (size_t d = 0; d < n_others; d++) {
        size_t at = d;
        while (at > 0 && p->devices[j->by_speed[at - 1]].speed < p->devices[d].speed) {
            j->by_speed[at] = j->by_speed[at - 1];
            at--;
        }
        j->by_speed[at] = d;
        j->shares += p->devices[d].share;
    }
    for (int late = 0; late < 2; late++)
        for (size_t k = p->n_layers; k-- > 0;)
            if (p->layers[k].device == TN_PLACEMENT_FREE && p->layers[k].late == late) j->moving[j->n_moving++] = k;
    size_t most = n_others ? j->n_moving : 0;
    if (p->n_off_host >= 0) {
        *fits = try_placement(j, TN__MIN((uint64_t)p->n_off_host, (uint64_t)most));
        return;
    }
    size_t count = most;
    while (!(*fits = try_placement(j, count)) && count > 0) count--;
    /* Nothing fits: report the placement that needs least of the host. */
    if (!*fits) (void)try_placement(j, most);
}

tn_status tn_placement_choose(const tn_placement_params *p, tn_placement *placements, size_t *needed, bool *fits) {
    if (!p || !placements || !needed || !fits) return tn_fail(TN_E_INVALID, "tn_placement_choose: NULL argument");
    TN_TRY(check_placement_params(p));
    placement_search j = {.p = p, .placements = placements, .needed = needed};
    j.moving = tn_calloc(p->n_layers + 1, sizeof *j.moving);
    j.leaves = tn_calloc(p->n_layers + 1, sizeof *j.leaves);
    j.by_speed = tn_calloc(p->n_devices, sizeof *j.by_speed);
    j.used = tn_calloc(p->n_devices, sizeof *j.used);
    tn_status status = j.moving && j.leaves && j.by_speed && j.used ? TN_OK : TN_E_NOMEM;
    if (status == TN_OK) search_placement(&j, fits);
    tn_free(j.moving);
    tn_free(j.leaves);
    tn_free(j.by_speed);
    tn_free(j.used);
    return status;
}

tn_status tn_placement_explain(const tn_placement_params *p, const tn_placement *placements, FILE *out) {
    if (!p || !placements || !out) return tn_fail(TN_E_INVALID, "tn_placement_explain: NULL argument");
    for (size_t k = 0; k < p->n_layers; k++) {
        size_t d = (size_t)placements[k].device;
        fprintf(out, "%-16s %14zu bytes on %-8s %s\n", p->layers[k].name ? p->layers[k].name : "",
                p->bytes[k * p->n_devices + d], p->devices[d].name ? p->devices[d].name : "",
                tn_placement_cause_text(placements[k].cause));
    }
    return ferror(out) ? tn_fail(TN_E_IO, "writing the placement failed") : TN_OK;
}
