/* Random conversations that keep prefixes, take them, branch, shift and fill the pool: every token's logits are those
 * of a cold sequence, for every architecture, with and without checkpoints. */
#include "models/prefix_cases.h"

enum { HISTORIES = 24, STEPS = 120 };

typedef struct conversation {
    tn_token tokens[CONTEXT];
    int32_t n;
    uint64_t key;
} conversation;

typedef struct fuzz_state {
    prefix_case *c;
    conversation histories[HISTORIES], live[SEQS]; /* n == 0: none */
    int32_t limit;
    uint64_t random;
} fuzz_state;

static uint32_t pick(fuzz_state *f, uint32_t n) {
    f->random = f->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(f->random >> 33) % n;
}
/* Tokens of all sequences, shared or not. */
static int32_t live_tokens(const fuzz_state *f) {
    int32_t n = 0;
    for (int i = 0; i < SEQS; i++) n += f->live[i].n;
    return n;
}

/* A turn: a branch of some history and a few new tokens. */
static void fuzz_begin(fuzz_state *f, int32_t seq) {
    conversation *x = &f->live[seq];
    *x = f->histories[pick(f, HISTORIES)];
    if (pick(f, 3) == 0) x->n = (int32_t)pick(f, (uint32_t)x->n + 1);
    if (pick(f, 8) == 0) x->key ^= 1;
    const int32_t room = f->limit - (live_tokens(f) - x->n), more = 1 + (int32_t)pick(f, 12), most = 80;
    if (room < 4) {
        x->n = 0;
        return;
    }
    if (x->n + more > room || x->n + more > most) x->n = 0;
    for (int32_t i = 0; i < more && x->n < room; i++) x->tokens[x->n++] = (tn_token)(3 + pick(f, 50));
    (void)begin_sequence(f->c, seq, x->key, x->tokens, x->n, "a turn");
}

static void fuzz_continue(fuzz_state *f, int32_t seq) {
    conversation *x = &f->live[seq];
    if (x->n == CONTEXT || live_tokens(f) + 1 > f->limit) return;
    x->tokens[x->n++] = (tn_token)(3 + pick(f, 50));
    assert_ok(decode_from(f->c->warm, seq, x->tokens, x->n - 1, x->n));
    compare_cold(f->c, x->tokens, x->n, "a token");
}

static void fuzz_end(fuzz_state *f, int32_t seq) {
    conversation *x = &f->live[seq];
    f->histories[pick(f, HISTORIES)] = *x;
    if (!f->c->exact && pick(f, 4) == 0 && x->n > 12) { /* a shift, after which only the beginning may be kept */
        assert_ok(tn_session_seq_remove(f->c->warm, seq, 3, 6));
        (void)tn_session_seq_shift(f->c->warm, seq, 6, -1, -3);
    }
    if (pick(f, 5))
        end_sequence(f->c, seq);
    else
        assert_ok(tn_session_seq_remove(f->c->warm, seq, 0, -1));
    x->n = 0;
}

static void fuzz_conversations(prefix_case *c) {
    static fuzz_state f;
    memset(&f, 0, sizeof f);
    f.c = c;
    f.limit = tn_session_get_params(c->warm).n_ctx;
    f.random = 12345;
    for (uint32_t i = 0; i < HISTORIES; i++) {
        make_text(f.histories[i].tokens, CONTEXT, 100 + i % 5);
        f.histories[i].n = 8 + (int32_t)(i * 3 % 30);
        f.histories[i].key = i % 2;
    }
    for (int step = 0; step < (getenv("TENON_LONG") ? 40 * STEPS : STEPS); step++) {
        const int32_t seq = (int32_t)pick(&f, SEQS);
        if (!f.live[seq].n)
            fuzz_begin(&f, seq);
        else if (pick(&f, 3))
            fuzz_continue(&f, seq);
        else
            fuzz_end(&f, seq);
        if (pick(&f, 12) == 0 && f.live[seq].n) assert_ok(tn_session_prefix_keep(c->warm, seq));
        if (pick(&f, 40) == 0) assert_ok(tn_session_defragment(c->warm));
    }
    const tn_prefix_usage usage = tn_session_prefix_usage(c->warm);
    if (usage.taken == 0) fail_msg("%s: nothing was taken", c->name);
    assert_true(usage.taken <= usage.asked);
}
static void conversations_equal_cold_ones(void **state) {
    (void)state;
    on_archs(true, fuzz_conversations, 160, 6);
    on_archs(false, fuzz_conversations, POOL, 6); /* with windows, of which fewer fit than prefixes are kept */
    case_every = 9;
    on_archs(true, fuzz_conversations, 160, 12);
    on_archs(false, fuzz_conversations, POOL, 12);
    case_every = 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversations_equal_cold_ones),
    };
    return cmocka_run_group_tests(tests, make_prefix_path, remove_prefix_path);
}
