/* Tokens of a model as tokens of its draft model: compared with a search through all pairs. */
#include "vocabularies.h"

#include "llm/speculate/vocabulary_map.h"

enum { BYTES = 256, MORE = 40, MOST_TOKENS = BYTES + MORE };

static const char *const words[] = {"ab", "cd", "<end>", "efg", "<start>", "hi", "<turn>", "jk", "lm", "no"};

/* The bytes, from another one on, and words at random, some of them several times. */
static small *vocabulary(rng *r, unsigned turned, int more) {
    small *v = small_new("gpt2", "gpt-2");
    add_bytes(v);
    for (unsigned b = 0; b < BYTES; b++) {
        const unsigned n = tn__utf8_encode(tn__char_of_byte((b + turned) % BYTES), v->bytes[b]);
        v->tokens[b] = (tn_gguf_str){v->bytes[b], n};
    }
    for (int i = 0; i < more; i++) {
        const char *word = words[rng_below(r, TN__COUNT(words))];
        add_token(v, word, word[0] == '<' ? TN_TOKEN_CONTROL : TN_TOKEN_NORMAL, 0);
    }
    static const tn_special roles[] = {TN_SPECIAL_BOS, TN_SPECIAL_EOS, TN_SPECIAL_EOT};
    for (size_t i = 0; i < TN__COUNT(roles) && more; i++)
        v->source.special[roles[i]] = BYTES + (tn_token)rng_below(r, (uint64_t)more);
    return v;
}

/* As the file writes it, which for these vocabularies is unique. */
static bool same(const small *a, int32_t x, const small *b, int32_t y) {
    return a->tokens[x].size == b->tokens[y].size &&
           memcmp(a->tokens[x].data, b->tokens[y].data, a->tokens[x].size) == 0;
}

/* Returns how many tokens both have. */
static int32_t naive_map(const small *a, const small *b, int32_t n_a, int32_t n_b, tn_token *to, tn_token *from) {
    const int32_t real_a = TN__MIN(n_a, (int32_t)a->source.n_tokens),
                  real_b = TN__MIN(n_b, (int32_t)b->source.n_tokens);
    int32_t common = 0;
    for (int32_t x = 0; x < n_a; x++) {
        to[x] = TN_TOKEN_NONE;
        for (int32_t y = real_b - 1; y >= 0 && x < real_a; y--)
            if (same(a, x, b, y)) to[x] = y;
    }
    for (int32_t y = 0; y < n_b; y++) {
        from[y] = TN_TOKEN_NONE;
        for (int32_t x = n_a - 1; x >= 0; x--)
            if (to[x] == y) from[y] = x;
        common += from[y] >= 0;
    }
    return common;
}

static void naive_roles(const tn_tokenizer *a, const tn_tokenizer *b, int32_t n_a, int32_t n_b, tn_token *to,
                        tn_token *from) {
    static const tn_special roles[] = {TN_SPECIAL_BOS, TN_SPECIAL_EOS, TN_SPECIAL_EOT};
    for (size_t i = 0; i < TN__COUNT(roles); i++) {
        const tn_token x = tn_tokenizer_special(a, roles[i]), y = tn_tokenizer_special(b, roles[i]);
        if (x < 0 || x >= n_a || y < 0 || y >= n_b) continue;
        to[x] = to[x] == TN_TOKEN_NONE ? y : to[x];
        from[y] = from[y] == TN_TOKEN_NONE ? x : from[y];
    }
}

static void tokens_with_equal_texts_or_roles_belong_together(void **state) {
    (void)state;
    rng r = {1};
    int mapped = 0, refused = 0;
    for (int round = 0; round < 200; round++) {
        const unsigned turned = 1 + (unsigned)rng_below(&r, BYTES - 1);
        small *a = vocabulary(&r, 0, (int)rng_below(&r, MORE)), *b = vocabulary(&r, turned, (int)rng_below(&r, MORE));
        tn_tokenizer *first = make(a), *other = make(b);
        /* Models may have more rows than the tokenizer has tokens, or fewer. */
        const bool short_a = round % 5 == 0, short_b = round % 10 == 0 || round % 7 == 0;
        const int32_t n_a = short_a ? 1 + (int32_t)rng_below(&r, BYTES) : (int32_t)a->source.n_tokens + round % 3;
        const int32_t n_b = short_b ? 1 + (int32_t)rng_below(&r, BYTES) : (int32_t)b->source.n_tokens + round % 4;
        tn_token to[MOST_TOKENS + 4], from[MOST_TOKENS + 4];
        const int32_t common = naive_map(a, b, n_a, n_b, to, from);
        naive_roles(first, other, n_a, n_b, to, from);
        tn__vocabulary_map m;
        const tn_status status = tn__vocabulary_map_new(first, other, n_a, n_b, &m);
        assert_int_equal(status, common < TN__MIN(n_a, n_b) / 2 ? TN_E_INVALID : TN_OK);
        assert_false(m.same);
        for (int32_t x = -1; x <= n_a; x++)
            assert_int_equal(tn__vocabulary_to(&m, x), x < 0 || x == n_a ? TN_TOKEN_NONE : to[x]);
        for (int32_t y = -1; y <= n_b; y++)
            assert_int_equal(tn__vocabulary_from(&m, y), y < 0 || y == n_b ? TN_TOKEN_NONE : from[y]);
        assert_int_equal(m.bytes, (size_t)(n_a + n_b) * sizeof(tn_token));
        mapped += status == TN_OK;
        refused += status != TN_OK;
        tn__vocabulary_map_free(&m);
        tn_tokenizer_free(first);
        tn_tokenizer_free(other);
        free(a);
        free(b);
    }
    assert_true(mapped > 50 && refused > 5);
}

/* One token more of 297 is padding; four are another vocabulary. */
static void padding_is_the_same_vocabulary(void **state) {
    (void)state;
    for (int more = 0; more < 4; more++) {
        rng r = {2};
        small *a = vocabulary(&r, 0, MORE), *b = vocabulary(&(rng){2}, 0, MORE);
        for (int i = 0; i < more; i++) add_token(b, "pad", TN_TOKEN_NORMAL, 0);
        tn_tokenizer *first = make(a), *other = make(b);
        for (int turned = 0; turned < 2; turned++) {
            tn__vocabulary_map m;
            const int32_t n_a = MOST_TOKENS, n_b = MOST_TOKENS + more;
            assert_ok(turned ? tn__vocabulary_map_new(other, first, n_b, n_a, &m)
                             : tn__vocabulary_map_new(first, other, n_a, n_b, &m));
            assert_int_equal(m.same, more <= MOST_TOKENS / 100);
            if (m.same) assert_int_equal(m.n_to, MOST_TOKENS);
            if (m.same) assert_int_equal(m.n_from, MOST_TOKENS);
            assert_int_equal(tn__vocabulary_to(&m, 7), 7);
            tn__vocabulary_map_free(&m);
        }
        tn_tokenizer_free(first);
        tn_tokenizer_free(other);
        free(a);
        free(b);
    }
}

static void without_texts_the_numbers_of_tokens_must_agree(void **state) {
    (void)state;
    tn__vocabulary_map m;
    small *a = vocabulary(&(rng){3}, 0, 3);
    tn_tokenizer *t = make(a);
    const tn_tokenizer *pairs[3][2] = {{NULL, NULL}, {t, NULL}, {NULL, t}};
    for (int i = 0; i < 3; i++) {
        assert_ok(tn__vocabulary_map_new(pairs[i][0], pairs[i][1], 10, 10, &m));
        assert_true(m.same);
        assert_int_equal(tn__vocabulary_to(&m, 9), 9);
        assert_int_equal(tn__vocabulary_from(&m, 10), TN_TOKEN_NONE);
        assert_fails(TN_E_INVALID, tn__vocabulary_map_new(pairs[i][0], pairs[i][1], 10, 11, &m));
    }
    tn_tokenizer_free(t);
    free(a);
}

static tn_status map_once(void *user) {
    tn__vocabulary_map m;
    tn_tokenizer **pair = user;
    const tn_status status = tn__vocabulary_map_new(pair[0], pair[1], BYTES, BYTES, &m);
    tn__vocabulary_map_free(&m);
    return status;
}
static void every_allocation_may_fail(void **state) {
    (void)state;
    small *left = vocabulary(&(rng){4}, 0, 2);
    small *right = vocabulary(&(rng){4}, 9, 2);
    tn_tokenizer *pair[2] = {make(left), make(right)};
    check_every_allocation_failure(map_once, pair);
    tn_tokenizer_free(pair[0]);
    tn_tokenizer_free(pair[1]);
    free(left);
    free(right);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_with_equal_texts_or_roles_belong_together),
        cmocka_unit_test(padding_is_the_same_vocabulary),
        cmocka_unit_test(without_texts_the_numbers_of_tokens_must_agree),
        cmocka_unit_test(every_allocation_may_fail),
    };
    cmocka_set_test_filter(getenv("TENON_TESTS"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
