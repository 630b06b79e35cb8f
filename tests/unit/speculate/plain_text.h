/* Plain text that guesses are compared with: samplers, and a text of a session. Include it after VOCAB and LENGTH are
 * defined. */
#ifndef TN_TESTS_PLAIN_TEXT_H
#define TN_TESTS_PLAIN_TEXT_H

static tn_sampler *new_sampler(float temperature, uint64_t seed) {
    tn_sampler_params p = tn_sampler_params_default();
    tn_sampler *sampler;
    p.temperature = temperature;
    p.seed = seed;
    p.repeat_penalty = seed % 2 ? 1.1f : 1.0f;
    assert_ok(tn_sampler_new(&p, VOCAB, &sampler));
    return sampler;
}

static int32_t write_text(tn_session *s, const tn_token *prompt, int32_t n_prompt, tn_sampler *sampler,
                          tn_token *text) {
    int32_t n = 0;
    tn_status status = TN_OK;
    assert_ok(tn_session_prompt_tokens(s, 0, prompt, n_prompt));
    while (n < LENGTH && (status = tn_session_next(s, 0, sampler, &text[n])) == TN_OK) n++;
    if (status != TN_END) assert_ok(status);
    assert_ok(tn_session_settle(s, 0));
    assert_int_equal(tn_session_seq_last(s, 0) + 1, n_prompt + n);
    return n;
}

#endif
