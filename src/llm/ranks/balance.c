/* Shares of ranks from what each of them has: ranks exchange their measured peaks and free memory before they divide
 * a model. */
#include "llm/ranks/lead.h"

#include "base/checked.h"
#include "base/hash.h"
#include "llm/model_internal.h"
#include "tenon/net/ranks.h"
#include "tenon/speed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The fraction of a device's free memory that weights may take: cache and activations need the rest. */
static const double weights_share = 0.9;
/* Two measurements of one device differ by up to this factor: ranks whose rates differ by less get equal shares. */
static const double equal_rates = 1.1;

void tn__machine_name(char *name, size_t size) {
    const char *other = getenv("TENON_MACHINE");
    name[0] = name[size - 1] = '\0';
    if (other && *other)
        snprintf(name, size, "%s", other);
    else
        (void)gethostname(name, size - 1);
}
uint64_t tn__machine_hash(void) {
    char name[256];
    tn__machine_name(name, sizeof name);
    return tn__hash_bytes(name, strlen(name), 0);
}

int tn_ranks_per_machine(const tn_rank_resources *all, int n) {
    int count = 1;
    while (count < n && all[count].machine == all[0].machine) count++;
    bool regular = n % count == 0;
    for (int r = 0; r < n && regular; r++) {
        regular = all[r].machine == all[r / count * count].machine;
        for (int before = 0; before < r / count * count && regular; before += count)
            regular = all[before].machine != all[r].machine;
    }
    return regular ? count : 0;
}

tn_status tn_rank_resources_of(tn_device *const *devices, int n, int n_threads, tn_rank_resources *resources) {
    enum { MANY_ROWS = 512 };
    tn_device_speed speed;
    if (!devices || !resources || n < 1 || n > TN_RANK_DEVICES)
        return tn_fail(TN_E_INVALID, "tn_rank_resources_of: %d devices, or NULL", n);
    *resources = (tn_rank_resources){.machine = tn__machine_hash(), .n_devices = n};
    for (int i = 0; i < n; i++) {
        size_t available = 0, total = 0;
        if (!devices[i]) return tn_fail(TN_E_INVALID, "tn_rank_resources_of: device %d is NULL", i);
        TN_TRY(tn_device_memory(devices[i], &available, &total));
        const char *name = tn_device_name(devices[i]);
        resources->devices[i].id = tn__hash_combine(resources->machine, tn__hash_bytes(name, strlen(name), 0));
        resources->devices[i].memory = available;
    }
    const int threads = tn_device_get_kind(devices[0]) == TN_DEVICE_CPU ? n_threads : 0;
    if (tn_device_get_speed(devices[0], threads, &speed) == TN_OK) {
        resources->read = speed.read;
        resources->multiply = tn_speed_multiply(&speed, TN_Q4_K, MANY_ROWS);
    } else {
        tn_error_clear();
    }
    return TN_OK;
}

tn_status tn_ranks_exchange(tn_net *net, const tn_rank_resources *own, tn_rank_resources *all) {
    size_t sizes[TN_NET_RANKS_MOST];
    if (!net || !own || !all) return tn_fail(TN_E_INVALID, "tn_ranks_exchange: NULL argument");
    for (int r = 0; r < tn_net_size(net); r++) sizes[r] = sizeof *own;
    return tn_net_all_gather(net, own, sizes, all);
}

/* Free bytes of a device that a rank may take: ranks on one device have equal parts of the least that they report. */
static double memory_of_device(const tn_rank_resources *all, int n, uint64_t id) {
    int users = 0;
    uint64_t memory = UINT64_MAX;
    for (int r = 0; r < n; r++)
        for (int d = 0; d < all[r].n_devices && d < TN_RANK_DEVICES; d++) {
            if (all[r].devices[d].id != id) continue;
            users++;
            memory = TN__MIN(memory, all[r].devices[d].memory);
        }
    return users ? (double)memory / users : 0;
}

/* The fraction of the model that a rank's memory holds. */
static double most_of(const tn_rank_resources *all, int n, int rank, double model_bytes) {
    double memory = 0;
    for (int d = 0; d < all[rank].n_devices && d < TN_RANK_DEVICES; d++)
        memory += memory_of_device(all, n, all[rank].devices[d].id);
    return model_bytes > 0 ? weights_share * memory / model_bytes : 1;
}

void tn_ranks_shares(const tn_rank_resources *all, int n, bool by_layers, float *shares) {
    double rates[TN_NET_RANKS_MOST], most[TN_NET_RANKS_MOST], model_bytes = 0, least = 0, largest = 0, room = 0;
    bool full[TN_NET_RANKS_MOST] = {false}, limited = false;
    if (n < 1 || n > TN_NET_RANKS_MOST) return;
    for (int r = 0; r < n; r++) {
        shares[r] = 0;
        model_bytes = fmax(model_bytes, (double)all[r].model_bytes);
        rates[r] = by_layers ? all[r].multiply : all[r].read;
        least = r ? fmin(least, rates[r]) : rates[r];
        largest = fmax(largest, rates[r]);
    }
    const bool alike = !(least > 0) || largest < least * equal_rates;
    for (int r = 0; r < n; r++) {
        if (alike) rates[r] = 1;
        most[r] = most_of(all, n, r, model_bytes);
        room += most[r];
    }
    if (room <= 1) { /* nothing fits: the refusal says by how much */
        for (int r = 0; r < n && room > 0; r++) shares[r] = (float)most[r];
        return;
    }
    /* Ranks whose memory is smaller than their share are filled, the others divide the rest; each pass fills one. */
    for (int pass = 0; pass < n; pass++) {
        double left = 1, sum = 0;
        int fill = -1;
        for (int r = 0; r < n; r++) {
            if (full[r])
                left -= most[r];
            else
                sum += rates[r];
        }
        for (int r = 0; r < n; r++) {
            if (full[r]) continue;
            const double share = left * rates[r] / sum;
            shares[r] = (float)share;
            if (share > most[r] && (fill < 0 || share / most[r] > shares[fill] / most[fill])) fill = r;
        }
        if (fill < 0) break;
        full[fill] = limited = true;
        shares[fill] = (float)most[fill];
    }
    if (alike && !limited) memset(shares, 0, (size_t)n * sizeof *shares); /* equal */
}
