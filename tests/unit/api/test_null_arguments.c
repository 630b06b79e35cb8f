/* Functions of text refuse missing arguments with a message that names them, before they read anything. */
#include "support.h"
#include "tenon/chat.h"
#include "tenon/grammar.h"
#include "tenon/sampler.h"
#include "tenon/tokenizer.h"

#include <string.h>

static void check_refused(tn_status status, const char *line) {
    if (status != TN_E_INVALID || !strstr(tn_error(), "NULL"))
        fail_msg("%s: status %d, \"%s\"", line, (int)status, tn_error());
    tn_error_clear();
}
#define REFUSED(call) (tn_error_clear(), check_refused(call, #call))

static void grammars(void **state) {
    (void)state;
    tn_grammar *grammar, *none = NULL;
    tn_grammar_state *position, *copy = NULL;
    tn_pieces *pieces = NULL;
    char *gbnf = NULL;
    const uint64_t *mask;
    const tn_piece piece = {"a", 1};
    const tn_token end = 0;
    assert_ok(tn_grammar_new("root ::= \"a\"", NULL, &grammar));
    REFUSED(tn_grammar_new(NULL, NULL, &none));
    REFUSED(tn_grammar_new("root ::= \"a\"", NULL, NULL));
    REFUSED(tn_schema_to_grammar(NULL, &gbnf));
    REFUSED(tn_schema_to_grammar("{}", NULL));
    REFUSED(tn_schema_to_grammar_relaxed(NULL, &gbnf, NULL));
    REFUSED(tn_schema_to_grammar_relaxed("{}", NULL, NULL));
    REFUSED(tn_pieces_new(NULL, 1, &end, 1, &pieces));
    REFUSED(tn_pieces_new(&piece, 1, NULL, 1, &pieces));
    REFUSED(tn_pieces_new(&piece, 1, &end, 1, NULL));
    REFUSED(tn_pieces_from_tokenizer(NULL, &pieces));
    assert_ok(tn_pieces_new(&piece, 1, NULL, 0, &pieces));
    REFUSED(tn_grammar_state_new(NULL, &copy));
    REFUSED(tn_grammar_state_new(&(tn_grammar_state_params){.grammar = NULL}, &copy));
    REFUSED(tn_grammar_state_new(&(tn_grammar_state_params){.grammar = grammar}, NULL));
    REFUSED(tn_grammar_state_new(&(tn_grammar_state_params){.grammar = grammar, .n_triggers = 1}, &copy));
    assert_ok(tn_grammar_state_new(&(tn_grammar_state_params){.grammar = grammar, .pieces = pieces}, &position));
    REFUSED(tn_grammar_state_clone(NULL, &copy));
    REFUSED(tn_grammar_state_clone(position, NULL));
    REFUSED(tn_grammar_accept_bytes(NULL, "a", 1));
    REFUSED(tn_grammar_accept_bytes(position, NULL, 1));
    REFUSED(tn_grammar_mask(NULL, &mask));
    REFUSED(tn_grammar_mask(position, NULL));
    tn_grammar_state_free(position);
    tn_grammar_state_free(NULL);
    tn_pieces_free(pieces);
    tn_pieces_free(NULL);
    tn_grammar_free(grammar);
    tn_grammar_free(NULL);
}

static void samplers(void **state) {
    (void)state;
    tn_sampler *sampler, *copy = NULL;
    tn_sampler_kind kind;
    tn_token token;
    tn_token_prob prob;
    size_t count;
    const float logits[2] = {0, 1};
    tn_sampler_params params = tn_sampler_params_default();
    REFUSED(tn_sampler_kind_from_name(NULL, &kind));
    REFUSED(tn_sampler_kind_from_name("top-k", NULL));
    REFUSED(tn_sampler_new(NULL, 2, &copy));
    REFUSED(tn_sampler_new(&params, 2, NULL));
    params.n_logit_bias = 1;
    REFUSED(tn_sampler_new(&params, 2, &copy));
    params = tn_sampler_params_default();
    params.dry_multiplier = 1;
    params.n_dry_breakers = 1;
    params.dry_breakers = NULL;
    REFUSED(tn_sampler_new(&params, 2, &copy));
    params = tn_sampler_params_default();
    assert_ok(tn_sampler_new(&params, 2, &sampler));
    REFUSED(tn_sampler_clone(NULL, &copy));
    REFUSED(tn_sampler_clone(sampler, NULL));
    REFUSED(tn_sampler_follow(NULL, sampler));
    REFUSED(tn_sampler_follow(sampler, NULL));
    REFUSED(tn_sampler_set_grammar(NULL, NULL));
    REFUSED(tn_sampler_sample(NULL, logits, 2, &token));
    REFUSED(tn_sampler_sample(sampler, NULL, 2, &token));
    REFUSED(tn_sampler_sample(sampler, logits, 2, NULL));
    REFUSED(tn_sampler_accept(NULL, 0));
    REFUSED(tn_sampler_candidates(NULL, &prob, 1, &count));
    REFUSED(tn_sampler_candidates(sampler, NULL, 1, &count));
    REFUSED(tn_sampler_candidates(sampler, &prob, 1, NULL));
    REFUSED(tn_top_logprobs(NULL, 2, &prob, 1, 0, NULL));
    REFUSED(tn_top_logprobs(logits, 2, NULL, 1, 0, NULL));
    tn_sampler_free(sampler);
    tn_sampler_free(NULL);
}

static void chats(void **state) {
    (void)state;
    tn_chat_template *chat;
    tn_chat_prompt *prompt = NULL;
    tn_chat_parser *parser = NULL;
    tn_chat_params params = tn_chat_params_default();
    char *text = NULL;
    REFUSED(tn_chat_template_new(NULL, NULL));
    assert_ok(tn_chat_template_new(NULL, &chat));
    REFUSED(tn_chat_render(NULL, "{}", 0, &text, NULL));
    REFUSED(tn_chat_render(chat, "{}", 0, NULL, NULL));
    REFUSED(tn_chat_prompt_new(chat, &params, &prompt)); /* no messages */
    params.messages = "[]";
    REFUSED(tn_chat_prompt_new(NULL, &params, &prompt));
    REFUSED(tn_chat_prompt_new(chat, NULL, &prompt));
    REFUSED(tn_chat_prompt_new(chat, &params, NULL));
    assert_ok(tn_chat_prompt_new(chat, &params, &prompt));
    REFUSED(tn_chat_parser_new(NULL, &parser));
    REFUSED(tn_chat_parser_new(prompt, NULL));
    tn_chat_prompt_free(prompt);
    tn_chat_prompt_free(NULL);
    tn_chat_parser_free(NULL);
    tn_chat_template_free(chat);
    tn_chat_template_free(NULL);
}

static void tokenizers(void **state) {
    (void)state;
    tn_tokenizer *tokenizer = NULL;
    tn_tokens tokens = {0};
    tn_text text = {0};
    tn_detokenizer *parts = NULL;
    tn_token id = 0;
    size_t count = 1;
    REFUSED(tn_tokenizer_new(NULL, NULL, &tokenizer));
    REFUSED(tn_tokenizer_encode(NULL, "a", 1, 0, &tokens));
    REFUSED(tn_tokenizer_decode(NULL, &id, 1, 0, &text));
    REFUSED(tn_tokenizer_encode_into(NULL, "a", 1, 0, NULL, 1, &count));
    REFUSED(tn_detokenizer_new(NULL, 0, &parts));
    REFUSED(tn_detokenizer_new(NULL, 0, NULL));
    tn_tokenizer_free(NULL);
    tn_detokenizer_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(grammars), cmocka_unit_test(samplers),
                                       cmocka_unit_test(chats), cmocka_unit_test(tokenizers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
