/* Replays the corpora of the template and answer fuzzers. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#include "support.h"

#define LLVMFuzzerTestOneInput fuzz_jinja
#include "../fuzz/fuzz_jinja.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_chat
#include "../fuzz/fuzz_chat.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_template
#include "../fuzz/fuzz_template.c"

static void replay(const char *folder, int (*target)(const uint8_t *, size_t)) {
    DIR *dir = opendir(folder);
    int files = 0;
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[1024];
        size_t size;
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        uint8_t *bytes = read_file(path, &size);
        assert_non_null(bytes);
        (void)target(bytes, size); /* traps where it finds something wrong */
        free(bytes);
        files++;
    }
    closedir(dir);
    assert_true(files >= 10);
}

static void templates_are_survived(void **state) {
    (void)state;
    replay(TENON_SOURCE_DIR "/tests/fuzz/corpus/jinja", fuzz_jinja);
}

static void templates_of_chats_are_survived(void **state) {
    (void)state;
    replay(TENON_SOURCE_DIR "/tests/fuzz/corpus/jinja", fuzz_template);
}

static void answers_are_survived(void **state) {
    (void)state;
    replay(TENON_SOURCE_DIR "/tests/fuzz/corpus/chat", fuzz_chat);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(templates_are_survived),
                                       cmocka_unit_test(templates_of_chats_are_survived),
                                       cmocka_unit_test(answers_are_survived)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
