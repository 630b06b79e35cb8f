/* The layers that graphs are built from.
 *
 * A model repeats its layers, and the memory of a graph hardly depends on how often: one layer's memory is free
 * again in the next, and devices decide node by node. The search for a placement and the comparison of shapes
 * therefore use graphs with few of the layers; reservations always come from graphs with all of them. */
#ifndef TN_LLM_PLAN_LAYERS_H
#define TN_LLM_PLAN_LAYERS_H

#include "tenon/base.h"

typedef struct tn__layer_list {
    int32_t *list;
    int32_t n;
} tn__layer_list;

struct tn_session_plan;
/* The layers of the current placement without repetitions beyond `times`: every kind of layer, after every kind that
 * it follows in the model. The last layer is always part of it. */
tn_status tn__layers_reduce(const struct tn_session_plan *plan, int32_t times, tn__layer_list *list);
void tn__layers_free(tn__layer_list *list);
/* The layers that graphs are built from now (plan->built). */
int32_t tn__built_count(const struct tn_session_plan *plan);
int32_t tn__built_layer(const struct tn_session_plan *plan, int32_t i);

#endif
