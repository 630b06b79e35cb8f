/* Opening transports, and the code that all of them share: argument checks, and the first failure, which breaks the
 * transport. */
#include "net/transports.h"

#include "base/checked.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Opening ---- */

/* TENON_NET_MODULE names another file. Otherwise the module is next to the library, or where the loader looks. */
static void *load_module(const char *name, char *path, size_t size) {
    Dl_info info;
    static const char anchor;
    const char *other = getenv("TENON_NET_MODULE"), *slash = NULL;
    snprintf(path, size, "libtenon_net-%s.so", name);
    if (other && *other) {
        snprintf(path, size, "%s", other);
        return dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    }
    if (dladdr(&anchor, &info) && info.dli_fname && (slash = strrchr(info.dli_fname, '/'))) {
        static const char *const folders[] = {"", "../lib/"}; /* of a library, of a program with all in it */
        for (size_t i = 0; i < TN__COUNT(folders); i++) {
            snprintf(path, size, "%.*s/%slibtenon_net-%s.so", (int)(slash - info.dli_fname), info.dli_fname,
                     folders[i], name);
            void *module = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
            if (module) return module;
        }
        snprintf(path, size, "libtenon_net-%s.so", name);
    }
    return dlopen(path, RTLD_NOW | RTLD_GLOBAL);
}

tn_status tn__net_module_open(const char *name, const tn_net_params *params, tn_net *net) {
    char path[4096];
    void *module = load_module(name, path, sizeof path);
    if (!module)
        return tn_fail(TN_E_NOT_FOUND,
                       "cannot load the transport '%s': %s; MPI's is built where libopenmpi-dev or libmpich-dev is "
                       "installed",
                       name, dlerror());
    tn_net_entry_fn entry;
    void *symbol = dlsym(module, TN_NET_ENTRY_NAME);
    memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast from object to function pointers */
    if (!symbol) return tn_fail(TN_E_FORMAT, "%s: not a transport (no %s)", path, TN_NET_ENTRY_NAME);
    tn_net_module info = {.interface = 0};
    TN_TRY(entry(&info));
    if (info.interface != TN_NET_INTERFACE)
        return tn_fail(TN_E_VERSION, "%s: built for transport interface %u, this library has %u", path,
                       (unsigned)info.interface, (unsigned)TN_NET_INTERFACE);
    return info.open(params, net);
}

/* "100us" → ns, "10G" → 1e10; false for anything else. */
static bool parse_delay_time(const char *text, size_t length, uint64_t *ns) {
    char *end;
    const double value = strtod(text, &end);
    const size_t unit = length - (size_t)(end - text);
    if (end == text || !(value >= 0) || value > 1e9) return false;
    const double scale = unit == 2 && strncmp(end, "us", 2) == 0   ? 1e3
                         : unit == 2 && strncmp(end, "ms", 2) == 0 ? 1e6
                         : unit == 1 && *end == 's'                ? 1e9
                                                                   : 0;
    *ns = (uint64_t)(value * scale);
    return scale > 0;
}
static bool parse_delay_rate(const char *text, size_t length, double *rate) {
    char *end;
    *rate = strtod(text, &end);
    const size_t unit = length - (size_t)(end - text);
    if (end == text || !(*rate > 0) || unit > 1) return false;
    *rate *= !unit ? 1 : *end == 'K' ? 1e3 : *end == 'M' ? 1e6 : *end == 'G' ? 1e9 : *end == 'T' ? 1e12 : 0;
    return *rate > 0;
}

/* "100us,1G:shm:5" after "delay:". */
static tn_status open_delayed(const char *spec, const tn_net_params *params, tn_net *net) {
    const char *colon = strchr(spec, ':'), *comma = strchr(spec, ',');
    uint64_t latency = 0;
    double rate = 0;
    if (comma && colon && comma > colon) comma = NULL;
    const char *end = comma ? comma : colon;
    if (!colon || !parse_delay_time(spec, (size_t)(end - spec), &latency) ||
        (comma && !parse_delay_rate(comma + 1, (size_t)(colon - comma - 1), &rate)))
        return tn_fail(TN_E_SYNTAX,
                       "a delayed transport is delay:LATENCY[,RATE]:TRANSPORT, as in delay:100us,1G:mpi");
    tn_net_params inner = *params;
    inner.type = TN_NET_F32;
    TN_TRY(tn_net_open(colon + 1, &inner, &net->inner));
    return tn__net_delay_open(latency, rate, net);
}

/* "shm:5" after "nccl:". */
static tn_status open_nccl(const char *spec, const tn_net_params *params, tn_net *net) {
    tn_net_params inner = *params;
    inner.type = TN_NET_F32;
    TN_TRY(tn_net_open(spec, &inner, &net->inner));
    net->rank = net->inner->rank;
    net->size = net->inner->size;
    return tn__net_module_open("nccl", params, net);
}

static tn_status open_transport(const char *spec, const tn_net_params *params, tn_net *net) {
    if (strncmp(spec, "delay:", 6) == 0) return open_delayed(spec + 6, params, net);
    if (strcmp(spec, "mpi") == 0) return tn__net_module_open("mpi", params, net);
    if (strncmp(spec, "nccl:", 5) == 0) return open_nccl(spec + 5, params, net);
    if (strncmp(spec, "shm:", 4) == 0) {
        char *end;
        const long fd = strtol(spec + 4, &end, 10);
        if (end == spec + 4 || *end || fd < 0 || fd > INT32_MAX)
            return tn_fail(TN_E_SYNTAX, "'%s': shm:FD names an open file descriptor", spec);
        return tn__net_shm_open((int)fd, params, net);
    }
    return tn_fail(TN_E_NOT_FOUND,
                   "unknown transport '%s' (known: shm:FD, mpi, nccl:SPEC, delay:LATENCY[,RATE]:SPEC)", spec);
}

static void free_transport(tn_net *net) {
    if (net->ops) net->ops->free(net);
    tn_net_free(net->inner);
    tn_free(net->coded);
    tn_free(net);
}

tn_status tn_net_open(const char *spec, const tn_net_params *params, tn_net **out) {
    if (!spec || !params || !out) return tn_fail(TN_E_INVALID, "tn_net_open: NULL argument");
    *out = NULL;
    tn_net *net = tn_calloc(1, sizeof *net);
    if (!net) return TN_E_NOMEM;
    net->rank = params->rank;
    net->size = params->n_ranks;
    net->timeout_ms = params->timeout_ms ? params->timeout_ms : 30000;
    net->message_bytes = params->message_bytes ? params->message_bytes : (size_t)1 << 20;
    tn_status status = open_transport(spec, params, net);
    if (status == TN_OK &&
        (net->size < 1 || net->size > TN_NET_RANKS_MOST || net->rank < 0 || net->rank >= net->size))
        status = tn_fail(TN_E_INVALID, "rank %d of %d: 1 to %d ranks are supported", net->rank, net->size,
                         TN_NET_RANKS_MOST);
    if (status == TN_OK) status = tn__coded_begin(net, params->type);
    if (status != TN_OK) {
        free_transport(net);
        return status;
    }
    *out = net;
    return TN_OK;
}

void tn_net_free(tn_net *net) {
    if (net) free_transport(net);
}

int tn_net_rank(const tn_net *net) { return net ? net->rank : 0; }
int tn_net_size(const tn_net *net) { return net ? net->size : 1; }
const char *tn_net_name(const tn_net *net) { return net ? net->name : ""; }
tn_net_type tn_net_get_type(const tn_net *net) { return net ? net->type : TN_NET_F32; }
size_t tn_net_bytes(const tn_net *net) {
    return net && net->ops->bytes ? net->ops->bytes(net) + tn__coded_bytes(net) : 0;
}

tn_status tn_net_status(const tn_net *net) {
    return !net || net->status == TN_OK ? TN_OK : tn_fail(net->status, "%s", net->error);
}

/* ---- Calls ---- */

/* Stores the first failure and notifies the other ranks. */
static tn_status finish(tn_net *net, tn_status status) {
    if (status == TN_OK || net->status != TN_OK) return status;
    net->status = status;
    snprintf(net->error, sizeof net->error, "%s", tn_error());
    if (net->ops->abort) net->ops->abort(net, status, net->error);
    return tn_fail(status, "%s", net->error);
}
#define CHECKED(net, call)                                                                                           \
    do {                                                                                                             \
        if (!(net)) return tn_fail(TN_E_INVALID, "the transport is NULL");                                           \
        TN_TRY(tn_net_status(net));                                                                                  \
        return finish(net, call);                                                                                    \
    } while (0)

tn_status tn_net_all_reduce(tn_net *net, const float *in, float *out, size_t n) {
    CHECKED(net, net->coded ? tn__coded_reduce(net, in, out, n) : net->ops->all_reduce(net, in, out, n));
}
tn_status tn_net_all_gather(tn_net *net, const void *own, const size_t *sizes, void *out) {
    CHECKED(net, net->ops->all_gather(net, own, sizes, out));
}
tn_status tn_net_broadcast(tn_net *net, int root, void *data, size_t size) {
    CHECKED(net, net->ops->broadcast(net, root, data, size, false));
}
tn_status tn_net_barrier(tn_net *net) {
    float none = 0;
    CHECKED(net, net->ops->all_reduce(net, &none, &none, 1));
}
tn_status tn_net_note(tn_net *net, void *data, size_t size) {
    if (size > TN_NET_NOTE) return tn_fail(TN_E_INVALID, "a note has at most %d bytes, not %zu", TN_NET_NOTE, size);
    CHECKED(net, net->ops->broadcast(net, 0, data, size, true));
}
static tn_status check_peer(const tn_net *net, int peer) {
    if (peer >= 0 && peer < net->size && peer != net->rank) return TN_OK;
    return tn_fail(TN_E_INVALID, "rank %d cannot exchange messages with rank %d of %d", net->rank, peer, net->size);
}
tn_status tn_net_send(tn_net *net, int to, const void *data, size_t size) {
    if (net) TN_TRY(check_peer(net, to));
    CHECKED(net, net->ops->send(net, to, data, size));
}
tn_status tn_net_receive(tn_net *net, int from, void *data, size_t size) {
    if (net) TN_TRY(check_peer(net, from));
    CHECKED(net, net->ops->receive(net, from, data, size, false));
}
tn_status tn_net_send_floats(tn_net *net, int to, const float *values, size_t n) {
    if (!net || !net->coded) return tn_net_send(net, to, values, n * sizeof *values);
    TN_TRY(check_peer(net, to));
    CHECKED(net, tn__coded_send(net, to, values, n));
}
tn_status tn_net_receive_floats(tn_net *net, int from, float *values, size_t n) {
    if (!net || !net->coded) return tn_net_receive(net, from, values, n * sizeof *values);
    TN_TRY(check_peer(net, from));
    CHECKED(net, tn__coded_receive(net, from, values, n));
}
tn_status tn_net_wait(tn_net *net, int from, void *data, size_t size) {
    if (net) TN_TRY(check_peer(net, from));
    CHECKED(net, net->ops->receive(net, from, data, size, true));
}

void tn_net_abort(tn_net *net, tn_status status, const char *text) {
    if (!net || net->status != TN_OK || status == TN_OK) return;
    net->status = status;
    snprintf(net->error, sizeof net->error, "%s", text ? text : tn_status_text(status));
    if (net->ops->abort) net->ops->abort(net, status, net->error);
}
