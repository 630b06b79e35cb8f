/* Replies: renders the messages as a prompt, updates the KV cache to it, and prints the answer while it is generated.
 */
#include "chat/dialog.h"
#include "cli/term.h"
#include "cli/text_buffer.h"
#include "engine/context_shift.h"
#include "engine/loaded_model.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Tokens ---- */

static size_t context_size(const struct dialog *d) { return (size_t)tn_session_get_params(d->session).n_ctx; }

/* Renders all messages with the template and tokenizes the prompt. */
static tn_status render_prompt(struct dialog *d, tn_chat_prompt **prompt, tn_tokens *tokens) {
    tn_chat_params p = tn_chat_params_default();
    char *messages = json_dumps(d->messages, JSON_COMPACT);
    p.messages = messages;
    char *variables = json_object_size(d->variables) ? json_dumps(d->variables, JSON_COMPACT) : NULL;
    p.variables = variables;
    p.format = d->format;
    p.bos_token = tn_token_text(d->tokenizer, tn_tokenizer_special(d->tokenizer, TN_SPECIAL_BOS), NULL);
    p.eos_token = tn_token_text(d->tokenizer, tn_tokenizer_special(d->tokenizer, TN_SPECIAL_EOS), NULL);
    tn_status status = messages ? tn_chat_prompt_new(d->chat, &p, prompt) : TN_E_NOMEM;
    free(messages);
    free(variables);
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

/* Removes the oldest user message and the messages that answered it. False if only the last exchange is left. */
static bool drop_oldest_exchange(struct dialog *d) {
    size_t n = json_array_size(d->messages), first = dialog_system(d) != NULL, next = first + 1;
    const char *role;
    while (next < n && (role = json_string_value(json_object_get(json_array_get(d->messages, next), "role"))) &&
           strcmp(role, "user") != 0)
        next++;
    if (next >= n) return false;
    for (size_t i = first; i < next; i++, d->dropped++) json_array_remove(d->messages, first);
    return true;
}

/* ---- Cache ---- */

/* Which cached tokens a new prompt can use: the first `prefix`; `gap` tokens are removed, the `tail` after them moves
 * up. */
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

/* Whether the cache can be cut at an earlier position: layers with a window have overwritten the cells before it. */
static bool can_cut(const struct dialog *d) {
    int32_t window = tn_model_get_info(d->model).n_window;
    return window <= 0 || d->cached.count <= (size_t)window;
}

/* Ends the check of the last guess: what was not reached is taken back. */
static tn_status settle_guess(struct dialog *d) {
    const int32_t n = d->guess.n;
    if (!d->speculator || !d->guess.tokens) return TN_OK;
    d->guess.at = d->at;
    const int32_t branch = tn_guess_branch(&d->guess, d->at);
    tn_speculator_checked(d->speculator, &d->guess, d->n_right);
    d->guess.tokens = NULL;
    d->guess.n = 0;
    return d->n_right < n ? tn_session_seq_take_branch(d->session, 0, branch, (int32_t)d->cached.count) : TN_OK;
}

/* Keeps the first `count` tokens of the cache. An interrupted decode may have left cells after them. */
static void cut_cache(struct dialog *d, size_t count) {
    bool possible = can_cut(d) && tn_session_seq_remove(d->session, 0, (int32_t)count, -1) == TN_OK;
    if (!possible) tn_session_clear(d->session);
    d->cached.count = possible ? count : 0;
    tn_speculator_forget(d->speculator, 0);
}

static tn_status move_tail(struct dialog *d, struct reuse r) {
    int32_t from = (int32_t)(r.prefix + r.gap), to = (int32_t)(r.prefix + r.gap + r.tail);
    TN_TRY(tn_session_seq_remove(d->session, 0, to, -1));
    TN_TRY(tn_session_seq_remove(d->session, 0, (int32_t)r.prefix, from));
    TN_TRY(tn_session_seq_shift(d->session, 0, from, to, -(int32_t)r.gap));
    memmove(d->cached.ids + r.prefix, d->cached.ids + from, r.tail * sizeof *d->cached.ids);
    d->cached.count = r.prefix + r.tail;
    tn_speculator_forget(d->speculator, 0);
    return TN_OK;
}

static tn_status decode_tokens(struct dialog *d, const tn_token *ids, size_t count) {
    struct progress progress;
    size_t piece = 0;
    uint64_t ns = 0;
    progress_start(&progress, "prefill", count, PROGRESS_ITEMS);
    tn_status status = TN_OK;
    for (size_t done = 0; done < count && status == TN_OK; done += piece) {
        piece = prompt_chunk(d->session, piece, ns);
        size_t n = count - done < piece ? count - done : piece;
        status = tokens_append(&d->cached, ids + done, n); /* before the decode, since it may fail */
        if (status != TN_OK) break;
        d->cached.count -= n;
        uint64_t begin = tn_time_ns();
        /* Greedy sampling needs only the argmax of each step. */
        bool best = count == 1 && d->sampler && tn_sampler_is_greedy(d->sampler);
        status = tn_session_decode(
            d->session,
            &(tn_batch){.n_tokens = (int32_t)n, .tokens = ids + done, .argmax = best, .candidates = true});
        ns = tn_time_ns() - begin;
        if (status == TN_OK) d->cached.count += n;
        progress_update(&progress, done + n);
    }
    progress_end(&progress);
    return status;
}

/* Makes the cache hold exactly these tokens and decodes those that it lacks; with `logits` at least the last. Tokens
 * after a gap were computed with attention to the gap, so that moving them up is inexact: `moves` allows it only
 * after messages were dropped, where decoding everything again would take long. */
static tn_status align_cache(struct dialog *d, const tn_tokens *target, bool moves, bool logits) {
    struct reuse r = find_reuse(&d->cached, target->ids, target->count);
    if (!moves || !can_cut(d)) r.gap = r.tail = 0;
    if (r.tail && move_tail(d, r) != TN_OK) {
        tn_session_clear(d->session);
        d->cached.count = 0;
    }
    size_t keep = d->cached.count < r.prefix + r.tail ? d->cached.count : r.prefix + r.tail;
    if (logits && keep == target->count && keep) keep--;
    if (keep < d->cached.count) cut_cache(d, keep);
    keep = d->cached.count;
    tn_status status = decode_tokens(d, target->ids + keep, target->count - keep);
    if (status != TN_OK) cut_cache(d, d->cached.count);
    return status;
}

/* ---- Text ---- */

struct reply_writer {
    struct dialog *dialog;
    tn_chat_parser *parser;
    bool reasoning;
    bool begun, wrote; /* text of the current part; any text */
    struct word_wrap wrap;
};

/* Reasoning is dim on a terminal; otherwise it is not part of the reply and goes to standard error. */
static tn_status show_event(void *user, const tn_chat_event *event) {
    struct reply_writer *w = user;
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
    /* Many models begin a reply with a space or a line end. */
    const char *text = event->text;
    size_t length = event->length;
    while (!w->begun && length && strchr(" \n\r\t", *text) && !w->dialog->no_template) {
        text++;
        length--;
    }
    w->begun = w->begun || length;
    w->wrote = w->wrote || length;
    term_write_wrapped(out, &w->wrap, text, length);
    return fflush(out) == 0 ? TN_OK : tn_fail(TN_E_IO, "standard output is closed");
}

static tn_status parse_text(struct reply_writer *w, const char *text, size_t length) {
    return length ? tn_chat_parser_feed(w->parser, text, length, show_event, w) : TN_OK;
}

static tn_status finish_reply(struct reply_writer *w) {
    size_t length;
    const char *rest = tn_generator_finish(w->dialog->generator, &length);
    TN_TRY(parse_text(w, rest, length));
    tn_status status = tn_chat_parser_finish(w->parser, show_event, w);
    if (w->reasoning) fputs(style(stdout, STYLE_NONE), stdout);
    return status;
}

/* ---- The reply ---- */

/* Decodes the token and a guess of what follows it. */
static tn_status decode_with_guess(struct dialog *d, tn_token token) {
    const int32_t held = (int32_t)d->cached.count, left = (int32_t)context_size(d) - 1 - held;
    tn_token tokens[1 + TN_GUESS_MOST];
    int32_t parents[1 + TN_GUESS_MOST];
    bool outputs[1 + TN_GUESS_MOST], guesses[1 + TN_GUESS_MOST];
    TN_TRY(tokens_append(&d->cached, &token, 1));
    d->cached.count--; /* it may fail */
    d->guess = (tn_guess){.tokens = d->cached.ids,
                          .n_tokens = held + 1,
                          .room = left < TN_GUESS_MOST ? left : TN_GUESS_MOST,
                          .sampler = d->sampler};
    TN_TRY(tn_speculator_propose(d->speculator, &d->guess, 1));
    const int32_t n = 1 + d->guess.n;
    for (int32_t i = 0; i < n; i++) {
        tokens[i] = i ? d->guess.guess[i - 1] : token;
        outputs[i] = true;
        guesses[i] = i > 0;
        parents[i] = i && d->guess.tree ? d->guess.parents[i - 1] + 1 : -1;
    }
    const tn_batch batch = {.n_tokens = n,
                            .tokens = tokens,
                            .outputs = outputs,
                            .guesses = guesses,
                            .parents = d->guess.tree ? parents : NULL,
                            .argmax = tn_sampler_is_greedy(d->sampler),
                            .candidates = true};
    TN_TRY(tn_session_decode(d->session, &batch));
    d->cached.count++;
    d->n_right = d->row = 0;
    d->at = -1;
    return TN_OK;
}

/* The sampled token becomes part of the cache: it is there already if it was guessed. */
static tn_status add_sampled(struct dialog *d, tn_token token) {
    if (!d->speculator) return decode_tokens(d, &token, 1);
    const int32_t found = d->guess.tokens ? tn_guess_find(&d->guess, d->at, token) : -1;
    if (found >= 0) {
        TN_TRY(tokens_append(&d->cached, &token, 1));
        d->n_right++;
        d->at = found;
        d->row = 1 + found;
        return TN_OK;
    }
    TN_TRY(settle_guess(d));
    return decode_with_guess(d, token);
}

/* Drops the oldest exchange in the middle of a reply. The rest stays in the cache and moves up. */
static tn_status drop_and_realign(struct dialog *d, size_t *n_prompt) {
    tn_tokens target = {0};
    tn_chat_prompt *prompt = NULL;
    tn_status status = render_prompt(d, &prompt, &target);
    size_t kept_prompt = target.count;
    tn_chat_prompt_free(prompt);
    if (status == TN_OK) status = tokens_append(&target, d->cached.ids + *n_prompt, d->cached.count - *n_prompt);
    if (status == TN_OK) status = align_cache(d, &target, true, false);
    if (status == TN_OK) *n_prompt = kept_prompt;
    tn_tokens_free(&target);
    return status;
}

/* The context is full in the middle of a reply: drops the oldest exchange or, if there is none, tokens after those
 * that are to be kept. TN_E_FULL: the reply ends. */
static tn_status shift_context(struct dialog *d, size_t *n_prompt) {
    if (!d->shifts) return tn_fail(TN_E_FULL, "the context is full");
    TN_TRY(settle_guess(d));
    tn_speculator_forget(d->speculator, 0);
    if (drop_oldest_exchange(d)) return drop_and_realign(d, n_prompt);
    const size_t keep = (size_t)context_shift_keep(d->keep, (int32_t)*n_prompt, (int32_t)context_size(d));
    int32_t removed;
    TN_TRY(tn_session_context_shift(d->session, 0, (int32_t)keep, &removed));
    const size_t next = keep + (size_t)removed;
    memmove(d->cached.ids + keep, d->cached.ids + next, (d->cached.count - next) * sizeof *d->cached.ids);
    d->cached.count -= (size_t)removed;
    if (*n_prompt > keep) *n_prompt = *n_prompt > next ? *n_prompt - (size_t)removed : keep;
    return TN_OK;
}

static tn_status generate_tokens(struct dialog *d, struct reply_writer *w, size_t n_prompt, enum reply_end *end) {
    *end = REPLY_LIMIT;
    d->row = -1;
    for (int64_t i = 0; d->limit < 0 || i < d->limit; i++) {
        size_t length;
        tn_status sampled = tn_generator_sample(d->generator, d->session, d->row);
        if (sampled != TN_OK && sampled != TN_END) return sampled;
        const char *text = tn_generator_text(d->generator, &length);
        TN_TRY(parse_text(w, text, length));
        if (sampled == TN_END) {
            *end = REPLY_DONE;
            break;
        }
        if (interrupted()) return tn_fail(TN_E_ABORTED, "interrupted");
        if (d->cached.count >= context_size(d)) {
            tn_status status = shift_context(d, &n_prompt);
            if (status == TN_E_FULL) {
                *end = REPLY_FULL;
                break;
            }
            TN_TRY(status);
        }
        const tn_token token = tn_generator_token(d->generator);
        tn_status status = add_sampled(d, token);
        if (status != TN_OK) cut_cache(d, d->cached.count);
        TN_TRY(status);
    }
    return TN_OK;
}

static tn_status generate_reply(struct dialog *d, struct reply_writer *w, size_t n_prompt, enum reply_end *end) {
    const tn_status status = generate_tokens(d, w, n_prompt, end), settled = settle_guess(d);
    return status == TN_OK ? settled : status;
}

/* The sampler accepts the prompt before it gets the grammar; every reply starts the grammar again. */
static int prepare_sampler(struct dialog *d, const tn_tokens *prompt) {
    int code = d->sampler ? EXIT_OK : sampling_new(d->args, &d->sampling, d->model, &d->sampler);
    if (code) return code;
    tn_status status = tn_sampler_set_grammar(d->sampler, NULL);
    size_t window = (size_t)d->sampling.penalty_window, from = prompt->count > window ? prompt->count - window : 0;
    for (; from < prompt->count && status == TN_OK; from++) status = tn_sampler_accept(d->sampler, prompt->ids[from]);
    tn_generator_restart(d->generator);
    tn_generator_set_sampler(d->generator, d->sampler);
    return status == TN_OK ? sampling_grammar(d->args, d->model, d->sampler) : fail_status(status, "sampling");
}

/* A prompt that leaves room for a reply: a quarter of the context, or the limit of a reply if that is less. */
static int drop_to_fit(struct dialog *d, tn_chat_prompt **prompt, tn_tokens *tokens) {
    size_t room = context_size(d) / 4;
    if (d->limit >= 0 && (size_t)d->limit < room) room = (size_t)d->limit;
    for (;;) {
        tn_status status = render_prompt(d, prompt, tokens);
        if (status != TN_OK) return fail_status(status, "chat template");
        if (tokens->count + room <= context_size(d)) return EXIT_OK;
        if (!d->shifts || !drop_oldest_exchange(d)) break;
        tn_chat_prompt_free(*prompt);
        *prompt = NULL;
    }
    if (tokens->count + 16 <= context_size(d)) return EXIT_OK;
    return fail("the %s %zu tokens, the context only %zu: %s, or start with -c %zu",
                d->shifts ? "message has" : "messages have", tokens->count, context_size(d),
                d->shifts ? "shorten it" : "/reset begins anew", 2 * tokens->count);
}

/* Where the message is too long even alone, the messages before it stay. */
static int render_fitting_prompt(struct dialog *d, tn_chat_prompt **prompt, tn_tokens *tokens) {
    const int dropped = d->dropped;
    json_t *all = json_copy(d->messages);
    if (!all) return fail("out of memory");
    int code = drop_to_fit(d, prompt, tokens);
    if (code) {
        json_t *left = d->messages;
        d->messages = all;
        d->dropped = dropped;
        all = left;
    }
    json_decref(all);
    return code;
}

enum reply_end dialog_reply(struct dialog *d) {
    tn_chat_prompt *prompt = NULL;
    tn_tokens tokens = {0};
    struct reply_writer w = {.dialog = d};
    enum reply_end end = REPLY_FAILED;
    char *json = NULL;
    tn_status status = TN_OK;
    int dropped = d->dropped, code = render_fitting_prompt(d, &prompt, &tokens);
    if (!code && (status = tn_chat_parser_new(prompt, &w.parser)) == TN_OK) code = prepare_sampler(d, &tokens);
    if (!code && status == TN_OK) status = align_cache(d, &tokens, d->dropped > dropped, true);
    if (!code && status == TN_OK) status = generate_reply(d, &w, tokens.count, &end);
    bool stopped = !code && (status == TN_OK || (status == TN_E_ABORTED && interrupted()));
    if (stopped && status == TN_E_ABORTED) {
        end = REPLY_INTERRUPTED;
        interrupt_clear();
    }
    if (stopped && w.parser && (status = finish_reply(&w)) == TN_OK) status = tn_chat_parser_message(w.parser, &json);
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
