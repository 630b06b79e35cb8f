/* A conversation with a model: its template and its messages. */
#include "chat/dialog.h"

#include "cli/text_input.h"
#include "files/output_file.h"

#include <stdlib.h>
#include <string.h>

/* For models without a template: the messages are one text. */
static const char plain_template[] =
    "{% for m in messages %}{{ m.content }}{{ '\n\n' if m.role != 'user' }}{% endfor %}";

/* Where the template ends a turn with a string that is not an end token, that string is a stop string. */
static tn_status make_generator(struct dialog *d) {
    tn_generator_params p = {.decode_flags = TN_DECODE_SPECIAL};
    const char *end = tn_chat_template_turn_end(d->chat);
    tn_token token = tn_tokenizer_find(d->tokenizer, end, strlen(end));
    bool visible = strspn(end, " \n\r\t") < strlen(end);
    const int reverse = args_repeats(d->args, "reverse-prompt");
    const char **stops = tn_calloc((size_t)reverse + 1, sizeof *stops);
    if (!stops) return TN_E_NOMEM;
    if (!d->no_template && visible && !(token >= 0 && tn_token_is_end(d->tokenizer, token))) stops[p.n_stops++] = end;
    for (int i = 0; i < reverse; i++) {
        const char *text = escaped_text_at(d->args, "reverse-prompt", i);
        if (text && *text) stops[p.n_stops++] = text;
    }
    p.stops = stops;
    tn_status status = tn_generator_new(d->tokenizer, &p, &d->generator);
    tn_free(stops);
    return status;
}

int dialog_open(struct dialog *d, const struct args *args, tn_model *model, tn_session *session,
                const char *template) {
    tn_model_info info = tn_model_get_info(model);
    *d = (struct dialog){.args = args, .model = model, .session = session, .limit = -1};
    d->tokenizer = tn_model_tokenizer(model);
    if (!d->tokenizer) return fail("the model has no tokenizer");
    if (info.is_encoder) return fail("the model makes embeddings and cannot generate text");
    if (!info.is_causal) return fail("generating text by diffusion is not supported");
    if (!template) template = info.chat_template;
    d->no_template = !template;
    tn_status status = tn_chat_template_new(template ? template : plain_template, &d->chat);
    if (status == TN_OK) status = make_generator(d);
    d->messages = json_array();
    if (status == TN_OK && !d->messages) status = TN_E_NOMEM;
    return status == TN_OK ? EXIT_OK : fail_status(status, "chat template");
}

void dialog_close(struct dialog *d) {
    tn_chat_template_free(d->chat);
    tn_generator_free(d->generator);
    tn_sampler_free(d->sampler);
    tn_tokens_free(&d->cached);
    json_decref(d->messages);
}

/* ---- Messages ---- */

static const char *role_of(const json_t *message) {
    const char *role = json_string_value(json_object_get(message, "role"));
    return role ? role : "";
}

static bool has_system(const struct dialog *d) {
    return strcmp(role_of(json_array_get(d->messages, 0)), "system") == 0;
}

const char *dialog_system(const struct dialog *d) {
    return has_system(d) ? json_string_value(json_object_get(json_array_get(d->messages, 0), "content")) : NULL;
}

bool dialog_set_system(struct dialog *d, const char *text) {
    if (has_system(d)) json_array_remove(d->messages, 0);
    return !*text ||
           json_array_insert_new(d->messages, 0, json_pack("{s:s, s:s}", "role", "system", "content", text)) == 0;
}

bool dialog_add(struct dialog *d, const char *role, const char *text) {
    return json_array_append_new(d->messages, json_pack("{s:s, s:s}", "role", role, "content", text)) == 0;
}

void dialog_reset(struct dialog *d) {
    size_t keep = has_system(d);
    while (json_array_size(d->messages) > keep) json_array_remove(d->messages, json_array_size(d->messages) - 1);
    d->dropped = 0;
}

bool dialog_take_back(struct dialog *d) {
    size_t n = json_array_size(d->messages);
    if (n < 2 || strcmp(role_of(json_array_get(d->messages, n - 1)), "assistant") != 0 ||
        strcmp(role_of(json_array_get(d->messages, n - 2)), "user") != 0)
        return false;
    return json_array_remove(d->messages, n - 1) == 0;
}

int dialog_save(const struct dialog *d, const char *path, bool replace) {
    struct output_file file;
    int code = output_open(&file, path, replace, NULL, 0);
    if (code) return code;
    json_t *root = json_pack("{s:O}", "messages", d->messages);
    int failed = root ? json_dump_file(root, file.path, JSON_INDENT(2)) : -1;
    json_decref(root);
    if (failed) fail("%s cannot be written", path);
    return output_close(&file, !failed) || failed ? EXIT_ERROR : EXIT_OK;
}

int dialog_load(struct dialog *d, const char *path) {
    json_error_t error;
    json_t *root = json_load_file(path, 0, &error), *message;
    json_t *messages = json_is_object(root) ? json_object_get(root, "messages") : root;
    size_t i;
    int code = EXIT_OK;
    if (!root)
        code = fail("%s: %s", path, error.text);
    else if (!json_is_array(messages))
        code = fail("%s holds no list of messages", path);
    json_array_foreach(messages, i, message) {
        const char *role = role_of(message);
        if (code == EXIT_OK && (!*role || !json_object_get(message, "content")))
            code = fail("%s: message %zu has no role or no content", path, i);
    }
    if (code == EXIT_OK) {
        json_decref(d->messages);
        d->messages = json_incref(messages);
        d->dropped = 0;
    }
    json_decref(root);
    return code;
}
