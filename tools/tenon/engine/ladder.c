/* The choices that --budget compared: notes, table, JSON. */
#include "cli/term.h"
#include "engine/budget_options.h"

#include <string.h>

void print_budget_notes(const tn_budget_ladder *l) {
    char a[HUMAN_SIZE], b[HUMAN_SIZE];
    for (size_t d = 0; d < l->n_devices; d++) {
        const tn_budget_device *device = &l->devices[d];
        if (device->budget > device->free)
            warn("the budget of %s for %s is more than the %s that are free, which is the limit then",
                 human_bytes(a, device->budget), device->name, human_bytes(b, device->free));
    }
    if (!l->predicted)
        warn("speeds are not predicted, choices are compared by assumed rates: %s", l->note);
    else if (*l->note)
        warn("%s", l->note);
    if (l->prefer != TN_PREFER_CONTEXT && l->n_choices && l->choices[0].fits && l->choices[0].n_ctx < l->wanted_ctx)
        warn("a context of %d does not fit the budget: it is shortened to %d", l->wanted_ctx, l->choices[0].n_ctx);
}

static void cache_text(const tn_budget_choice *c, char *text, size_t size) {
    snprintf(text, size, "%s/%s", tn_type_name(c->cache_k), tn_type_name(c->cache_v));
}

void describe_choice(const tn_budget_choice *c, char *text, size_t size) {
    char chunk[32] = "", experts[48] = "";
    if (c->ffn_chunk) snprintf(chunk, sizeof chunk, " in chunks of %d", c->ffn_chunk);
    if (c->n_host_experts) snprintf(experts, sizeof experts, ", experts of %d on the host", c->n_host_experts);
    snprintf(text, size, "context %d, micro-batch %d%s, cache %s/%s, %d layers off the host%s", c->n_ctx, c->n_ubatch,
             chunk, tn_type_name(c->cache_k), tn_type_name(c->cache_v), c->n_layers, experts);
}

/* ---- Table ---- */

static double bits_of(const tn_budget_choice *c) {
    return (double)tn_type_bytes(c->cache_k) / (double)tn_type_block(c->cache_k) +
           (double)tn_type_bytes(c->cache_v) / (double)tn_type_block(c->cache_v);
}

/* Whether another choice is at least as good in everything, and better in something. */
static bool is_dominated(const tn_budget_ladder *l, const tn_budget_choice *c) {
    for (size_t i = 0; i < l->n_choices; i++) {
        const tn_budget_choice *o = &l->choices[i];
        if (o == c || !o->fits || o->decode < c->decode || o->prefill < c->prefill || o->n_ctx < c->n_ctx ||
            bits_of(o) < bits_of(c) || o->bytes[0] > c->bytes[0])
            continue;
        if (o->decode > c->decode || o->prefill > c->prefill || o->n_ctx > c->n_ctx || bits_of(o) > bits_of(c) ||
            o->bytes[0] < c->bytes[0])
            return true;
    }
    return false;
}

enum { LADDER_COLUMNS = 9, LADDER_ROWS = 20, CELL = HUMAN_SIZE + 64 };

static void fill_row(const tn_budget_ladder *l, const tn_budget_choice *c, char cells[LADDER_COLUMNS][CELL]) {
    size_t host = 0;
    snprintf(cells[0], CELL, "%d", c->n_ctx);
    if (c->ffn_chunk)
        snprintf(cells[1], CELL, "%d/%d", c->n_ubatch, c->ffn_chunk);
    else
        snprintf(cells[1], CELL, "%d", c->n_ubatch);
    cache_text(c, cells[2], CELL);
    if (c->n_host_experts)
        snprintf(cells[3], CELL, "%d-%de", c->n_layers, c->n_host_experts);
    else
        snprintf(cells[3], CELL, "%d", c->n_layers);
    human_bytes(cells[4], c->bytes[0]);
    for (size_t d = 1; d < l->n_devices; d++) host += c->bytes[d];
    human_bytes(cells[5], host);
    snprintf(cells[6], CELL, "%.*f", c->prefill < 100, c->prefill);
    snprintf(cells[7], CELL, "%.*f", c->decode < 100, c->decode);
    cells[8][0] = '\0';
    if (!c->fits) {
        char missing[HUMAN_SIZE];
        snprintf(cells[8], CELL, "lacks %s", human_bytes(missing, c->missing));
    } else if (c->chosen) {
        snprintf(cells[8], CELL, "chosen");
    }
}

/* Choices worth a row: those that fit and that no other beats in everything, and a few that nearly fit. */
static size_t list_rows(const tn_budget_ladder *l, const tn_budget_choice **rows) {
    enum { NEAR_MISSES = 3 };
    size_t n = 0, misses = 0;
    for (size_t i = 0; i < l->n_choices && n < LADDER_ROWS; i++) {
        const tn_budget_choice *c = &l->choices[i];
        if (c->fits ? !c->chosen && is_dominated(l, c) : misses++ >= NEAR_MISSES) continue;
        rows[n++] = c;
    }
    return n;
}

void print_ladder(const tn_budget_ladder *l, FILE *out) {
    static const char *const titles[LADDER_COLUMNS] = {"context", "micro-batch", "cache",    "layers", NULL,
                                                       "others",  "prefill/s",   "decode/s", ""};
    char cells[LADDER_ROWS + 1][LADDER_COLUMNS][CELL];
    const tn_budget_choice *rows[LADDER_ROWS];
    size_t widths[LADDER_COLUMNS] = {0}, n = list_rows(l, rows);
    bool chunks = false, experts = false;
    for (size_t c = 0; c < LADDER_COLUMNS; c++)
        snprintf(cells[0][c], CELL, "%.40s", titles[c] ? titles[c] : l->devices[0].name);
    for (size_t r = 0; r < n; r++) {
        fill_row(l, rows[r], cells[r + 1]);
        chunks = chunks || rows[r]->ffn_chunk;
        experts = experts || rows[r]->n_host_experts;
    }
    for (size_t c = 0; c < LADDER_COLUMNS; c++)
        for (size_t r = 0; r <= n; r++)
            if (strlen(cells[r][c]) > widths[c]) widths[c] = strlen(cells[r][c]);
    for (size_t r = 0; r <= n; r++) {
        fputs(r ? "" : style(out, STYLE_BOLD), out);
        for (size_t c = 0; c < LADDER_COLUMNS; c++) {
            if ((c == 5 && l->n_devices < 2) || ((c == 6 || c == 7) && !l->predicted)) continue;
            if (c == LADDER_COLUMNS - 1)
                fprintf(out, "%s%s", *cells[r][c] ? "  " : "", cells[r][c]);
            else
                fprintf(out, "%*s", (int)widths[c] + (c ? 2 : 0), cells[r][c]);
        }
        fprintf(out, "%s\n", r ? "" : style(out, STYLE_NONE));
    }
    fprintf(out, "%zu combinations planned; layers are those off the host", l->n_planned);
    if (experts) fputs(", 33-8e: with the experts of 8 on the host", out);
    if (chunks) fputs("; micro-batch 512/128: feed-forward part in chunks of 128", out);
    if (l->predicted) fputs("; predicted speed with half of the context filled", out);
    fputs(".\n\n", out);
}

/* ---- JSON ---- */

static json_t *choice_json(const tn_budget_ladder *l, const tn_budget_choice *c) {
    json_t *bytes = json_object();
    for (size_t d = 0; d < l->n_devices; d++)
        json_object_set_new(bytes, l->devices[d].name, json_integer((json_int_t)c->bytes[d]));
    json_t *entry =
        json_pack("{s:i, s:i, s:i, s:s, s:s, s:i, s:i, s:b, s:b, s:I, s:o}", "ctx", c->n_ctx, "ubatch", c->n_ubatch,
                  "ffn_chunk", c->ffn_chunk, "cache_type_k", tn_type_name(c->cache_k), "cache_type_v",
                  tn_type_name(c->cache_v), "layers", c->n_layers, "host_experts", c->n_host_experts, "fits",
                  (int)c->fits, "chosen", (int)c->chosen, "missing", (json_int_t)c->missing, "bytes", bytes);
    if (l->predicted) {
        json_object_set_new(entry, "prefill", json_real(c->prefill));
        json_object_set_new(entry, "decode", json_real(c->decode));
    }
    return entry;
}

json_t *ladder_json(const tn_budget_ladder *l) {
    json_t *devices = json_array(), *choices = json_array();
    for (size_t d = 0; d < l->n_devices; d++) {
        const tn_budget_device *b = &l->devices[d];
        json_array_append_new(devices, json_pack("{s:s, s:o, s:I, s:I}", "name", b->name, "budget",
                                                 b->budget ? json_integer((json_int_t)b->budget) : json_null(),
                                                 "free", (json_int_t)b->free, "total", (json_int_t)b->total));
    }
    for (size_t i = 0; i < l->n_choices; i++) json_array_append_new(choices, choice_json(l, &l->choices[i]));
    return json_pack("{s:i, s:I, s:b, s:s, s:o, s:o}", "wanted_ctx", l->wanted_ctx, "planned",
                     (json_int_t)l->n_planned, "predicted", (int)l->predicted, "note", l->note, "devices", devices,
                     "choices", choices);
}
