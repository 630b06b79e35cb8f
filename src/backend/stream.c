/* Streams of work: asynchronous transfers with their synchronous fallbacks, programs and events. */
#include "tenon/backend_impl.h"

tn_status tn_stream_new(tn_device *device, const tn_stream_params *params, tn_stream **stream) {
    static const tn_stream_params defaults;
    if (!device || !stream) return tn_fail(TN_E_INVALID, "tn_stream_new: missing argument");
    return device->ops->stream_new(device, params ? params : &defaults, stream);
}

void tn_stream_free(tn_stream *stream) {
    if (!stream) return;
    if (stream->ops->synchronize) (void)stream->ops->synchronize(stream);
    stream->ops->free(stream);
}

tn_device *tn_stream_device(const tn_stream *stream) { return stream ? stream->device : NULL; }
size_t tn_stream_own_bytes(const tn_stream *stream) {
    return stream && stream->ops->own_bytes ? stream->ops->own_bytes(stream) : 0;
}

tn_status tn_stream_synchronize(tn_stream *stream) {
    if (!stream) return tn_fail(TN_E_INVALID, "tn_stream_synchronize: no stream");
    return stream->ops->synchronize ? stream->ops->synchronize(stream) : TN_OK;
}

static tn_status check_tensor_range(const tn_tensor *tensor, size_t offset, size_t size) {
    size_t bytes = tn_nbytes(tensor);
    if (offset > bytes || size > bytes - offset)
        return tn_fail(TN_E_INVALID, "'%s': %zu bytes at offset %zu, but the tensor has %zu", tensor->name, size,
                       offset, bytes);
    if (size && !tensor->data) return tn_fail(TN_E_STATE, "'%s' has no memory yet", tensor->name);
    return TN_OK;
}

tn_status tn_stream_set_async(tn_stream *stream, tn_tensor *tensor, const void *data, size_t offset, size_t size) {
    if (!stream || !tensor || (!data && size)) return tn_fail(TN_E_INVALID, "tn_stream_set_async: missing argument");
    TN_TRY(check_tensor_range(tensor, offset, size));
    if (stream->ops->set_async) return stream->ops->set_async(stream, tensor, data, offset, size);
    TN_TRY(tn_stream_synchronize(stream));
    return tn_tensor_set_at(tensor, data, offset, size);
}

tn_status tn_stream_get_async(tn_stream *stream, const tn_tensor *tensor, void *data, size_t offset, size_t size) {
    if (!stream || !tensor || (!data && size)) return tn_fail(TN_E_INVALID, "tn_stream_get_async: missing argument");
    TN_TRY(check_tensor_range(tensor, offset, size));
    if (stream->ops->get_async) return stream->ops->get_async(stream, tensor, data, offset, size);
    TN_TRY(tn_stream_synchronize(stream));
    return tn_tensor_get_at(tensor, data, offset, size);
}

/* Either side may support the copy: a GPU copies from host memory as well as into it. */
static tn_status try_copy(tn_stream *by, tn_stream *from, tn_stream *to, const tn_tensor *source, tn_tensor *target) {
    if (!by->ops->copy_async) return TN_E_UNSUPPORTED;
    tn_status status = by->ops->copy_async(from, to, source, target);
    if (status == TN_E_UNSUPPORTED) tn_error_clear();
    return status;
}

tn_status tn_stream_copy_async(tn_stream *from, tn_stream *to, const tn_tensor *source, tn_tensor *target) {
    if (!from || !to || !source || !target) return tn_fail(TN_E_INVALID, "tn_stream_copy_async: missing argument");
    if (!tn_same_layout(source, target))
        return tn_fail(TN_E_SHAPE, "cannot copy '%s' into '%s': their layouts differ", source->name, target->name);
    TN_TRY(check_tensor_range(source, 0, tn_nbytes(source)));
    TN_TRY(check_tensor_range(target, 0, tn_nbytes(target)));
    tn_status status = try_copy(to, from, to, source, target);
    if (status == TN_E_UNSUPPORTED && from->ops != to->ops) status = try_copy(from, from, to, source, target);
    if (status != TN_E_UNSUPPORTED) return status;
    /* Through the host, once the source is computed and no queued work reads the target any more. */
    TN_TRY(tn_stream_synchronize(from));
    TN_TRY(tn_stream_synchronize(to));
    return tn_tensor_copy(source, target);
}

tn_status tn_program_new(tn_stream *stream, tn_tensor *const *nodes, size_t n_nodes, tn_program **program) {
    if (!stream || !program || (!nodes && n_nodes)) return tn_fail(TN_E_INVALID, "tn_program_new: missing argument");
    return stream->ops->program_new(stream, nodes, n_nodes, program);
}
void tn_program_free(tn_program *program) {
    if (program) program->stream->ops->program_free(program);
}
size_t tn_program_scratch(const tn_program *program) { return program ? program->scratch : 0; }
void tn_program_moved(tn_program *program) {
    if (program && program->stream->ops->program_moved) program->stream->ops->program_moved(program);
}

tn_status tn_program_run(tn_program *program, tn_buffer *scratch) {
    if (!program) return tn_fail(TN_E_INVALID, "tn_program_run: no program");
    if (program->scratch && (!scratch || scratch->size < program->scratch))
        return tn_fail(TN_E_INVALID, "the program needs %zu bytes of scratch, got %zu", program->scratch,
                       tn_buffer_size(scratch));
    return program->stream->ops->program_run(program, scratch);
}

tn_status tn_program_print(tn_program *program, tn_buffer *scratch, FILE *out) {
    if (!program || !out) return tn_fail(TN_E_INVALID, "tn_program_print: missing argument");
    const tn_stream *stream = program->stream;
    if (!stream->ops->program_print)
        return tn_fail(TN_E_UNSUPPORTED, "%s has no launch list: it runs nodes one by one", stream->device->name);
    return stream->ops->program_print(program, scratch, out);
}

tn_status tn_event_new(tn_device *device, tn_event **event) {
    if (!device || !event) return tn_fail(TN_E_INVALID, "tn_event_new: missing argument");
    if (!device->ops->event_new) return tn_fail(TN_E_UNSUPPORTED, "%s has no events", device->name);
    return device->ops->event_new(device, event);
}
void tn_event_free(tn_event *event) {
    if (event) event->device->ops->event_free(event);
}
tn_status tn_event_record(tn_event *event, tn_stream *stream) {
    if (!event || !stream) return tn_fail(TN_E_INVALID, "tn_event_record: missing argument");
    return event->device->ops->event_record(event, stream);
}
tn_status tn_event_wait(tn_event *event, tn_stream *stream) {
    if (!event || !stream) return tn_fail(TN_E_INVALID, "tn_event_wait: missing argument");
    return event->device->ops->event_wait(event, stream);
}
tn_status tn_event_synchronize(tn_event *event) {
    if (!event) return tn_fail(TN_E_INVALID, "tn_event_synchronize: no event");
    return event->device->ops->event_synchronize(event);
}
