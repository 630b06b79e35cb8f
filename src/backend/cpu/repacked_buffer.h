/* The buffer type of repacked weights, whose layout the fastest mat-mul kernels read directly.
 *
 * Matrices that the kernels can repack (see kernels.h) are repacked when they are written, each [ne0, ne1] plane
 * separately; other tensors keep their layout. Only mul_mat, mul_mat_id and get_rows read repacked weights. Weights
 * must be bound before programs that use them are created. */
#ifndef TN_CPU_REPACKED_BUFFER_H
#define TN_CPU_REPACKED_BUFFER_H

#include "tenon/backend_impl.h"

tn_buffer_type *tn__repacked_buffer_type(void);
void tn__repacked_buffer_init(tn_device *device); /* once, before any buffer is created */

/* Whether the tensor is repacked, or is a view of a repacked tensor. */
bool tn__is_repacked(const tn_tensor *t);
size_t tn__repacked_plane_bytes(const tn_tensor *t); /* distance from one repacked matrix of the tensor to the next */
const void *tn__repacked_plane(const tn_tensor *t, int64_t i2, int64_t i3);

/* Whether the node can read its repacked sources; writes a reason if not. */
bool tn__supports_repacked_sources(const tn_tensor *node, char *reason, size_t reason_size);

#endif
