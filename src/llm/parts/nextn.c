/* The beginning of a layer that predicts further tokens: embedding and state, normalised, side by side, and a matrix
 * that makes a state of them. */
#include "llm/build/builder.h"

tn_tensor *tn__build_head_input(const tn__builder *b, tn_tensor *embedding) {
    const tn__layer *l = b->m->w.layers;
    tn_tensor *state = tn__builder_input(b, TN__INPUT_STATES);
    tn_tensor *e = tn__name_node(b, tn__build_norm(b, embedding, l->nextn_embd_norm, NULL), "nextn_embedding");
    tn_tensor *s = tn__name_node(b, tn__build_norm(b, state, l->nextn_state_norm, NULL), "nextn_state");
    tn_tensor *both = tn__name_node(b, tn_concat(b->a, e, s, 0), "nextn_both");
    return tn__build_linear(b, l->nextn_proj, NULL, NULL, both, "nextn_input");
}
