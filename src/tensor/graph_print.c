/* Output of graphs as text, Graphviz and JSON. */
#include "tensor/tensor_internal.h"

static tn_status written(FILE *out) { return ferror(out) ? tn_fail(TN_E_IO, "writing the graph failed") : TN_OK; }

tn_status tn_graph_print(const tn_graph *g, FILE *out) {
    if (!g || !out) return tn_fail(TN_E_INVALID, "tn_graph_print: NULL argument");
    char shape[96];
    fprintf(out, "graph of %zu nodes, %zu leaves\n", g->n_nodes, g->n_leaves);
    for (size_t i = 0; i < g->n_nodes; i++) {
        const tn_tensor *t = g->nodes[i];
        fprintf(out, "%6zu  %-18s %-28s", i, tn_op_name(t->op), tn_shape_text(t, shape, sizeof shape));
        for (int s = 0; s < TN_MAX_SRC; s++) {
            if (!t->src[s]) continue;
            uint32_t index = tn_graph_index(g, t->src[s]);
            fprintf(out, " %s%u", index >= g->n_nodes ? "leaf" : "",
                    (unsigned)(index >= g->n_nodes ? index - g->n_nodes : index));
        }
        fprintf(out, "%s%s%s%s\n", t->name[0] ? "  " : "", t->name, t->flags & TN_FLAG_OUTPUT ? "  output" : "",
                t->view_src ? "  view" : "");
    }
    for (size_t i = 0; i < g->n_leaves; i++) {
        const tn_tensor *t = g->leaves[i];
        fprintf(out, "leaf%-4zu %-16s %-28s%s%s\n", i, t->flags & TN_FLAG_INPUT ? "input" : "",
                tn_shape_text(t, shape, sizeof shape), t->name[0] ? " " : "", t->name);
    }
    return written(out);
}

/* Text inside a double-quoted string of Graphviz or JSON. */
static void print_quoted(FILE *out, const char *text) {
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c < 0x20)
            fprintf(out, "\\u%04x", c);
        else
            fputc(c, out);
    }
}

tn_status tn_graph_print_dot(const tn_graph *g, FILE *out) {
    if (!g || !out) return tn_fail(TN_E_INVALID, "tn_graph_print_dot: NULL argument");
    char shape[96];
    fputs("digraph tenon {\n  node [shape=box fontname=\"sans-serif\"];\n", out);
    for (size_t i = 0; i < g->n_nodes + g->n_leaves; i++) {
        const tn_tensor *t = i < g->n_nodes ? g->nodes[i] : g->leaves[i - g->n_nodes];
        const char *colour = i >= g->n_nodes             ? "lightblue"
                             : t->view_src               ? "white"
                             : t->flags & TN_FLAG_OUTPUT ? "palegreen"
                                                         : "lightgoldenrod";
        fprintf(out, "  t%zu [style=filled fillcolor=%s label=\"%s", i, colour,
                i < g->n_nodes ? tn_op_symbol(t->op) : "");
        fputs(i < g->n_nodes ? "\\n" : "", out);
        print_quoted(out, t->name);
        fprintf(out, "%s%s\"];\n", t->name[0] ? "\\n" : "", tn_shape_text(t, shape, sizeof shape));
    }
    for (size_t i = 0; i < g->n_nodes; i++)
        for (int s = 0; s < TN_MAX_SRC; s++)
            if (g->nodes[i]->src[s])
                fprintf(out, "  t%u -> t%zu;\n", (unsigned)tn_graph_index(g, g->nodes[i]->src[s]), i);
    fputs("}\n", out);
    return written(out);
}

static void print_tensor_json(const tn_graph *g, const tn_tensor *t, size_t id, FILE *out) {
    fprintf(out, "{\"id\":%zu,\"op\":\"%s\",\"type\":\"%s\",\"name\":\"", id, tn_op_name(t->op),
            tn_type_name(t->type));
    print_quoted(out, t->name);
    fprintf(out, "\",\"ne\":[%lld,%lld,%lld,%lld],\"nb\":[%zu,%zu,%zu,%zu],\"bytes\":%zu,\"flags\":%u",
            (long long)t->ne[0], (long long)t->ne[1], (long long)t->ne[2], (long long)t->ne[3], t->nb[0], t->nb[1],
            t->nb[2], t->nb[3], tn_nbytes(t), t->flags);
    if (t->view_src)
        fprintf(out, ",\"view_of\":%u,\"offset\":%zu", (unsigned)tn_graph_index(g, t->view_src), t->view_offset);
    if (t->op != TN_OP_NONE) {
        fputs(",\"src\":[", out);
        int last = TN_MAX_SRC;
        while (last > 0 && !t->src[last - 1]) last--;
        for (int s = 0; s < last; s++) {
            if (s) fputc(',', out);
            if (t->src[s])
                fprintf(out, "%u", (unsigned)tn_graph_index(g, t->src[s]));
            else
                fputs("null", out);
        }
        fputc(']', out);
    }
    fputc('}', out);
}

tn_status tn_graph_print_json(const tn_graph *g, FILE *out) {
    if (!g || !out) return tn_fail(TN_E_INVALID, "tn_graph_print_json: NULL argument");
    fputs("{\"nodes\":[", out);
    for (size_t i = 0; i < g->n_nodes; i++) {
        fputs(i ? ",\n" : "\n", out);
        print_tensor_json(g, g->nodes[i], i, out);
    }
    fputs("],\"leaves\":[", out);
    for (size_t i = 0; i < g->n_leaves; i++) {
        fputs(i ? ",\n" : "\n", out);
        print_tensor_json(g, g->leaves[i], g->n_nodes + i, out);
    }
    fputs("]}\n", out);
    return written(out);
}
