/* The loop variable of a for statement. It fetches items early only for attributes that need them. */
#include "text/template/engine.h"

/* Fetches the next item that passes the condition of the for statement. */
static bool fetch_item(jj *j, jj_loop *loop, jj_value *item) {
    while (tn__jj_next(j, &loop->cursor, item)) {
        if (!loop->node->c) return true;
        jj_scope *outer = j->scope;
        j->scope = tn__jj_new_scope(j, loop->scope);
        tn__jj_assign(j, loop->node->a, *item);
        bool passes = tn__jj_truth(j, tn__jj_eval(j, loop->node->c));
        j->scope = outer;
        if (passes) return true;
    }
    return false;
}

static bool fetch_after(jj *j, jj_loop *loop) {
    if (!loop->has_after) loop->has_after = fetch_item(j, loop, &loop->after);
    return loop->has_after;
}

bool tn__jj_loop_next(jj *j, jj_loop *loop) {
    jj_value item;
    if (loop->has_after)
        item = loop->after;
    else if (!fetch_item(j, loop, &item))
        return false;
    loop->has_after = false;
    loop->has_previous = loop->has_current;
    loop->previous = loop->current;
    loop->current = item;
    loop->has_current = true;
    loop->index0++;
    return true;
}

static int64_t loop_length(jj *j, jj_loop *loop) {
    if (loop->rest) return loop->length;
    if (!loop->node->c && tn__jj_has_length(loop->cursor.source)) return tn__jj_length(j, loop->cursor.source);
    jj_list *rest = tn__jj_new_list(j, 0);
    jj_value item;
    if (loop->has_after) tn__jj_append(j, rest, loop->after);
    while (fetch_item(j, loop, &item)) tn__jj_append(j, rest, item);
    loop->has_after = false;
    loop->rest = rest;
    loop->length = loop->index0 + 1 + (int64_t)rest->count;
    loop->cursor = (jj_cursor){.source = jj_listed(JJ_LIST, rest)};
    return loop->length;
}

static jj_value loop_cycle(jj *j, jj_value self, const jj_args *args) {
    if (args->keyword_count || !args->count) tn__jj_fail(j, TN_E_INVALID, "loop.cycle needs items to cycle through");
    return args->values[(uint64_t)self.as.loop->index0 % args->count];
}

static jj_value loop_changed(jj *j, jj_value self, const jj_args *args) {
    jj_loop *loop = self.as.loop;
    bool same = loop->changed && loop->changed_count == args->count;
    for (size_t i = 0; same && i < args->count; i++) same = tn__jj_equal(j, loop->changed[i], args->values[i]);
    if (same) return jj_bool(false);
    loop->changed = tn__jj_array(j, args->count, sizeof *loop->changed);
    if (args->count) memcpy(loop->changed, args->values, args->count * sizeof *args->values);
    loop->changed_count = args->count;
    return jj_bool(true);
}

jj_value tn__jj_loop_attribute(jj *j, jj_value v, const jj_string *name) {
    jj_loop *loop = v.as.loop;
    static const struct {
        const char *name;
        jj_native call;
    } functions[] = {{"cycle", loop_cycle}, {"changed", loop_changed}};
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++)
        if (tn__jj_same_text(name, functions[i].name)) {
            jj_function *function = tn__jj_alloc(j, sizeof *function);
            *function = (jj_function){.name = functions[i].name, .call = functions[i].call, .self = v};
            return (jj_value){.type = JJ_FUNCTION, .as.function = function};
        }
    if (tn__jj_same_text(name, "index")) return jj_int(loop->index0 + 1);
    if (tn__jj_same_text(name, "index0")) return jj_int(loop->index0);
    if (tn__jj_same_text(name, "first")) return jj_bool(loop->index0 == 0);
    if (tn__jj_same_text(name, "last")) return jj_bool(!fetch_after(j, loop));
    if (tn__jj_same_text(name, "length")) return jj_int(loop_length(j, loop));
    if (tn__jj_same_text(name, "revindex")) return jj_int(loop_length(j, loop) - loop->index0);
    if (tn__jj_same_text(name, "revindex0")) return jj_int(loop_length(j, loop) - loop->index0 - 1);
    if (tn__jj_same_text(name, "depth")) return jj_int(loop->depth0 + 1);
    if (tn__jj_same_text(name, "depth0")) return jj_int(loop->depth0);
    if (tn__jj_same_text(name, "previtem"))
        return loop->has_previous ? loop->previous : tn__jj_undefined(j, "there is no previous item");
    if (tn__jj_same_text(name, "nextitem"))
        return fetch_after(j, loop) ? loop->after : tn__jj_undefined(j, "there is no next item");
    return jj_absent();
}
