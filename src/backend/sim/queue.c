/* Streams of simulated devices: a thread executes commands from a ring in order. Programs run on the CPU backend, on
 * the accessible mapping of the memory. */
#include "backend/sim/sim.h"

#include "backend/registry.h"

#include <string.h>

enum { RING = 256 };
typedef enum command_kind {
    COMMAND_SET,
    COMMAND_GET,
    COMMAND_COPY,
    COMMAND_RUN,
    COMMAND_RECORD,
    COMMAND_WAIT
} command_kind;

typedef struct sim_event {
    tn_event base;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t recorded, reached; /* number of records enqueued and executed */
} sim_event;

typedef struct sim_program {
    tn_program base;
    tn_tensor *copies; /* the nodes and their sources, with inner addresses; filled at each run */
    tn_tensor **nodes, **originals;
    size_t n_nodes, n_copies;
    tn_program *inner;  /* on the CPU stream, over `nodes` */
    tn_buffer *wrapped; /* the last scratch as a CPU buffer */
    void *wrapped_base;
} sim_program;

typedef struct sim_command {
    command_kind kind;
    tn_tensor *tensor;
    const tn_tensor *source;
    void *data;
    size_t offset, size;
    sim_program *program;
    tn_buffer *scratch;
    sim_event *event;
    uint64_t ticket;
} sim_command;

typedef struct sim_stream {
    tn_stream base;
    tn__sim *sim;
    tn_stream *cpu;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    tn_event *copied; /* recorded at a copy between two streams */
    sim_command ring[RING];
    uint64_t put, taken, done; /* numbers of commands enqueued, taken by the thread, finished */
    bool stop;
    tn_status status; /* the first failure, reported at the next synchronize */
    char error[512];
} sim_stream;

/* ---- Programs ---- */

static void sim_program_free(tn_program *program) {
    sim_program *p = (sim_program *)program;
    if (program->stream) (void)tn_stream_synchronize(program->stream);
    tn_program_free(p->inner);
    tn_buffer_free(p->wrapped);
    tn_free(p->copies);
    tn_free(p->nodes);
    tn_free(p->originals);
    tn_free(p);
}

/* Finds the copy of a tensor. A hash table with open addressing, because a linear search is slow for long lists. */
typedef struct copy_table {
    uint32_t *slots;
    size_t mask;
} copy_table;

static tn_tensor *copy_of(sim_program *p, copy_table *table, tn_tensor *t) {
    size_t i = ((uintptr_t)t >> 4) * 0x9e3779b97f4a7c15u >> 20 & table->mask;
    while (table->slots[i]) {
        if (p->originals[table->slots[i] - 1] == t) return &p->copies[table->slots[i] - 1];
        i = (i + 1) & table->mask;
    }
    p->originals[p->n_copies] = t;
    p->copies[p->n_copies] = *t;
    table->slots[i] = (uint32_t)++p->n_copies;
    return &p->copies[p->n_copies - 1];
}

static tn_status sim_program_new(tn_stream *stream, tn_tensor *const *nodes, size_t n_nodes, tn_program **out) {
    sim_stream *s = stream->impl;
    sim_program *p = tn_calloc(1, sizeof *p);
    if (!p) return TN_E_NOMEM;
    size_t limit = n_nodes * (TN_MAX_SRC + 2) + 1, capacity = 64;
    while (capacity < 2 * limit) capacity *= 2;
    copy_table table = {tn_calloc(capacity, sizeof(uint32_t)), capacity - 1};
    p->base.stream = stream;
    p->n_nodes = n_nodes;
    p->nodes = tn_calloc(n_nodes + 1, sizeof(tn_tensor *));
    p->originals = tn_calloc(limit, sizeof(tn_tensor *));
    p->copies = tn_calloc(limit, sizeof *p->copies);
    tn_status status = TN_E_NOMEM;
    if (!table.slots || !p->nodes || !p->originals || !p->copies) goto out;
    for (size_t i = 0; i < n_nodes; i++) {
        tn_tensor *c = p->nodes[i] = copy_of(p, &table, nodes[i]);
        for (int k = 0; k < TN_MAX_SRC; k++)
            if (nodes[i]->src[k]) c->src[k] = copy_of(p, &table, nodes[i]->src[k]);
        c->view_src = NULL; /* copies carry complete addresses */
    }
    status = tn_program_new(s->cpu, p->nodes, n_nodes, &p->inner);
    if (status == TN_OK) p->base.scratch = tn_program_scratch(p->inner);
out:
    tn_free(table.slots);
    if (status != TN_OK) {
        p->base.stream = NULL;
        sim_program_free(&p->base);
        return status;
    }
    *out = &p->base;
    return TN_OK;
}

static tn_status execute_program(sim_stream *s, const sim_command *c) {
    tn__sim *sim = s->sim;
    sim_program *p = c->program;
    TN_TRY(tn__sim_check(sim));
    if (sim->memory_only)
        return tn_fail(TN_E_UNSUPPORTED, "%s has no storage: it serves planning only", sim->device.name);
    if (tn__sim_fault(&sim->fail_run)) {
        atomic_store(&sim->lost, true);
        return tn_fail(TN_E_DEVICE_LOST, "%s was lost while computing", sim->device.name);
    }
    tn__sim_delay(sim, 0);
    bool moved = false;
    for (size_t i = 0; i < p->n_copies; i++) {
        const tn_tensor *t = p->originals[i];
        void *data = t->data && t->buffer && t->buffer->type->impl == sim ? tn__sim_inner(t->buffer, t->data) : NULL;
        if (t->data && !data && tn_nelements(t) > 0)
            return tn_fail(TN_E_DEVICE, "%s cannot access '%s', which is in %s", sim->device.name, t->name,
                           t->buffer ? t->buffer->type->name : "host memory");
        moved = moved || p->copies[i].data != data;
        p->copies[i].data = data;
        p->copies[i].buffer = NULL;
    }
    if (moved) tn_program_moved(p->inner);
    /* The CPU program needs a CPU buffer: the device's scratch is wrapped once for as long as it stays the same. */
    char *base = p->base.scratch ? tn__sim_inner(c->scratch, c->scratch->base) : NULL;
    if (base && p->wrapped_base != base) {
        tn_buffer *fresh;
        TN_TRY(tn_device_wrap_host(tn__cpu_device(), base, p->base.scratch, &fresh));
        tn_buffer_free(p->wrapped);
        p->wrapped = fresh;
        p->wrapped_base = base;
    }
    return tn_program_run(p->inner, p->wrapped);
}

/* ---- The thread ---- */

static tn_status execute(sim_stream *s, const sim_command *c) {
    switch (c->kind) {
    case COMMAND_SET: return tn_tensor_set_at(c->tensor, c->data, c->offset, c->size);
    case COMMAND_GET: return tn_tensor_get_at(c->tensor, c->data, c->offset, c->size);
    case COMMAND_COPY: {
        /* Within the device, or to another simulated device. */
        TN_TRY(tn__sim_check(s->sim));
        if (tn__sim_fault(&s->sim->fail_copy))
            return tn_fail(TN_E_DEVICE, "%s: a copy of %zu bytes failed", s->sim->device.name, c->size);
        tn__sim_delay(s->sim, c->size);
        memmove(tn__sim_inner(c->tensor->buffer, c->tensor->data), tn__sim_inner(c->source->buffer, c->source->data),
                c->size);
        return TN_OK;
    }
    case COMMAND_RUN: return execute_program(s, c);
    case COMMAND_RECORD:
        pthread_mutex_lock(&c->event->mutex);
        if (c->event->reached < c->ticket) c->event->reached = c->ticket;
        pthread_cond_broadcast(&c->event->changed);
        pthread_mutex_unlock(&c->event->mutex);
        return TN_OK;
    case COMMAND_WAIT:
        pthread_mutex_lock(&c->event->mutex);
        while (c->event->reached < c->ticket) pthread_cond_wait(&c->event->changed, &c->event->mutex);
        pthread_mutex_unlock(&c->event->mutex);
        return TN_OK;
    }
    return TN_OK;
}

static void *run_queue(void *user) {
    sim_stream *s = user;
    pthread_mutex_lock(&s->mutex);
    for (;;) {
        while (s->taken == s->put && !s->stop) pthread_cond_wait(&s->changed, &s->mutex);
        if (s->taken == s->put) break;
        sim_command c = s->ring[s->taken++ % RING];
        /* After a failure only events are executed, so that no thread waits forever. */
        bool skip = s->status != TN_OK && c.kind != COMMAND_RECORD && c.kind != COMMAND_WAIT;
        pthread_mutex_unlock(&s->mutex);
        tn_status status = skip ? TN_OK : execute(s, &c);
        pthread_mutex_lock(&s->mutex);
        if (status != TN_OK && s->status == TN_OK) {
            s->status = status;
            size_t length = strlen(tn_error());
            if (length >= sizeof s->error) length = sizeof s->error - 1;
            memcpy(s->error, tn_error(), length);
            s->error[length] = '\0';
        }
        s->done++;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

static tn_status enqueue(sim_stream *s, const sim_command *c) {
    pthread_mutex_lock(&s->mutex);
    while (s->put - s->done >= RING) pthread_cond_wait(&s->changed, &s->mutex);
    s->ring[s->put++ % RING] = *c;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    return TN_OK;
}

static tn_status sim_synchronize(tn_stream *stream) {
    sim_stream *s = stream->impl;
    pthread_mutex_lock(&s->mutex);
    uint64_t target = s->put;
    while (s->done < target) pthread_cond_wait(&s->changed, &s->mutex);
    tn_status status = s->status;
    if (status != TN_OK) tn_fail(status, "%s", s->error);
    s->status = TN_OK;
    pthread_mutex_unlock(&s->mutex);
    return status;
}

/* ---- Stream ---- */

static tn_status sim_set_async(tn_stream *stream, tn_tensor *tensor, const void *data, size_t offset, size_t size) {
    return enqueue(
        stream->impl,
        &(sim_command){
            .kind = COMMAND_SET, .tensor = tensor, .data = (void *)(uintptr_t)data, .offset = offset, .size = size});
}
static tn_status sim_get_async(tn_stream *stream, const tn_tensor *tensor, void *data, size_t offset, size_t size) {
    return enqueue(stream->impl, &(sim_command){.kind = COMMAND_GET,
                                                .tensor = (tn_tensor *)(uintptr_t)tensor,
                                                .data = data,
                                                .offset = offset,
                                                .size = size});
}

static bool in_simulated(const tn_tensor *t) {
    const tn_buffer_type_ops *ops = t->buffer ? t->buffer->type->ops : NULL;
    return ops == &tn__sim_type_ops || ops == &tn__sim_wrapped_type_ops;
}

static tn_status sim_copy_async(tn_stream *from, tn_stream *to, const tn_tensor *source, tn_tensor *target) {
    size_t size = tn_nbytes(source);
    bool from_host = source->data && (!source->buffer || source->buffer->type->is_host),
         from_sim = from->ops->copy_async == sim_copy_async, to_sim = to->ops->copy_async == sim_copy_async;
    if (from_sim && to_sim && in_simulated(source) && in_simulated(target)) {
        /* The copy runs in the source's queue after the earlier work of both; the target's later work waits for it.
         */
        sim_stream *f = from->impl, *t = to->impl;
        if (f != t) {
            TN_TRY(tn__sim_event_record(t->copied, to));
            TN_TRY(tn__sim_event_wait(t->copied, from));
        }
        TN_TRY(enqueue(f, &(sim_command){.kind = COMMAND_COPY, .source = source, .tensor = target, .size = size}));
        if (f != t) {
            TN_TRY(tn__sim_event_record(f->copied, from));
            TN_TRY(tn__sim_event_wait(f->copied, to));
        }
        return TN_OK;
    }
    if (from_host && to_sim) {
        /* The CPU is synchronous, so the host's data is complete when this is called. */
        return enqueue(to->impl,
                       &(sim_command){.kind = COMMAND_SET, .tensor = target, .data = source->data, .size = size});
    }
    return TN_E_UNSUPPORTED;
}

static tn_status sim_program_run(tn_program *program, tn_buffer *scratch) {
    if (program->scratch && (!scratch || scratch->size < program->scratch))
        return tn_fail(TN_E_STATE, "the program needs %zu bytes of scratch", program->scratch);
    return enqueue(program->stream->impl,
                   &(sim_command){.kind = COMMAND_RUN, .program = (sim_program *)program, .scratch = scratch});
}

static void sim_stream_free(tn_stream *stream) {
    sim_stream *s = stream->impl;
    pthread_mutex_lock(&s->mutex);
    s->stop = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    pthread_join(s->thread, NULL);
    pthread_mutex_destroy(&s->mutex);
    pthread_cond_destroy(&s->changed);
    tn__sim_event_free(s->copied);
    tn_stream_free(s->cpu);
    tn_free(s);
}

static const tn_stream_ops stream_ops = {
    .free = sim_stream_free,
    .set_async = sim_set_async,
    .get_async = sim_get_async,
    .copy_async = sim_copy_async,
    .synchronize = sim_synchronize,
    .program_new = sim_program_new,
    .program_free = sim_program_free,
    .program_run = sim_program_run,
};

tn_status tn__sim_stream_new(tn_device *device, const tn_stream_params *params, tn_stream **stream) {
    sim_stream *s = tn_calloc(1, sizeof *s);
    if (!s) return TN_E_NOMEM;
    s->sim = device->impl;
    s->base = (tn_stream){.ops = &stream_ops, .device = device, .impl = s};
    tn_stream_params cpu = {.n_threads = 1, .abort = params->abort, .abort_user = params->abort_user};
    tn_status status = tn__sim_event_new(device, &s->copied);
    if (status == TN_OK) status = tn_stream_new(tn__cpu_device(), &cpu, &s->cpu);
    if (status != TN_OK) {
        if (s->copied) tn__sim_event_free(s->copied);
        tn_free(s);
        return status;
    }
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->changed, NULL);
    if (pthread_create(&s->thread, NULL, run_queue, s) != 0) {
        tn_stream_free(s->cpu);
        tn__sim_event_free(s->copied);
        tn_free(s);
        return tn_fail(TN_E_NOMEM, "%s: its thread cannot be started", device->name);
    }
    *stream = &s->base;
    return TN_OK;
}

/* ---- Events ---- */

tn_status tn__sim_event_new(tn_device *device, tn_event **event) {
    sim_event *e = tn_calloc(1, sizeof *e);
    if (!e) return TN_E_NOMEM;
    e->base.device = device;
    pthread_mutex_init(&e->mutex, NULL);
    pthread_cond_init(&e->changed, NULL);
    *event = &e->base;
    return TN_OK;
}
void tn__sim_event_free(tn_event *event) {
    sim_event *e = (sim_event *)event;
    (void)tn__sim_event_synchronize(event);
    pthread_mutex_destroy(&e->mutex);
    pthread_cond_destroy(&e->changed);
    tn_free(e);
}
tn_status tn__sim_event_record(tn_event *event, tn_stream *stream) {
    sim_event *e = (sim_event *)event;
    pthread_mutex_lock(&e->mutex);
    uint64_t ticket = ++e->recorded;
    pthread_mutex_unlock(&e->mutex);
    return enqueue(stream->impl, &(sim_command){.kind = COMMAND_RECORD, .event = e, .ticket = ticket});
}
tn_status tn__sim_event_wait(tn_event *event, tn_stream *stream) {
    sim_event *e = (sim_event *)event;
    pthread_mutex_lock(&e->mutex);
    uint64_t ticket = e->recorded;
    pthread_mutex_unlock(&e->mutex);
    if (stream->ops != &stream_ops)
        return tn__sim_event_synchronize(event); /* a stream of another backend: the host waits */
    return enqueue(stream->impl, &(sim_command){.kind = COMMAND_WAIT, .event = e, .ticket = ticket});
}
tn_status tn__sim_event_synchronize(tn_event *event) {
    sim_event *e = (sim_event *)event;
    pthread_mutex_lock(&e->mutex);
    while (e->reached < e->recorded) pthread_cond_wait(&e->changed, &e->mutex);
    pthread_mutex_unlock(&e->mutex);
    return TN_OK;
}
