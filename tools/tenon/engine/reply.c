/* Replies: the prompt that messages make, the cache that follows it, and the answer as it comes. */
#include "cli/term.h"
#include "engine/dialog.h"
#include "engine/loaded_model.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Tokens -----------------------------------------------------------------------------------------------------
 */

static tn_status append(tn_tokens *to, const tn_token *ids, size_t count) {
    if (to->count + count > to->capacity) {
        size_t capacity = 2 * (to->count + count) + 64;
        tn_token *larger = tn_realloc(to->ids, capacity * sizeof *larger);
        if (!larger) return TN_E_NOMEM;
        to->ids = larger;
        to->capacity = capacity;
    }
    if (count) memcpy(to->ids + to->count, ids, count * sizeof *ids);
    to->count += count;
    return TN_OK;
}

static size_t cells(const struct dialog *d) { return (size_t)tn_session_get_params(d->session).n_ctx; }

/* The prompt of all messages. */
static tn_status render(struct dialog *d, tn_chat_prompt **prompt, tn_tokens *tokens) {
    tn_chat_params p = tn_chat_params_default();
    char *messages = json_dumps(d->messages, JSON_COMPACT);
    p.messages = messages;
    p.variables = d->variables;
    p.bos_token = tn_token_text(d->tokenizer, tn_tokenizer_special(d->tokenizer, TN_SPECIAL_BOS), NULL);
    p.eos_token = tn_token_text(d->tokenizer, tn_tokenizer_special(d->tokenizer, TN_SPECIAL_EOS), NULL);
    tn_status status = messages ? tn_chat_prompt_new(d->chat, &p, prompt) : TN_E_NOMEM;
    free(messages);
    TN_TRY(status);
    size_t length;
    const char *text = tn_chat_prompt_text(*prompt, &length);
    unsigned flags = TN_ENCODE_PARSE_SPECIAL | (tn_chat_prompt_has_bos(*prompt) ? 0 : TN_ENCODE_ADD_SPECIAL);
    tokens->count = 0;
    status = tn_tokenizer_encode(d->tokenizer, text, length, flags, tokens);
    if (status == TN_OK) return TN_OK;
    tn_chat_prompt_free(*prompt);
    *prompt = NULL;
    return status;
}

/* Removes the oldest user message and what answered it. False when only the last exchange is left. */
static bool forget_oldest(struct dialog *d) {
    size_t n = json_array_size(d->messages), first = dialog_system(d) != NULL, next = first + 1;
    const char *role;
    while (next < n && (role = json_string_value(json_object_get(json_array_get(d->messages, next), "role"))) &&
           strcmp(role, "user") != 0)
        next++;
    if (next >= n) return false;
    for (size_t i = first; i < next; i++, d->forgotten++) json_array_remove(d->messages, first);
    return true;
}

/* ---- Cache ------------------------------------------------------------------------------------------------------
 */

/* How the cached tokens serve for others: the first `prefix` stay, `gap` go, `tail` behind them move up. */
struct reuse {
    size_t prefix, gap, tail;
};

static struct reuse find_reuse(const tn_tokens *cached, const tn_token *ids, size_t count) {
    enum { WORTH_MOVING = 16 };
    struct reuse r = {0};
    while (r.prefix < cached->count && r.prefix < count && cached->ids[r.prefix] == ids[r.prefix]) r.prefix++;
    for (size_t gap = 1; r.prefix + gap < cached->count; gap++) {
        size_t n = 0;
        const tn_token *moved = cached->ids + r.prefix + gap;
        while (r.prefix + gap + n < cached->count && r.prefix + n < count && moved[n] == ids[r.prefix + n]) n++;
        if (n > r.tail) {
            r.tail = n;
            r.gap = gap;
        }
    }
    if (r.tail < WORTH_MOVING) r.tail = r.gap = 0;
    return r;
}

/* Layers with a window have dropped what lies before it, so that they cannot go back to an earlier end. */
static bool can_go_back(const struct dialog *d) {
    int32_t window = tn_model_get_info(d->model).n_window;
    return window <= 0 || d->cached.count <= (size_t)window;
}

/* Positions above what was decoded hold nothing that counts, whatever was interrupted. */
static void cut_cache(struct dialog *d, size_t count) {
    bool possible = can_go_back(d) && tn_session_seq_remove(d->session, 0, (int32_t)count, -1) == TN_OK;
    if (!possible) tn_session_clear(d->session);
    d->cached.count = possible ? count : 0;
}

static tn_status move_up(struct dialog *d, struct reuse r) {
    int32_t from = (int32_t)(r.prefix + r.gap), to = (int32_t)(r.prefix + r.gap + r.tail);
    TN_TRY(tn_session_seq_remove(d->session, 0, to, -1));
    TN_TRY(tn_session_seq_remove(d->session, 0, (int32_t)r.prefix, from));
    TN_TRY(tn_session_seq_shift(d->session, 0, from, to, -(int32_t)r.gap));
    memmove(d->cached.ids + r.prefix, d->cached.ids + from, r.tail * sizeof *d->cached.ids);
    d->cached.count = r.prefix + r.tail;
    return TN_OK;
}

static tn_status decode(struct dialog *d, const tn_token *ids, size_t count) {
    struct progress progress;
    size_t piece = 0;
    uint64_t ns = 0;
    progress_start(&progress, "reading", count, PROGRESS_ITEMS);
    tn_status status = TN_OK;
    for (size_t done = 0; done < count && status == TN_OK; done += piece) {
        piece = prompt_chunk(d->session, piece, ns);
        size_t n = count - done < piece ? count - done : piece;
        status = append(&d->cached, ids + done, n); /* first, since it may fail */
        if (status != TN_OK) break;
        d->cached.count -= n;
        uint64_t begin = tn_time_ns();
        /* A greedy reply needs only the best token of each step. */
        bool best = count == 1 && d->sampler && tn_sampler_is_greedy(d->sampler);
        status =
            tn_session_decode(d->session, &(tn_batch){.n_tokens = (int32_t)n, .tokens = ids + done, .argmax = best});
        ns = tn_time_ns() - begin;
        if (status == TN_OK) d->cached.count += n;
        progress_update(&progress, done + n);
    }
    progress_end(&progress);
    return status;
}

/* Makes the cache hold exactly these tokens, computing what it does not have; with `logits` at least the last. What
 * stands behind a gap was computed with the gap's tokens in view: it moves up only where something was forgotten,
 * which nobody wants to pay for twice. */
static tn_status align(struct dialog *d, const tn_tokens *wanted, bool moves, bool logits) {
    struct reuse r = find_reuse(&d->cached, wanted->ids, wanted->count);
    if (!moves || !can_go_back(d)) r.gap = r.tail = 0;
    if (r.tail && move_up(d, r) != TN_OK) {
        tn_session_clear(d->session);
        d->cached.count = 0;
    }
    size_t keep = d->cached.count < r.prefix + r.tail ? d->cached.count : r.prefix + r.tail;
    if (logits && keep == wanted->count && keep) keep--;
    if (keep < d->cached.count) cut_cache(d, keep);
    keep = d->cached.count;
    tn_status status = decode(d, wanted->ids + keep, wanted->count - keep);
    if (status != TN_OK) cut_cache(d, d->cached.count);
    return status;
}

/* ---- Text -------------------------------------------------------------------------------------------------------
 */

struct writer {
    struct dialog *dialog;
    tn_chat_parser *parser;
    bool reasoning;
    bool begun, wrote; /* this part, anything at all */
};

/* Reasoning is dim at a terminal, and elsewhere no part of the reply: it goes to standard error. */
static tn_status show(void *user, const tn_chat_event *event) {
    struct writer *w = user;
    bool reasoning = event->kind == TN_CHAT_REASONING, terminal = isatty(STDOUT_FILENO);
    FILE *out = reasoning && !terminal ? stderr : stdout;
    if (event->kind == TN_CHAT_CALL_END) return TN_OK;
    if (w->reasoning && !reasoning) {
        fputs(style(stdout, STYLE_NONE), stdout);
        fputs("\n\n", terminal ? stdout : stderr);
        w->begun = false;
    }
    if (reasoning && !w->reasoning) fputs(style(stdout, STYLE_DIM), stdout);
    w->reasoning = reasoning;
    /* Models like to begin with a space or a line end. */
    const char *text = event->text;
    size_t length = event->length;
    while (!w->begun && length && strchr(" \n\r\t", *text) && !w->dialog->continues) {
        text++;
        length--;
    }
    w->begun = w->begun || length;
    w->wrote = w->wrote || length;
    term_write(out, text, length);
    return fflush(out) == 0 ? TN_OK : tn_fail(TN_E_IO, "standard output is closed");
}

static tn_status feed(struct writer *w, const char *text, size_t length) {
    return length ? tn_chat_parser_feed(w->parser, text, length, show, w) : TN_OK;
}

static tn_status finish(struct writer *w) {
    size_t length;
    const char *rest = tn_generator_finish(w->dialog->generator, &length);
    TN_TRY(feed(w, rest, length));
    tn_status status = tn_chat_parser_finish(w->parser, show, w);
    if (w->reasoning) fputs(style(stdout, STYLE_NONE), stdout);
    return status;
}

/* ---- The reply --------------------------------------------------------------------------------------------------
 */

/* The context is full in the middle of a reply: the oldest exchange goes, or, where there is none, the first half of
 * the reply itself. What stays keeps its place in the cache and only moves up. */
static tn_status make_room(struct dialog *d, size_t *n_prompt) {
    tn_tokens wanted = {0};
    size_t n_reply = d->cached.count - *n_prompt, drop = 0;
    tn_chat_prompt *prompt = NULL;
    tn_status status = TN_OK;
    if (forget_oldest(d)) {
        status = render(d, &prompt, &wanted);
        tn_chat_prompt_free(prompt);
    } else {
        drop = n_reply / 2;
        if (drop < 16) return tn_fail(TN_E_FULL, "the message fills the context");
        status = append(&wanted, d->cached.ids, *n_prompt);
    }
    size_t kept_prompt = wanted.count;
    if (status == TN_OK) status = append(&wanted, d->cached.ids + *n_prompt + drop, n_reply - drop);
    if (status == TN_OK) status = align(d, &wanted, true, false);
    if (status == TN_OK) *n_prompt = kept_prompt;
    tn_tokens_free(&wanted);
    return status;
}

static tn_status write_reply(struct dialog *d, struct writer *w, size_t n_prompt, enum reply_end *end) {
    *end = REPLY_LIMIT;
    for (int64_t i = 0; d->limit < 0 || i < d->limit; i++) {
        size_t length;
        tn_status sampled = tn_generator_sample(d->generator, d->session, -1);
        if (sampled != TN_OK && sampled != TN_END) return sampled;
        const char *text = tn_generator_text(d->generator, &length);
        TN_TRY(feed(w, text, length));
        if (sampled == TN_END) {
            *end = REPLY_DONE;
            break;
        }
        if (interrupted()) return tn_fail(TN_E_ABORTED, "interrupted");
        if (d->cached.count >= cells(d)) {
            tn_status status = make_room(d, &n_prompt);
            if (status == TN_E_FULL) {
                *end = REPLY_FULL;
                break;
            }
            TN_TRY(status);
        }
        const tn_token token = tn_generator_token(d->generator);
        tn_status status = decode(d, &token, 1);
        if (status != TN_OK) cut_cache(d, d->cached.count);
        TN_TRY(status);
    }
    return TN_OK;
}

/* The sampler sees the prompt before the grammar binds it, and the grammar begins anew with every reply. */
static int prepare_sampler(struct dialog *d, const tn_tokens *prompt) {
    int code = d->sampler ? EXIT_OK : sampling_new(&d->sampling, d->model, &d->sampler);
    if (code) return code;
    tn_status status = tn_sampler_set_grammar(d->sampler, NULL);
    size_t window = (size_t)d->sampling.penalty_window, from = prompt->count > window ? prompt->count - window : 0;
    for (; from < prompt->count && status == TN_OK; from++) status = tn_sampler_accept(d->sampler, prompt->ids[from]);
    tn_generator_restart(d->generator);
    tn_generator_set_sampler(d->generator, d->sampler);
    return status == TN_OK ? sampling_grammar(d->args, d->model, d->sampler) : fail_status(status, "sampling");
}

/* A prompt that leaves room for an answer: a quarter of the context, or what the limit asks for. */
static int fitting_prompt(struct dialog *d, tn_chat_prompt **prompt, tn_tokens *tokens) {
    size_t room = cells(d) / 4;
    if (d->limit >= 0 && (size_t)d->limit < room) room = (size_t)d->limit;
    for (;;) {
        tn_status status = render(d, prompt, tokens);
        if (status != TN_OK) return fail_status(status, "chat template");
        if (tokens->count + room <= cells(d)) return EXIT_OK;
        if (!forget_oldest(d)) break;
        tn_chat_prompt_free(*prompt);
        *prompt = NULL;
    }
    if (tokens->count + 16 <= cells(d)) return EXIT_OK;
    return fail("the message makes %zu tokens and the context has room for %zu: shorten it, or start with -c %zu",
                tokens->count, cells(d), 2 * tokens->count);
}

enum reply_end dialog_reply(struct dialog *d) {
    tn_chat_prompt *prompt = NULL;
    tn_tokens tokens = {0};
    struct writer w = {.dialog = d};
    enum reply_end end = REPLY_FAILED;
    char *json = NULL;
    tn_status status = TN_OK;
    int forgotten = d->forgotten, code = fitting_prompt(d, &prompt, &tokens);
    if (!code && (status = tn_chat_parser_new(prompt, &w.parser)) == TN_OK) code = prepare_sampler(d, &tokens);
    if (!code && status == TN_OK) status = align(d, &tokens, d->forgotten > forgotten, true);
    if (!code && status == TN_OK) status = write_reply(d, &w, tokens.count, &end);
    bool stopped = !code && (status == TN_OK || (status == TN_E_ABORTED && interrupted()));
    if (stopped && status == TN_E_ABORTED) {
        end = REPLY_INTERRUPTED;
        interrupt_clear();
    }
    if (stopped && w.parser && (status = finish(&w)) == TN_OK) status = tn_chat_parser_message(w.parser, &json);
    if (!code && status != TN_OK) {
        if (w.wrote) putchar('\n');
        code = fail_status(status, "%s", "");
    }
    json_t *message = json ? json_loads(json, 0, NULL) : NULL;
    bool keep = !code && message && (w.wrote || end != REPLY_INTERRUPTED);
    if (keep)
        json_array_append(d->messages, message);
    else
        json_array_remove(d->messages, json_array_size(d->messages) - 1);
    json_decref(message);
    tn_free(json);
    tn_chat_parser_free(w.parser);
    tn_chat_prompt_free(prompt);
    tn_tokens_free(&tokens);
    return code ? REPLY_FAILED : end;
}
