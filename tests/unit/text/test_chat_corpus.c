/* Replays the corpora of the template and answer fuzzers. */
#include "corpus.h"
#include "support.h"

#define LLVMFuzzerTestOneInput fuzz_jinja
#include "../fuzz/fuzz_jinja.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_chat
#include "../fuzz/fuzz_chat.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_template
#include "../fuzz/fuzz_template.c"

static void templates_are_survived(void **state) {
    (void)state;
    assert_true(replay_corpus("jinja", fuzz_jinja) >= 10);
}

static void templates_of_chats_are_survived(void **state) {
    (void)state;
    assert_true(replay_corpus("jinja", fuzz_template) >= 10);
}

static void answers_are_survived(void **state) {
    (void)state;
    assert_true(replay_corpus("chat", fuzz_chat) >= 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(templates_are_survived),
                                       cmocka_unit_test(templates_of_chats_are_survived),
                                       cmocka_unit_test(answers_are_survived)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
