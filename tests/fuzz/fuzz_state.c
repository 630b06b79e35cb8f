/* Fuzzes session states: any bytes load or give an error, and the session works afterwards.
 *
 * The first byte selects what the cache holds before, the second the sequence to load into; the rest is the state.
 * With an odd first byte the header and the checksum are corrected, so that the code after these checks is reached.
 *
 *   make fuzz TARGET=state SECONDS=60 */
#include "base/hash.h"
#include "models/tiny_models.h"
#include "tenon/llm.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

enum { CELLS = 24, SEQS = 3, HEADER = 64, PHYSICAL = 512, MOST = 1 << 16 };

static tn_session *session;
static unsigned char good[MOST]; /* a valid state, for its header */

static void need(bool holds) {
    if (!holds) {
        fprintf(stderr, "broken: %s\n", tn_error());
        __builtin_trap();
    }
}

static bool decode(int32_t seq, int32_t n) {
    static const tn_token tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    int32_t seqs[8] = {seq, seq, seq, seq, seq, seq, seq, seq};
    tn_status status = tn_session_decode(session, &(tn_batch){.n_tokens = n, .tokens = tokens, .seqs = seqs});
    need(status == TN_OK || status == TN_E_FULL || status == TN_E_INVALID || status == TN_E_LIMIT ||
         status == TN_E_NOT_FINITE); /* a state may contain infinities */
    return status == TN_OK;
}

static void start(void) {
    char path[64];
    tn_model *model;
    setenv("TENON_CPU", "generic", 1); /* the only kernels with sanitizers */
    snprintf(path, sizeof path, "/tmp/tenon-fuzz-%ld.gguf", (long)getpid());
    need(tiny_model_write(path, NULL) == TN_OK &&
         tn_model_open(path, &(tn_model_params){.no_mmap = true}, &model) == TN_OK);
    tn_session_params p = tn_session_params_default();
    p.n_ctx = CELLS;
    p.n_batch = p.n_ubatch = 8;
    p.n_seqs = SEQS;
    p.n_threads = 1;
    p.devices[0] = "cpu";
    need(tn_session_open(model, &p, &session) == TN_OK);
    unlink(path);
    tn_log_set(NULL, NULL, TN_LOG_ERROR);
}

/* What a caller may do after loading any state. */
static void use(void) {
    int32_t owner[PHYSICAL]; /* whole pages */
    tn_cache_usage usage = tn_session_cache_usage(session);
    need(usage.used >= 0 && usage.used <= usage.cells && usage.cells <= PHYSICAL);
    tn_session_cache_map(session, owner);
    for (int32_t i = 0; i < usage.cells; i++) need(owner[i] >= -1 && owner[i] < SEQS);
    for (int32_t seq = 0; seq < SEQS; seq++) {
        size_t size;
        need(tn_session_state_size(session, seq, &size) == TN_OK);
        need(tn_session_seq_first(session, seq) <= tn_session_seq_last(session, seq));
        decode(seq, 1);
    }
    (void)tn_session_seq_shift(session, 0, 0, -1, 1);
    need(tn_session_defragment(session) == TN_OK);
    (void)tn_session_seq_remove(session, -1, 0, -1);
    usage = tn_session_cache_usage(session);
    need(usage.used == 0);
    need(decode(0, 2));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    if (!session) start();
    if (size < 2 || size > MOST) return 0;
    unsigned before = bytes[0], target = bytes[1] % (SEQS + 1);
    int32_t seq = target == SEQS ? -1 : (int32_t)target;
    bytes += 2;
    size -= 2;
    tn_session_clear(session);
    decode(0, 5);
    size_t whole;
    need(tn_session_state_size(session, seq, &whole) == TN_OK && whole <= sizeof good);
    need(tn_session_state_get(session, seq, good, sizeof good) == TN_OK);
    if (before & 2) decode(1, 8);
    if (before & 4) (void)tn_session_seq_copy(session, 0, 2, 0, -1);
    if (before & 8) decode(2, 8);
    unsigned char *state = malloc(size ? size : 1); /* a block of its own, so that reading past its end is detected */
    need(state != NULL);
    if (size) memcpy(state, bytes, size);
    if (before & 1 && size >= HEADER + 8) {
        uint64_t own = size, sum;
        memcpy(state, good, 40); /* up to the number of sequences; the counts after it stay as in the input */
        memcpy(state + HEADER - 8, &own, sizeof own);
        sum = tn__hash_bytes(state, size - 8, 0);
        memcpy(state + size - 8, &sum, sizeof sum);
    }
    (void)tn_session_state_set(session, seq, state, size);
    free(state);
    use();
    return 0;
}
