/* The packed buffer type: weights in the layout that the fastest mat-mul kernels read directly.
 *
 * Matrices that the kernels can pack (see kernels.h) are packed when they are written, every [ne0, ne1] plane for
 * itself; other tensors lie there as they are. Only mul_mat, mul_mat_id and get_rows read packed weights. Weights
 * must be bound before programs that use them are made. */
#ifndef TN_CPU_PACKED_BUFFER_H
#define TN_CPU_PACKED_BUFFER_H

#include "tenon/backend_impl.h"

tn_buffer_type *tn__packed_buffer_type(void);
void tn__packed_buffer_init(tn_device *device); /* once, before any buffer is made */

/* Whether the tensor itself lies packed, or is a view of something packed. */
bool tn__is_packed(const tn_tensor *t);
size_t tn__packed_plane_bytes(const tn_tensor *t); /* from one packed matrix of the tensor to the next */
const void *tn__packed_plane(const tn_tensor *t, int64_t i2, int64_t i3);

/* Whether the node can read its sources where they are; otherwise a reason. */
bool tn__supports_packed_sources(const tn_tensor *node, char *reason, size_t reason_size);

#endif
