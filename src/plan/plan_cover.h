/* Plans that serve every graph of one structure up to given sizes.
 *
 * Lifetimes depend on a graph's structure alone: ops, edges, views, flags, the memory of every tensor, and which
 * tensors have memory of their own. Two things depend on the extents as well: the sizes, and whether a result may be
 * computed in place of a source. A plan made for the largest size of every tensor, with results in place
 * only where all graphs allow it, is therefore a plan of all of them. */
#ifndef TN_PLAN_COVER_H
#define TN_PLAN_COVER_H

#include "tenon/plan.h"

/* What lifetimes depend on, as a list of words. Two graphs have the same structure if the lists are equal. */
typedef struct tn__structure {
    uint64_t hash;
    uint32_t *words;
    size_t n_words;
} tn__structure;
tn_status tn__structure_of(const tn_graph *graph, const uint16_t *memory_of, tn__structure *structure) TN_MUST_CHECK;
bool tn__structure_equal(const tn__structure *a, const tn__structure *b);
void tn__structure_free(tn__structure *structure);

/* What a plan depends on beside the structure, by index of the tensor: nodes, then leaves. */
typedef struct tn__extents {
    size_t n_nodes, n;
    size_t *sizes;   /* bytes in the tensor's memory, aligned; 0: not planned */
    uint16_t *masks; /* of nodes: the sources in place of which the node may be computed */
} tn__extents;
tn_status tn__extents_of(const tn_graph *graph, const tn_plan_params *params, tn__extents *extents) TN_MUST_CHECK;
void tn__extents_free(tn__extents *extents);

/* A plan with the extents that it serves. */
typedef struct tn__cover {
    tn__extents extents; /* the largest sizes and the masks common to all graphs */
    uint16_t *required;  /* of nodes: the sources that the plan overlays with the result; part of the masks */
    tn_plan *plan;
    bool handed_out; /* a caller has a pointer to the plan */
    struct tn__cover *next;
} tn__cover;
/* Plans a graph whose extents are given, and all graphs that `base` serves (may be NULL), which have the same
 * structure. `params` as for tn_plan_make. */
tn_status tn__cover_make(const tn_graph *graph, const tn_plan_params *params, const tn__extents *extents,
                         const tn__cover *base, tn__cover **cover) TN_MUST_CHECK;
/* Takes over a plan made elsewhere, if it is valid for the graph and for all that `base` serves. TN_E_STATE says why
 * not. */
tn_status tn__cover_adopt(const tn_graph *graph, const tn_plan_params *params, const tn__extents *extents,
                          const tn__cover *base, const tn_plan *plan, tn__cover **cover) TN_MUST_CHECK;
/* Makes the cover of a class whose offsets were chosen earlier (nodes, then leaves). Nothing is packed: lifetimes
 * come from the graph, chunks end with the last byte of their tensors, and the result is verified. Nothing in
 * `offsets` is trusted; TN_E_STATE says what is wrong with them. */
tn_status tn__cover_from_offsets(const tn_graph *graph, const tn_plan_params *params, const tn__extents *extents,
                                 const tn_plan_offset *offsets, size_t n_offsets, tn__cover **cover) TN_MUST_CHECK;
void tn__cover_free(tn__cover *cover);
/* Whether the plan serves a graph of this structure with these extents. If not, `at` (may be NULL) is a tensor that
 * is too large or that must not be computed where the plan puts it. */
bool tn__cover_includes(const tn__cover *cover, const tn__extents *extents, size_t *at);
/* Bytes that one memory would need if every tensor were allocated when it is computed and freed after its last use,
 * best fit, without knowledge of what comes. */
tn_status tn__cover_in_order(const tn__cover *cover, size_t memory, size_t *bytes) TN_MUST_CHECK;

#endif
