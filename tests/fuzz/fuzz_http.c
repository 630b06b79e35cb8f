/* Fuzzes the server's HTTP code: any bytes on a connection and any JSON in a body get an answer or end the
 * connection.
 *
 *   cmake --preset fuzz && ninja -C build-fuzz fuzz_http
 *   build-fuzz/fuzz/fuzz_http -max_len=4096 -timeout=5 -dict=tests/fuzz/http.dict CORPUS tests/fuzz/corpus/http
 *
 * Input: a byte below 32 selects a path, and the rest is the body of a POST to it; with any other first byte the
 * input is sent unchanged. The engine is replaced by one that generates a few tokens from random logits with the
 * request's sampler, grammar and stop words. */
#include "serve/http/guard.h"
#include "serve/models/catalog.h"

#include "text/tokenizer/internal.h"
#include "text/utf8.h"

#include <event2/buffer.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static const unsigned char page[] = "<!doctype html>";
const struct web_file web_files[] = {{"/", "text/html", page, sizeof page - 1, "\"1\"", false}};
const size_t n_web_files = 1;

/* ---- The replacement of the engine ---- */

static uint64_t noise = 1;
static uint64_t next_noise(void) {
    noise ^= noise << 13;
    noise ^= noise >> 7;
    noise ^= noise << 17;
    return noise;
}

static void post(struct served *served, struct job *job, tn_token token, const char *text, size_t length,
                 enum finish finish) {
    size_t n_top = job->n_top > 0 ? (size_t)job->n_top : 0;
    struct piece *p = tn_calloc(1, sizeof *p + n_top * sizeof *p->top);
    if (!p || !(p->text = tn_calloc(length + 1, 1))) abort();
    memcpy(p->text, text, length);
    p->length = length;
    p->job = job;
    p->token = token;
    p->finish = finish;
    p->has_logprob = job->n_top >= 0 && token >= 0;
    p->logprob = -1;
    p->n_top = p->has_logprob ? n_top : 0;
    for (size_t i = 0; i < p->n_top; i++) p->top[i] = (tn_token_prob){(tn_token)(i % 300), -2};
    p->stats = (struct job_stats){.n_prompt = (int32_t)job->prompt.count, .n_predicted = 3};
    if (finish == FINISH_ERROR) snprintf(p->error, sizeof p->error, "noise");
    if (job->embed && finish == FINISH_EOS) {
        p->n_vector = (size_t)served->n_embd;
        if (!(p->vector = tn_calloc(p->n_vector, sizeof *p->vector))) abort();
        p->vector[0] = next_noise() % 4 ? 1 : __builtin_nanf("");
    }
    *served->outbox_end = p;
    served->outbox_end = &p->next;
}

static void work(struct served *served, struct job *job) {
    size_t n_vocab = (size_t)served->info.n_vocab, length;
    float logits[512];
    if (job->embed) {
        post(served, job, TN_TOKEN_NONE, "", 0, next_noise() % 8 ? FINISH_EOS : FINISH_ERROR);
        return;
    }
    if (job->action) {
        post(served, job, TN_TOKEN_NONE, "", 0, next_noise() % 2 ? FINISH_EOS : FINISH_ERROR);
        return;
    }
    for (size_t i = 0; job->score_prompt && i + 1 < job->prompt.count; i++)
        post(served, job, job->prompt.ids[i + 1], "", 0, FINISH_NONE);
    for (int i = 0; i < 12 && i < job->n_predict && !atomic_load(&job->cancelled); i++) {
        for (size_t t = 0; t < n_vocab; t++) logits[t] = (float)(next_noise() % 1000) / 100;
        tn_status status = tn_generator_sample_logits(job->generator, logits, n_vocab);
        if (status == TN_END) break;
        if (status != TN_OK) {
            post(served, job, TN_TOKEN_NONE, "", 0, FINISH_ERROR);
            return;
        }
        const char *text = tn_generator_text(job->generator, &length);
        post(served, job, tn_generator_token(job->generator), text, length, FINISH_NONE);
    }
    const char *rest = tn_generator_finish(job->generator, &length);
    post(served, job, TN_TOKEN_NONE, rest, length, next_noise() % 2 ? FINISH_EOS : FINISH_LIMIT);
}

void engine_wake(struct served *served) { (void)served; }
void serve_frontier(struct served *served, struct evhttp_request *http, json_t *body) {
    (void)served, (void)body;
    evhttp_send_error(http, 501, NULL);
}
void serve_fit(struct served *served, struct evhttp_request *http, json_t *body) {
    (void)served, (void)body;
    evhttp_send_error(http, 501, NULL);
}
void fit_forget(struct server *server) { (void)server; }
int engine_start(struct served *served) {
    (void)served;
    return 1;
}
void engine_join(struct served *served) { (void)served; }
bool engine_submit(struct served *served, struct job *const *jobs, size_t count) {
    if (next_noise() % 64 == 0) return false;
    for (size_t i = 0; i < count; i++) work(served, jobs[i]);
    event_active(served->outbox_ready, EV_READ, 0);
    return true;
}

/* The list of models, which is that of one model here. */
void models_announce(struct served *served, const char *state) { (void)served, (void)state; }
void models_reload(struct server *server) { (void)server; }
#define NO_MODELS(name)                                                                                              \
    void name(struct served *served, struct evhttp_request *http, json_t *body) {                                    \
        (void)served, (void)body;                                                                                    \
        evhttp_send_error(http, 501, NULL);                                                                          \
    }
NO_MODELS(serve_models_events)
NO_MODELS(serve_models_load)
NO_MODELS(serve_models_unload)
NO_MODELS(serve_models_download)
NO_MODELS(serve_models_delete)

/* Messages for the terminal are dropped. */
int fail(const char *format, ...) {
    (void)format;
    return EXIT_ERROR;
}
int fail_status(tn_status status, const char *format, ...) {
    (void)status;
    (void)format;
    return EXIT_ERROR;
}

/* ---- A server ---- */

static struct server server;
static struct served *served;
static int port;

/* A vocabulary of all bytes, a few words, and the tokens that templates use. */
static tn_tokenizer *make_tokenizer(void) {
    enum { WORDS = 6 };
    static char texts[256][4];
    static tn_gguf_str tokens[256 + WORDS];
    static float scores[256 + WORDS];
    static int32_t types[256 + WORDS];
    static const char *const words[WORDS] = {"<s>", "</s>", "<|im_start|>", "<|im_end|>", "{\"", "\":"};
    tn__vocab_source s;
    tn_tokenizer *t;
    tn__vocab_source_init(&s);
    s.model = (tn_gguf_str){"gpt2", 4};
    s.pre = (tn_gguf_str){"gpt-2", 5};
    for (unsigned i = 0; i < 256; i++) {
        tokens[i] = (tn_gguf_str){texts[i], tn__utf8_encode(tn__char_of_byte(i), texts[i])};
        types[i] = TN_TOKEN_NORMAL;
    }
    for (size_t i = 0; i < WORDS; i++) {
        tokens[256 + i] = (tn_gguf_str){words[i], strlen(words[i])};
        types[256 + i] = i < 4 ? TN_TOKEN_CONTROL : TN_TOKEN_NORMAL;
    }
    s.tokens = tokens;
    s.scores = scores;
    s.types = types;
    s.n_tokens = 256 + WORDS;
    s.special[TN_SPECIAL_BOS] = 256;
    s.special[TN_SPECIAL_EOS] = 257;
    if (tn__tokenizer_from_source(&s, NULL, &t) != TN_OK) abort();
    return t;
}

static void prepare(void) {
    static struct slot_view slots[2];
    static int32_t map[64];
    static tn_fit_device devices[1] = {{.name = "cpu"}};
    tn_log_set(NULL, NULL, TN_LOG_OFF);
    signal(SIGPIPE, SIG_IGN); /* as tenon serve does */
    server.n_slots = 2;
    server.queue_limit = 1;
    server.timeout = 1;
    server.show_metrics = server.show_slots = true;
    server.slot_path = "/nonexistent";
    server.default_predict = -1;
    server.origins = "localhost";
    server.prefix = "";
    server.variables = json_object();
    server.sampling = tn_sampler_params_default();
    server.keys[0] = strdup("key");
    server.base = event_base_new();
    server.http = evhttp_new(server.base);
    /* Two models, of which only the first can be loaded. */
    served = models_add(&server, "noise", NULL);
    if (!served || !models_add(&server, "absent", NULL)) abort();
    server.on_demand = true;
    served->tokenizer = make_tokenizer();
    if (tn_chat_template_new(NULL, &served->chat) != TN_OK ||
        tn_pieces_from_tokenizer(served->tokenizer, &served->pieces) != TN_OK)
        abort();
    served->info = (tn_model_info){
        .architecture = "llama", .n_vocab = tn_tokenizer_size(served->tokenizer), .n_ctx_train = 256, .n_embd = 8};
    served->n_ctx = served->n_pool = 256;
    served->n_embd = 8;
    served->embed_limit = 64;
    served->session = (tn_session *)(void *)&server; /* never dereferenced here */
    served->view.slots = slots;
    served->view.map = map;
    served->view.cache = (tn_cache_usage){.cells = 64, .used = 3, .peak = 3, .page = 64, .tokens = 64};
    served->planned = served->view.used = (tn_fit){.devices = devices, .n_devices = 1};
    atomic_store(&served->phase, PHASE_READY);
    server.current = served;
    evhttp_set_max_headers_size(server.http, 8192);
    evhttp_set_max_body_size(server.http, 1 << 16);
    evhttp_set_timeout(server.http, 1);
    evhttp_set_gencb(server.http, on_request, &server);
    server.guards.max_count = 1000;
    server.guards.max_held = 1 << 20;
    server.guards.max_head = 8192;
    server.guards.max_body = 1 << 16;
    evhttp_set_bevcb(server.http, guard_connection, &server);
    struct evhttp_bound_socket *bound = evhttp_bind_socket_with_handle(server.http, "127.0.0.1", 0);
    struct sockaddr_in address;
    socklen_t size = sizeof address;
    if (!bound || getsockname(evhttp_bound_socket_get_fd(bound), (struct sockaddr *)&address, &size) != 0) abort();
    port = ntohs(address.sin_port);
}

/* Runs until the server has closed the connection, or until all is sent and read and no event is left. */
static void converse(int fd) {
    char answer[4096];
    for (int idle = 0; idle < 50;) {
        event_base_loop(server.base, EVLOOP_NONBLOCK);
        ssize_t n = recv(fd, answer, sizeof answer, MSG_DONTWAIT);
        if (n == 0) break;
        idle = n > 0 ? 0 : idle + 1;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static const char *const paths[] = {
        "/v1/chat/completions",
        "/v1/completions",
        "/completion",
        "/v1/messages",
        "/v1/responses",
        "/v1/embeddings",
        "/tokenize",
        "/detokenize",
        "/apply-template",
        "/slots/0?action=save",
        "/slots/1?action=restore",
        "/slots/x?action=erase",
        "/props",
        "/infill",
        "/embedding",
        "/rerank",
        "/v1/messages/count_tokens",
        "/v1/responses/input_tokens",
        "/predict",
        "/api/chat",
        "/api/generate",
        "/api/embed",
        "/api/embeddings",
        "/lora-adapters",
        "/v1/chat/completions/input_tokens",
        "/v1/rerank",
        "/api/show",
    };
    enum { N_PATHS = sizeof paths / sizeof *paths };
    char head[256];
    if (!server.base) prepare();
    if (size == 0) return 0;
    noise = 0x9e3779b97f4a7c15u ^ size ^ (uint64_t)bytes[size - 1] << 32;
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct linger at_once = {1,
                             0}; /* closes at once, so that thousands of connections do not wait for late packets */
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) { /* no port is free: nothing of ours */
        close(fd);
        return 0;
    }
    bool routed = bytes[0] < 32;
    server.n_keys = !routed && bytes[0] % 2; /* half of the unchanged inputs need an API key */
    if (routed) {
        snprintf(head, sizeof head, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n",
                 paths[bytes[0] % N_PATHS], size - 1);
        if (send(fd, head, strlen(head), MSG_NOSIGNAL) < 0) abort();
        bytes++;
        size--;
    }
    if (size && send(fd, bytes, size, MSG_NOSIGNAL) < 0) abort();
    converse(fd);
    close(fd);
    guards_tick(&server, NULL);
    server.current = served;
    for (int i = 0; i < 1000 && (server.requests || server.models[1]->waiting || i < 3); i++)
        event_base_loop(server.base, EVLOOP_NONBLOCK);
    if (server.requests) __builtin_trap(); /* a request outlived its connection */
    return 0;
}
