/* Weights that a folder stores in few bits: AWQ and GPTQ (integers with a scale and a zero point per group), the
 * packed integers of compressed-tensors, NVFP4 and MXFP4. They appear as tensors of floats, "NAME.weight" with the
 * shape [rows, columns], which reading computes. */
#ifndef TENON_TOOL_PACKED_H
#define TENON_TOOL_PACKED_H

#include "convert/safetensors.h"

#include <jansson.h>

struct packed_weight;

/* Finds the packed weights of a folder and adds a tensor for each; `config` is the "quantization_config" of
 * config.json or NULL. TN_E_UNSUPPORTED for numbers of bits other than 2, 4 and 8. */
tn_status packed_weights_find(struct safetensors *set, const json_t *config);

/* Adds the tensor `name`: weight + factor · left[task] · right[task], with left [tasks, rows, rank] and right
 * [tasks, rank, columns]. */
tn_status packed_weights_add_sum(struct safetensors *set, const char *name, const struct safetensors_tensor *weight,
                                 const struct safetensors_tensor *left, const struct safetensors_tensor *right,
                                 int task, float factor);

/* Elements [first, first + count). Callable from any thread. Rows of AWQ and GPTQ are spread over the whole tensor:
 * up to four such tensors are kept in memory as they are packed, and let go when others are read. */
tn_status packed_floats(const struct safetensors *set, struct packed_weight *weight, int64_t first, int64_t count,
                        float *out);
void packed_free(struct packed_weight *weight);

#endif
