/* Arenas: objects with small headers, allocated one after the other from one pool and freed all at once. */
#include "base/checked.h"
#include "tensor/tensor_internal.h"

#include <string.h>

static size_t arena_start(void) { return tn__align_up(sizeof(tn_arena), TN__OBJECT_ALIGN); }

tn_status tn_arena_new(const tn_arena_params *params, tn_arena **arena) {
    if (!params || !arena) return tn_fail(TN_E_INVALID, "tn_arena_new: params and arena must not be NULL");
    *arena = NULL;
    if (params->size < arena_start())
        return tn_fail(TN_E_INVALID, "arena of %zu bytes: its own header needs %zu", params->size, arena_start());
    if ((uintptr_t)params->memory % TN__OBJECT_ALIGN)
        return tn_fail(TN_E_INVALID, "arena memory %p is not aligned to %d bytes", params->memory, TN__OBJECT_ALIGN);
    tn_arena *a = params->memory ? params->memory : tn_malloc_aligned(params->size, 64);
    if (!a) return TN_E_NOMEM;
    memset(a, 0, sizeof *a);
    a->size = params->size;
    a->owns_memory = !params->memory;
    a->no_alloc = params->no_alloc;
    a->repeatable = params->repeatable;
    tn_arena_reset(a);
    *arena = a;
    return TN_OK;
}

void tn_arena_free(tn_arena *arena) {
    if (arena && arena->owns_memory) tn_free(arena);
}

void tn_arena_reset(tn_arena *arena) {
    if (!arena) return;
    arena->used = arena_start();
    arena->first = arena->last = NULL;
    arena->n_tensors = 0;
    arena->status = TN_OK;
    arena->error[0] = '\0';
}

void *tn__arena_fail(tn_arena *arena, tn_status status) {
    if (arena && arena->status == TN_OK) {
        arena->status = status;
        size_t length = strlen(tn_error());
        if (length >= sizeof arena->error) length = sizeof arena->error - 1;
        memcpy(arena->error, tn_error(), length);
        arena->error[length] = '\0';
    }
    return NULL;
}

tn_status tn_arena_status(const tn_arena *arena) {
    if (!arena) return tn_fail(TN_E_INVALID, "the arena is NULL");
    return arena->status == TN_OK ? TN_OK : tn_fail(arena->status, "%s", arena->error);
}

size_t tn_arena_used(const tn_arena *arena) { return arena ? arena->used : 0; }
size_t tn_arena_size(const tn_arena *arena) { return arena ? arena->size : 0; }
size_t tn_arena_tensor_count(const tn_arena *arena) { return arena ? arena->n_tensors : 0; }
bool tn_arena_no_alloc(const tn_arena *arena) { return arena && arena->no_alloc; }

void *tn__arena_object(tn_arena *arena, tn__object_kind kind, size_t size) {
    size_t room = arena->size - arena->used, needed;
    if (!tn__align_up_checked(size, TN__OBJECT_ALIGN, &needed) ||
        !tn__add_size(needed, sizeof(tn__object), &needed)) {
        tn_fail(TN_E_OVERFLOW, "an object of %zu bytes overflows", size);
        return tn__arena_fail(arena, TN_E_OVERFLOW);
    }
    if (needed > room) {
        tn_fail(TN_E_FULL, "arena full: %zu bytes needed, %zu of %zu left, %zu missing", needed, room, arena->size,
                needed - room);
        return tn__arena_fail(arena, TN_E_FULL);
    }
    tn__object *object = (tn__object *)(void *)((char *)arena + arena->used);
    arena->used += needed;
    object->kind = kind;
    object->next = NULL;
    if (arena->last)
        arena->last->next = object;
    else
        arena->first = object;
    arena->last = object;
    return object + 1;
}

void *tn_arena_alloc(tn_arena *arena, size_t size) {
    if (!arena) {
        tn_fail(TN_E_INVALID, "the arena is NULL");
        return NULL;
    }
    return tn__arena_object(arena, TN__OBJECT_BYTES, size);
}

tn_tensor *tn_arena_next_tensor(const tn_arena *arena, const tn_tensor *after) {
    if (!arena) return NULL;
    tn__object *object = after ? ((tn__object *)(uintptr_t)after - 1)->next : arena->first;
    while (object && object->kind != TN__OBJECT_TENSOR) object = object->next;
    return object ? (tn_tensor *)(void *)(object + 1) : NULL;
}

size_t tn_tensor_overhead(void) { return sizeof(tn__object) + tn__align_up(sizeof(tn_tensor), TN__OBJECT_ALIGN); }

size_t tn_arena_size_for(size_t tensors, size_t graph_capacity) {
    return arena_start() + tensors * tn_tensor_overhead() + (graph_capacity ? tn_graph_overhead(graph_capacity) : 0);
}
