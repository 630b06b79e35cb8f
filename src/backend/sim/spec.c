/* Specifications of simulated devices: "sim:8G,align=256", "sim:rtx4090". */
#include "backend/sim/sim.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A number that is not negative; strtod alone would also take spaces, "inf", "nan" and hexadecimal digits. */
static bool parse_sim_number(const char *text, double *value, const char **rest) {
    char *end;
    if (!isdigit((unsigned char)text[0]) || text[1] == 'x' || text[1] == 'X') return false;
    *value = strtod(text, &end);
    *rest = end;
    return *value < 1e18;
}

/* "8G", "512M", "4096": powers of 1024. */
static bool parse_size(const char *text, size_t *bytes) {
    double value;
    const char *rest;
    if (!parse_sim_number(text, &value, &rest)) return false;
    switch (*rest) {
    case 'T': value *= 1024; /* fall through */
    case 'G': value *= 1024; /* fall through */
    case 'M': value *= 1024; /* fall through */
    case 'K': value *= 1024; rest++;
    }
    if (rest[0] == 'i' && rest[1] == 'B') rest += 2;
    if (*rest || value > 0x1p60) return false;
    *bytes = (size_t)value;
    return true;
}

/* "936G", "1.3T": powers of 1000, as in data sheets. */
static bool parse_rate(const char *text, double *rate) {
    const char *rest;
    if (!parse_sim_number(text, rate, &rest)) return false;
    switch (*rest) {
    case 'P': *rate *= 1e3; /* fall through */
    case 'T': *rate *= 1e3; /* fall through */
    case 'G': *rate *= 1e3; /* fall through */
    case 'M': *rate *= 1e3; /* fall through */
    case 'K': *rate *= 1e3; rest++;
    }
    return !*rest && *rate > 0 && *rate < 1e21;
}

/* "20us", "1ms", "500ns", "2s". */
static bool parse_time(const char *text, uint64_t *ns) {
    double value;
    const char *unit;
    if (!parse_sim_number(text, &value, &unit)) return false;
    double factor = !strcmp(unit, "ns")   ? 1
                    : !strcmp(unit, "us") ? 1e3
                    : !strcmp(unit, "ms") ? 1e6
                    : !strcmp(unit, "s")  ? 1e9
                                          : -1;
    if (factor < 0 || value * factor > 6e10) return false;
    *ns = (uint64_t)(value * factor);
    return true;
}

/* "mul_mat+add": only these; "-rope-attention": all but these. Views are always supported. */
static tn_status parse_ops(tn__sim *sim, const char *text) {
    bool without = text[0] == '-';
    memset(sim->ops, without, sizeof sim->ops);
    char name[64];
    for (const char *p = text; *p;) {
        p += *p == '+' || *p == '-';
        size_t length = strcspn(p, "+-");
        if (length >= sizeof name) return tn_fail(TN_E_INVALID, "unknown op '%.60s'", p);
        memcpy(name, p, length);
        name[length] = '\0';
        p += length;
        bool known = false;
        for (int op = 0; op < TN_OP_COUNT; op++) {
            if (strcmp(tn_op_name((tn_op)op), name) != 0) continue;
            sim->ops[op] = !without;
            known = true;
        }
        if (!known) return tn_fail(TN_E_INVALID, "unknown op '%s'", name);
    }
    for (int op = 0; op < TN_OP_COUNT; op++)
        if (tn_op_get_family((tn_op)op) == TN_FAMILY_VIEW) sim->ops[op] = 1;
    return TN_OK;
}

static tn_status parse_fault(tn__sim *sim, const char *text) {
    char kind[16];
    long n;
    if (sscanf(text, "%15[a-z]:%ld", kind, &n) != 2 || n < 1)
        return tn_fail(TN_E_INVALID, "fail=%s: must be alloc:N, copy:N or lost:N", text);
    if (!strcmp(kind, "alloc"))
        atomic_store(&sim->fail_alloc, n);
    else if (!strcmp(kind, "copy"))
        atomic_store(&sim->fail_copy, n);
    else if (!strcmp(kind, "lost"))
        atomic_store(&sim->fail_run, n);
    else
        return tn_fail(TN_E_INVALID, "fail=%s: must be alloc:N, copy:N or lost:N", text);
    return TN_OK;
}

/* "1" sets, "0" clears. */
static bool parse_switch(const char *text, bool *on) {
    if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0) return false;
    *on = text[0] == '1';
    return true;
}

static bool parse_memory_option(tn__sim *sim, const char *key, const char *value) {
    size_t bytes;
    bool on;
    if (!strcmp(key, "align") && parse_size(value, &bytes) && bytes && !(bytes & (bytes - 1)) && bytes <= 4096)
        sim->type.alignment = bytes;
    else if (!strcmp(key, "max-alloc") && parse_size(value, &bytes) && bytes)
        sim->type.max_size = bytes;
    else if (!strcmp(key, "uma") && parse_switch(value, &on))
        sim->device.caps.unified = on;
    else if (!strcmp(key, "report") && parse_switch(value, &on))
        sim->silent = !on;
    else if (!strcmp(key, "limit") && parse_size(value, &bytes) && bytes)
        sim->limit = bytes;
    else if (!strcmp(key, "card") && *value && strlen(value) < sizeof sim->device.card)
        snprintf(sim->device.card, sizeof sim->device.card, "%s", value);
    else
        return !strcmp(key, "memory-only") && parse_switch(value, &sim->memory_only);
    return true;
}

/* Rates are stated, not imitated: latency and bandwidth make the device slow. */
static bool parse_rate_option(tn_device_rates *rates, const char *key, const char *value) {
    uint64_t ns;
    if (!strcmp(key, "read")) return parse_rate(value, &rates->read);
    if (!strcmp(key, "f32")) return parse_rate(value, &rates->f32);
    if (!strcmp(key, "f16")) return parse_rate(value, &rates->f16);
    if (!strcmp(key, "i8")) return parse_rate(value, &rates->i8);
    if (!strcmp(key, "link")) return parse_rate(value, &rates->link);
    if (strcmp(key, "launch") != 0 || !parse_time(value, &ns)) return false;
    rates->launch = (double)ns / 1e9;
    return true;
}

static tn_status parse_option(tn__sim *sim, const char *key, const char *value) {
    size_t bytes;
    if (!strcmp(key, "ops")) return parse_ops(sim, value);
    if (!strcmp(key, "fail")) return parse_fault(sim, value);
    if (parse_memory_option(sim, key, value) || parse_rate_option(&sim->device.rates, key, value)) return TN_OK;
    if (!strcmp(key, "latency") && parse_time(value, &sim->latency_ns)) return TN_OK;
    if (!strcmp(key, "offload") && parse_switch(value, &sim->wants_ops)) return TN_OK;
    if (!strcmp(key, "bandwidth") && parse_size(value, &bytes) && bytes) {
        sim->bytes_per_ns = (double)bytes / 1e9;
        return TN_OK;
    }
    if (!strcmp(key, "name") && *value && strlen(value) < sizeof sim->device.name) {
        snprintf(sim->device.name, sizeof sim->device.name, "%s", value);
        return TN_OK;
    }
    return tn_fail(TN_E_INVALID,
                   "simulated device: invalid setting '%.80s=%.80s'; settings are align=BYTES (a power of two up to "
                   "4096), max-alloc=BYTES, uma=1, limit=BYTES, report=0, card=NAME, memory-only=1, latency=TIME "
                   "(20us), bandwidth=BYTES per second, read=RATE (936G), f32=RATE, f16=RATE, i8=RATE, link=RATE, "
                   "launch=TIME, ops=NAME+NAME or -NAME, fail=alloc:N|copy:N|lost:N, offload=1, name=NAME",
                   key, value);
}

/* A size, or the name of a preset. */
static tn_status parse_start(tn__sim *sim, const char *text) {
    size_t n, used = 0;
    const tn_device_preset *presets = tn_device_presets(&n);
    if (parse_size(text, &sim->size)) return TN_OK;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(text, presets[i].name) != 0) continue;
        sim->preset = &presets[i];
        sim->size = presets[i].memory;
        sim->limit = presets[i].limit;
        sim->device.caps.unified = presets[i].unified;
        sim->device.rates = presets[i].rates;
        sim->type.alignment = 256;
        return TN_OK;
    }
    char known[256] = "";
    for (size_t i = 0; i < n && used < sizeof known; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", presets[i].name);
    return tn_fail(TN_E_INVALID, "'sim:%.100s': a size like 8G or 512M must follow sim:, or the name of a card: %s",
                   text, known);
}

tn_status tn__sim_parse(tn__sim *sim, const char *specification) {
    char text[sizeof sim->specification];
    if (strncmp(specification, "sim:", 4) != 0 || strlen(specification) >= sizeof text)
        return tn_fail(TN_E_INVALID,
                       "invalid simulated device '%.100s': must be sim:SIZE[,align=…][,max-alloc=…]… and shorter "
                       "than %zu characters",
                       specification, sizeof text);
    snprintf(text, sizeof text, "%s", specification + 4);
    char *part = text;
    for (bool first = true, last = false; !last; first = false) {
        char *end = part + strcspn(part, ","), *equal;
        last = !*end;
        *end = '\0';
        if (first) {
            TN_TRY(parse_start(sim, part));
        } else {
            if (!*part) return tn_fail(TN_E_INVALID, "'%.100s': a setting is empty", specification);
            equal = strchr(part, '=');
            if (equal) *equal = '\0';
            TN_TRY(parse_option(sim, part, equal ? equal + 1 : "1"));
        }
        part = end + 1;
    }
    if (!sim->limit || sim->limit > sim->size) sim->limit = sim->size;
    if (sim->device.caps.unified) {
        sim->device.kind = TN_DEVICE_IGPU;
        sim->device.caps.wrap_host = true;
    }
    return TN_OK;
}
