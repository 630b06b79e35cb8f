/* Memory of the template engine: the arena, limits, errors, and growing text. */
#include <stdio.h>

#include "base/checked.h"
#include "text/template/engine.h"

enum { BLOCK_SIZE = 32 * 1024, LARGE_SIZE = 8 * 1024 };

struct jj_block {
    jj_block *next, *previous; /* previous: in the list of large blocks only */
    size_t size, used;         /* including this header */
};
static const size_t header_size = (sizeof(jj_block) + 15) & ~(size_t)15;

tn__jinja_limits tn__jinja_limits_default(void) {
    /* Far above what released templates need (a chat of 1,000 messages takes about 500,000 steps), and low enough to
     * stop the worst template within a second. */
    return (tn__jinja_limits){.max_steps = 10u * 1000 * 1000,
                              .max_depth = 600,
                              .max_output = (size_t)64 << 20,
                              .max_memory = (size_t)256 << 20};
}

void tn__jj_open(jj *j, const tn__jinja_limits *limits) {
    memset(j, 0, sizeof *j);
    j->limits = tn__jinja_limits_default();
    j->random = 0x9e3779b97f4a7c15u;
    j->status = TN_OK;
    if (!limits) return;
    if (limits->max_steps) j->limits.max_steps = limits->max_steps;
    if (limits->max_depth) j->limits.max_depth = limits->max_depth;
    if (limits->max_output) j->limits.max_output = limits->max_output;
    if (limits->max_memory) j->limits.max_memory = limits->max_memory;
}

static void free_arena_blocks(jj_block *block) {
    while (block) {
        jj_block *next = block->next;
        tn_free(block);
        block = next;
    }
}

void tn__jj_close(jj *j) {
    free_arena_blocks(j->blocks);
    free_arena_blocks(j->large);
    json_decref(j->json_loaded);
    j->blocks = j->large = NULL;
    j->json_loaded = NULL;
    j->memory = 0;
}

_Noreturn void tn__jj_fail(jj *j, tn_status status, const char *format, ...) {
    char message[512];
    va_list list;
    va_start(list, format);
    vsnprintf(message, sizeof message, format, list);
    va_end(list);
    j->status = tn_fail(status, "template line %u: %s", j->line, message);
    longjmp(j->landing, 1);
}

void tn__jj_charge(jj *j, uint64_t steps) {
    j->steps += steps;
    if (j->steps > j->limits.max_steps)
        tn__jj_fail(j, TN_E_LIMIT, "the template takes more than %llu steps",
                    (unsigned long long)j->limits.max_steps);
}

void tn__jj_enter(jj *j) {
    if (++j->depth > j->limits.max_depth)
        tn__jj_fail(j, TN_E_LIMIT, "nesting is deeper than %u levels", j->limits.max_depth);
}

static jj_block *new_arena_block(jj *j, size_t size) {
    if (size > j->limits.max_memory || j->memory > j->limits.max_memory - size)
        tn__jj_fail(j, TN_E_LIMIT, "the template needs more than %zu bytes of memory", j->limits.max_memory);
    jj_block *block = tn_malloc(size);
    if (!block) {
        j->status = TN_E_NOMEM; /* tn_malloc has set the message */
        longjmp(j->landing, 1);
    }
    *block = (jj_block){.size = size, .used = header_size};
    j->memory += size;
    return block;
}

static void *take_arena_memory(jj *j, size_t size) {
    size_t rounded;
    if (!tn__align_up_checked(size ? size : 1, 16, &rounded) || rounded > SIZE_MAX - header_size)
        tn__jj_fail(j, TN_E_LIMIT, "an object of %zu bytes is too large", size);
    if (size > LARGE_SIZE) {
        jj_block *block = new_arena_block(j, header_size + rounded);
        block->next = j->large;
        if (j->large) j->large->previous = block;
        j->large = block;
        return (char *)block + header_size;
    }
    jj_block *block = j->blocks;
    if (!block || block->size - block->used < rounded) {
        block = new_arena_block(j, BLOCK_SIZE);
        block->next = j->blocks;
        j->blocks = block;
    }
    void *pointer = (char *)block + block->used;
    block->used += rounded;
    return pointer;
}

void *tn__jj_alloc(jj *j, size_t size) {
    void *pointer = take_arena_memory(j, size);
    return memset(pointer, 0, size);
}

void *tn__jj_array(jj *j, size_t count, size_t size) {
    size_t bytes;
    if (!tn__mul_size(count, size, &bytes)) tn__jj_fail(j, TN_E_LIMIT, "%zu items are too many", count);
    return tn__jj_alloc(j, bytes);
}

void *tn__jj_grow(jj *j, void *old, size_t old_size, size_t new_size) {
    char *pointer = take_arena_memory(j, new_size);
    if (old_size) memcpy(pointer, old, old_size);
    memset(pointer + old_size, 0, new_size - old_size);
    if (old && old_size > LARGE_SIZE) {
        jj_block *block = (jj_block *)((char *)old - header_size);
        if (block->previous)
            block->previous->next = block->next;
        else
            j->large = block->next;
        if (block->next) block->next->previous = block->previous;
        j->memory -= block->size;
        tn_free(block);
    }
    return pointer;
}

void tn__jj_put(jj *j, jj_buffer *buffer, const char *data, size_t length) {
    if (length > buffer->capacity - buffer->length) {
        size_t needed, capacity = buffer->capacity ? buffer->capacity : 64;
        if (!tn__add_size(buffer->length, length, &needed) || needed > j->limits.max_output)
            tn__jj_fail(j, TN_E_LIMIT, "a text grows beyond %zu bytes", j->limits.max_output);
        while (capacity < needed) capacity *= 2;
        if (capacity > j->limits.max_output) capacity = j->limits.max_output; /* so that put_char need not check it */
        buffer->data = tn__jj_grow(j, buffer->data, buffer->capacity, capacity);
        buffer->capacity = capacity;
    }
    jj_charge_bytes(j, length);
    if (length) memcpy(buffer->data + buffer->length, data, length);
    buffer->length += length;
}

void tn__jj_put_char(jj *j, jj_buffer *buffer, char c) {
    if (buffer->length < buffer->capacity)
        buffer->data[buffer->length++] = c;
    else
        tn__jj_put(j, buffer, &c, 1);
}

void tn__jj_put_code(jj *j, jj_buffer *buffer, uint32_t code) {
    char bytes[4];
    size_t n;
    if (code >= 0xd800 && code < 0xe000) code = 0xfffd; /* half of a surrogate pair is not a character */
    if (code < 0x80) {
        bytes[0] = (char)code, n = 1;
    } else if (code < 0x800) {
        bytes[0] = (char)(0xc0 | code >> 6), bytes[1] = (char)(0x80 | (code & 63)), n = 2;
    } else if (code < 0x10000) {
        bytes[0] = (char)(0xe0 | code >> 12), bytes[1] = (char)(0x80 | (code >> 6 & 63));
        bytes[2] = (char)(0x80 | (code & 63)), n = 3;
    } else {
        bytes[0] = (char)(0xf0 | code >> 18), bytes[1] = (char)(0x80 | (code >> 12 & 63));
        bytes[2] = (char)(0x80 | (code >> 6 & 63)), bytes[3] = (char)(0x80 | (code & 63)), n = 4;
    }
    tn__jj_put(j, buffer, bytes, n);
}
