/* A session's placement: layers by the runtime's policy, single weights by the caller's overrides. */
#ifndef TN_LLM_PLACEMENT_H
#define TN_LLM_PLACEMENT_H

#include "llm/model_internal.h"
#include "tenon/placement.h"

/* Where one weight goes, if not with its layer. */
typedef struct tn__weight_place {
    int16_t device, override; /* override: which of the caller's; -1 each: none */
} tn__weight_place;

typedef struct tn__placement {
    tn_placement_params params; /* over the fields below: the layers, then the output side */
    tn_placement_device *devices;
    tn_placement_layer *layers;
    char *names;
    size_t *bytes, *needed;
    size_t *before; /* per device: `fixed` before the last lesson */
    tn_placement *places;
    tn__weight_place *weights; /* by number in the model */
} tn__placement;

struct tn_session;
tn_status tn__place_new(struct tn_session *session); /* devices and scheduler must be there */
void tn__place_free(struct tn_session *session);
/* Fills session->device_of_layer for so many layers off the host; -1: as many as fit by what is known so far. */
tn_status tn__place_layers(struct tn_session *session, int32_t n_gpu_layers);
int32_t tn__place_count(const struct tn_session *session); /* layers off the host, the output side with them */
/* Takes what the session's present plan needs beside its layers (compute buffers, scratch) into account from now on:
 * where it is more than was known, or, with `exactly`, where it is less, too. False when nothing was learnt: another
 * attempt would end the same. tn__place_unlearn takes the last lesson back. */
/* Whether all weights would fit the only device beside the host, and the embedding a second time: then it is not
 * missed there. */
bool tn__place_has_room(tn_session *session);
bool tn__place_learn(struct tn_session *session, bool exactly);
void tn__place_unlearn(struct tn_session *session);
tn_status tn__place_follow(struct tn_session *session); /* fills it from the loaded weights */
int tn__place_of_weight(const struct tn_session *session, const tn__weight *weight);

#endif
