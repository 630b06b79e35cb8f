/* Export of plans as text, JSON, CSV and SVG, and comparison of two plans. */
#include "base/text.h"
#include "plan/plan_internal.h"

#include "base/checked.h"

#include <stdio.h>
#include <string.h>

static bool shown(const tn_plan *plan, size_t tensor, size_t memory) {
    int32_t own = plan->entries[tensor].memory;
    return own >= 0 && (memory == TN_PLAN_ALL_MEMORIES || (size_t)own == memory);
}

static double part_ratio(const tn_plan *plan, size_t m) {
    return plan->parts[m].lower_bound ? (double)tn_plan_size(plan, m) / (double)plan->parts[m].lower_bound : 1;
}

static void write_text(tn__text *t, const tn_plan *plan, size_t memory) {
    char size[32], bound[32];
    tn__text_printf(t, "plan of %zu nodes and %zu leaves\n", plan->n_nodes, plan->n_leaves);
    for (size_t m = 0; m < plan->n_parts; m++) {
        if (memory != TN_PLAN_ALL_MEMORIES && m != memory) continue;
        const tn__plan_part *part = &plan->parts[m];
        tn__text_printf(t, "memory %zu %s: %s (%zu bytes) in %zu chunk%s, lower bound %s, ratio %.4f%s\n", m,
                        part->name, tn__text_size(tn_plan_size(plan, m), size, sizeof size), tn_plan_size(plan, m),
                        part->n_chunks, part->n_chunks == 1 ? "" : "s",
                        tn__text_size(part->lower_bound, bound, sizeof bound), part_ratio(plan, m),
                        part->optimal ? ", optimal" : "");
    }
    tn__text_printf(t, "%8s %6s %5s %14s %14s %7s %7s  %-12s %s\n", "tensor", "memory", "chunk", "offset", "size",
                    "first", "last", "kind", "name");
    for (size_t i = 0; i < tn_plan_tensor_count(plan); i++) {
        const tn_plan_entry *s = &plan->entries[i];
        if (!shown(plan, i, memory)) continue;
        tn__text_printf(t, "%8zu %6d %5u %14zu %14zu %7u %7u  %-12s %s", i, s->memory, s->chunk, s->offset, s->size,
                        s->first, s->last, tn__plan_kinds[plan->kinds[i]], tn_plan_label(plan, i));
        if (s->inplace_of != TN_GRAPH_NONE)
            tn__text_printf(t, " (in place of %s)", tn_plan_label(plan, s->inplace_of));
        tn__text_append(t, "\n", 1);
    }
}

static void write_json(tn__text *t, const tn_plan *plan, size_t memory) {
    tn__text_printf(t, "{\"nodes\":%zu,\"leaves\":%zu,\"total\":%zu,\"ratio\":%.6f,\n \"memories\":[", plan->n_nodes,
                    plan->n_leaves, tn_plan_total(plan), tn_plan_ratio(plan));
    bool first = true;
    for (size_t m = 0; m < plan->n_parts; m++) {
        if (memory != TN_PLAN_ALL_MEMORIES && m != memory) continue;
        const tn__plan_part *part = &plan->parts[m];
        tn__text_printf(t, "%s\n  {\"index\":%zu,\"name\":", first ? "" : ",", m);
        first = false;
        tn__text_json(t, part->name);
        tn__text_printf(
            t,
            ",\"alignment\":%zu,\"max_chunk\":%zu,\"size\":%zu,\"lower_bound\":%zu,\"optimal\":%s,\"steps\":"
            "%llu,\"chunks\":[",
            part->alignment, part->max_chunk, tn_plan_size(plan, m), part->lower_bound,
            part->optimal ? "true" : "false", (unsigned long long)part->steps);
        for (size_t c = 0; c < part->n_chunks; c++) tn__text_printf(t, "%s%zu", c ? "," : "", part->chunk_sizes[c]);
        tn__text_printf(t, "]}");
    }
    tn__text_printf(t, "],\n \"tensors\":[");
    first = true;
    for (size_t i = 0; i < tn_plan_tensor_count(plan); i++) {
        const tn_plan_entry *s = &plan->entries[i];
        if (!shown(plan, i, memory)) continue;
        tn__text_printf(t, "%s\n  {\"index\":%zu,\"name\":", first ? "" : ",", i);
        first = false;
        tn__text_json(t, tn_plan_label(plan, i));
        tn__text_printf(
            t, ",\"kind\":\"%s\",\"memory\":%d,\"chunk\":%u,\"offset\":%zu,\"size\":%zu,\"first\":%u,\"last\":%u",
            tn__plan_kinds[plan->kinds[i]], s->memory, s->chunk, s->offset, s->size, s->first, s->last);
        if (s->inplace_of != TN_GRAPH_NONE) tn__text_printf(t, ",\"inplace_of\":%u", s->inplace_of);
        tn__text_append(t, "}", 1);
    }
    tn__text_printf(t, "]}\n");
}

/* One line per packed item: a tensor together with all tensors computed in place of it, so that the table is a
 * packing problem. */
static void write_csv(tn__text *t, const tn_plan *plan, size_t memory) {
    tn__text_printf(t, "id,lower,upper,size,alignment,tensor,memory,chunk,offset\n");
    for (size_t i = 0; i < tn_plan_tensor_count(plan); i++) {
        const tn_plan_entry *s = &plan->entries[i];
        if (!shown(plan, i, memory) || !tn__plan_owns(s)) continue;
        tn__text_printf(t, "%zu,%u,%llu,%zu,%zu,", i, s->first, (unsigned long long)plan->until[i] + 1, s->size,
                        plan->parts[s->memory].alignment);
        tn__text_csv(t, tn_plan_label(plan, i));
        tn__text_printf(t, ",%d,%u,%zu\n", s->memory, s->chunk, s->offset);
    }
}

/* One box per tensor. The box of a tensor ends where another is computed in place of it. */
static tn_status write_svg(const tn_plan *plan, size_t memory, char **text) {
    size_t n = tn_plan_tensor_count(plan), count = 0;
    tn_picture_box *boxes = tn_malloc(n * sizeof *boxes);
    uint32_t *taken = tn_malloc(n * sizeof *taken);
    char(*notes)[TN_MAX_NAME + 24] = tn_malloc(n * sizeof *notes);
    tn_status status = TN_E_NOMEM;
    if (!boxes || !taken || !notes) goto out;
    const tn__plan_part *part = &plan->parts[memory];
    for (size_t i = 0; i < n; i++) taken[i] = TN_GRAPH_NONE;
    for (size_t i = 0; i < n; i++)
        if (plan->entries[i].inplace_of != TN_GRAPH_NONE) taken[plan->entries[i].inplace_of] = (uint32_t)i;
    for (size_t i = 0; i < n; i++) {
        const tn_plan_entry *s = &plan->entries[i];
        if (s->memory != (int32_t)memory || s->size == 0) continue;
        tn_picture_box *box = &boxes[count];
        *box = (tn_picture_box){.start = s->first,
                                .end = (int64_t)s->last + 1,
                                .offset = s->offset,
                                .size = s->size,
                                .chunk = s->chunk,
                                .kind = plan->kinds[i],
                                .label = tn_plan_label(plan, i)};
        if (taken[i] != TN_GRAPH_NONE) box->end = plan->entries[taken[i]].first;
        if (s->inplace_of != TN_GRAPH_NONE) {
            snprintf(notes[count], sizeof notes[count], "in place of %s", tn_plan_label(plan, s->inplace_of));
            box->note = notes[count];
        }
        count++;
    }
    char title[128], size[32];
    snprintf(title, sizeof title, "%s: %s, %.2f %% above the lower bound, %zu steps", part->name,
             tn__text_size(tn_plan_size(plan, memory), size, sizeof size), 100 * (part_ratio(plan, memory) - 1),
             plan->n_nodes);
    tn_picture picture = {.title = title,
                          .box_count = count,
                          .boxes = boxes,
                          .chunk_count = part->n_chunks,
                          .chunk_sizes = part->chunk_sizes,
                          .kind_count = TN__KIND_COUNT,
                          .kinds = tn__plan_kinds,
                          .lower_bound = part->lower_bound};
    status = tn_picture_svg(&picture, text);
out:
    tn_free(boxes);
    tn_free(taken);
    tn_free(notes);
    return status;
}

tn_status tn_plan_export(const tn_plan *plan, tn_plan_format format, size_t memory, char **text) {
    if (!plan || !text) return tn_fail(TN_E_INVALID, "tn_plan_export: NULL argument");
    *text = NULL;
    if (memory != TN_PLAN_ALL_MEMORIES && memory >= plan->n_parts)
        return tn_fail(TN_E_INVALID, "tn_plan_export: memory %zu does not exist (the plan has %zu)", memory,
                       plan->n_parts);
    tn__text t = {0};
    switch (format) {
    case TN_PLAN_TEXT: write_text(&t, plan, memory); break;
    case TN_PLAN_JSON: write_json(&t, plan, memory); break;
    case TN_PLAN_CSV: write_csv(&t, plan, memory); break;
    case TN_PLAN_SVG: return write_svg(plan, memory == TN_PLAN_ALL_MEMORIES ? 0 : memory, text);
    default: return tn_fail(TN_E_INVALID, "tn_plan_export: unknown format %d", (int)format);
    }
    return tn__text_take(&t, text);
}

static bool same_offset(const tn_plan_entry *a, const tn_plan_entry *b) {
    return a->memory == b->memory && a->chunk == b->chunk && a->offset == b->offset && a->size == b->size;
}

bool tn_plan_equal(const tn_plan *a, const tn_plan *b) {
    if (a->n_nodes != b->n_nodes || a->n_leaves != b->n_leaves || a->n_parts != b->n_parts) return false;
    for (size_t i = 0; i < tn_plan_tensor_count(a); i++)
        if (!same_offset(&a->entries[i], &b->entries[i])) return false;
    for (size_t m = 0; m < a->n_parts; m++)
        if (a->parts[m].n_chunks != b->parts[m].n_chunks ||
            (a->parts[m].n_chunks &&
             memcmp(a->parts[m].chunk_sizes, b->parts[m].chunk_sizes, a->parts[m].n_chunks * sizeof(size_t)) != 0))
            return false;
    return true;
}

tn_status tn_plan_compare(const tn_plan *a, const tn_plan *b, char **text) {
    if (!a || !b || !text) return tn_fail(TN_E_INVALID, "tn_plan_compare: NULL argument");
    enum { MAX_LISTED = 20 };
    tn__text t = {0};
    size_t n = TN__MIN(tn_plan_tensor_count(a), tn_plan_tensor_count(b)), moved = 0;
    if (a->n_nodes != b->n_nodes || a->n_leaves != b->n_leaves)
        tn__text_printf(&t, "graphs differ: %zu nodes and %zu leaves, %zu and %zu\n", a->n_nodes, a->n_leaves,
                        b->n_nodes, b->n_leaves);
    for (size_t m = 0; m < TN__MAX(a->n_parts, b->n_parts); m++) {
        size_t x = m < a->n_parts ? tn_plan_size(a, m) : 0, y = m < b->n_parts ? tn_plan_size(b, m) : 0;
        tn__text_printf(&t, "memory %zu %s: %zu and %zu bytes (%+lld)\n", m,
                        m < a->n_parts ? a->parts[m].name : b->parts[m].name, x, y, (long long)y - (long long)x);
    }
    for (size_t i = 0; i < n; i++) {
        const tn_plan_entry *x = &a->entries[i], *y = &b->entries[i];
        if (same_offset(x, y)) continue;
        if (moved++ < MAX_LISTED)
            tn__text_printf(&t,
                            "%s: memory %d chunk %u offset %zu size %zu, memory %d chunk %u offset %zu size %zu\n",
                            tn_plan_label(a, i), x->memory, x->chunk, x->offset, x->size, y->memory, y->chunk,
                            y->offset, y->size);
    }
    if (moved > MAX_LISTED) tn__text_printf(&t, "and %zu more tensors have different offsets\n", moved - MAX_LISTED);
    if (moved == 0) tn__text_printf(&t, "all tensors have the same offsets\n");
    return tn__text_take(&t, text);
}
