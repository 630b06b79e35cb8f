/* Many clients of a running server: some behave, some disconnect in the middle, some stall, some send garbage, some
 * attack it with what has stopped or delayed servers. Meanwhile watches the server's memory; at the end checks that
 * every slot is free.
 *
 *   soak PORT PID SECONDS [CLIENTS=12]
 *
 * Fails when a well-formed request gets no proper response (503 from a full server counts as one), when the server
 * dies, when its resident memory while idle at the end differs by more than 1% (at least 1 MiB) from that after the
 * first quarter (unless SOAK_MEMORY=0: sanitizers use memory of their own), or when a slot is still busy ten seconds
 * after all clients have disconnected. */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ANSWER = 1 << 16 };

static int port, seconds;
static pid_t server;
static atomic_bool done, resting;
static atomic_int at_work;
static atomic_long asked, answered, full, left, stalled, garbage, attacks, wrong;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void complain(const char *what, const char *detail) {
    if (atomic_fetch_add(&wrong, 1) < 20) fprintf(stderr, "soak: %s: %.300s\n", what, detail);
}

typedef struct rng {
    uint64_t state;
} rng;
static unsigned below(rng *r, unsigned bound) {
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(r->state >> 33) % bound;
}

/* ---- Minimal HTTP ---- */

static int dial(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct timeval limit = {.tv_sec = 120};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    close(fd);
    return -1;
}

static bool send_all(int fd, const char *bytes, size_t size) {
    while (size) {
        ssize_t n = send(fd, bytes, size, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        bytes += n;
        size -= (size_t)n;
    }
    return true;
}

static bool post(int fd, const char *path, const char *body) {
    char head[512];
    int n = snprintf(head, sizeof head,
                     "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
                     "Connection: close\r\n\r\n",
                     body ? "POST" : "GET", path, body ? strlen(body) : 0);
    return send_all(fd, head, (size_t)n) && (!body || send_all(fd, body, strlen(body)));
}

/* Reads the whole response; its beginning stays in `answer`. Returns the status, or -1. */
static int receive(int fd, char *answer, size_t room) {
    size_t at = 0;
    for (;;) {
        char rest[4096];
        char *to = at + 1 < room ? answer + at : rest;
        size_t size = at + 1 < room ? room - 1 - at : sizeof rest;
        ssize_t n = recv(fd, to, size, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        if (to != rest) at += (size_t)n;
    }
    answer[at] = '\0';
    int status;
    return sscanf(answer, "HTTP/1.%*d %d", &status) == 1 ? status : -1;
}

/* ---- Clients ---- */

static const char *const words[] = {"Once upon a time", "The little dog",     "In a house by the sea",
                                    "A tenon is",       "Über allen Gipfeln", "数を数える",
                                    "1 2 3 4 5",        "{\\\"a\\\": "};

/* A well-formed request as JSON, and its path. */
static const char *compose(rng *r, char *body, size_t room, bool stream) {
    const char *text = words[below(r, 8)], *more = words[below(r, 8)], *flag = stream ? "true" : "false";
    int n = 1 + (int)below(r, 24);
    switch (below(r, 7)) {
    case 0:
        snprintf(body, room, "{\"prompt\":\"%s %s\",\"max_tokens\":%d,\"stream\":%s}", text, more, n, flag);
        return "/v1/completions";
    case 1:
        snprintf(body, room,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],\"max_tokens\":%d,\"stream\":%s,"
                 "\"temperature\":%u.%u,\"top_k\":%u}",
                 text, n, flag, below(r, 2), below(r, 10), 1 + below(r, 50));
        return "/v1/chat/completions";
    case 2:
        snprintf(body, room, "{\"prompt\":\"%s\",\"n_predict\":%d,\"stream\":%s,\"n_probs\":%u}", text, n, flag,
                 below(r, 4));
        return "/completion";
    case 3:
        snprintf(body, room,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],\"max_tokens\":%d,\"stream\":%s}", text, n,
                 flag);
        return "/v1/messages";
    case 4:
        snprintf(body, room,
                 "{\"prompt\":\"%s\",\"n_predict\":%d,\"stream\":%s,\"json_schema\":{\"type\":\"object\","
                 "\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]}}",
                 text, n, flag);
        return "/completion";
    case 5: snprintf(body, room, "{\"content\":\"%s %s\"}", text, more); return "/tokenize";
    default:
        snprintf(body, room, "{\"prompt\":[\"%s\",\"%s\"],\"max_tokens\":%d,\"n\":2}", text, more, n);
        return "/v1/completions";
    }
}

static void behave(rng *r, char *answer) {
    char body[1024];
    bool stream = below(r, 2);
    const char *path = compose(r, body, sizeof body, stream);
    int fd = dial();
    if (fd < 0) return complain("cannot connect", strerror(errno));
    atomic_fetch_add(&asked, 1);
    int status = post(fd, path, body) ? receive(fd, answer, ANSWER) : -1;
    close(fd);
    const char *text = strstr(answer, "\r\n\r\n");
    if (status == 503)
        atomic_fetch_add(&full, 1);
    else if (status != 200)
        complain(path, status < 0 ? "no answer" : answer);
    else if (!text || !text[4] || strstr(text, "\"error\":{"))
        complain(path, answer);
    else
        atomic_fetch_add(&answered, 1);
}

static void look(rng *r, char *answer) {
    static const char *const paths[] = {"/health", "/slots", "/props", "/v1/models", "/metrics", "/", "/memory"};
    const char *path = paths[below(r, 7)];
    int fd = dial();
    if (fd < 0) return complain("cannot connect", strerror(errno));
    int status = post(fd, path, NULL) ? receive(fd, answer, ANSWER) : -1;
    close(fd);
    if (status != 200) complain(path, status < 0 ? "no answer" : answer);
}

/* Requests a long text and disconnects at a random moment. */
static void leave(rng *r) {
    char body[512], some[512];
    int fd = dial();
    if (fd < 0) return;
    snprintf(body, sizeof body, "{\"prompt\":\"%s\",\"n_predict\":200,\"stream\":%s,\"ignore_eos\":true}",
             words[below(r, 8)], below(r, 3) ? "true" : "false");
    if (post(fd, "/completion", body)) {
        struct timespec pause = {.tv_nsec = (long)below(r, 200) * 1000000};
        nanosleep(&pause, NULL);
        if (below(r, 2)) (void)!recv(fd, some, sizeof some, MSG_DONTWAIT);
    }
    if (below(r, 2)) { /* reset the connection instead of closing it */
        struct linger hard = {.l_onoff = 1};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    }
    close(fd);
    atomic_fetch_add(&left, 1);
}

/* Sends half a request, or does not read the response. */
static void stall(rng *r) {
    static const char half[] =
        "POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{\"prompt\":";
    int fd = dial();
    if (fd < 0) return;
    if (below(r, 2))
        send_all(fd, half, below(r, sizeof half));
    else
        post(fd, "/completion", "{\"prompt\":\"on and on\",\"n_predict\":150,\"stream\":true,\"ignore_eos\":true}");
    for (unsigned i = below(r, 40); i > 0 && !atomic_load(&done) && !atomic_load(&resting); i--) usleep(100000);
    close(fd);
    atomic_fetch_add(&stalled, 1);
}

static void send_garbage(rng *r, char *answer) {
    static const char *const bad[] = {"{",
                                      "[]",
                                      "null",
                                      "{\"prompt\":5}",
                                      "{\"prompt\":\"x\",\"n_predict\":\"many\"}",
                                      "{\"messages\":[{}]}",
                                      "{\"prompt\":\"x\",\"grammar\":\"root ::= (\"}",
                                      "{\"prompt\":\"\xff\xfe\"}",
                                      "{\"prompt\":\"x\",\"json_schema\":{\"type\":\"nonsense\"}}",
                                      "{\"messages\":[{\"role\":\"user\"}]}"};
    int fd = dial();
    if (fd < 0) return;
    if (below(r, 2)) {
        static const char *const paths[] = {"/completion", "/v1/chat/completions", "/v1/messages", "/tokenize",
                                            "/none"};
        int status = post(fd, paths[below(r, 5)], bad[below(r, 10)]) ? receive(fd, answer, ANSWER) : 400;
        if (status >= 500 && status != 501 && status != 503) complain("garbage", answer);
    } else {
        char noise[3000];
        size_t size = 1 + below(r, sizeof noise - 1);
        for (size_t i = 0; i < size; i++) noise[i] = (char)below(r, 256);
        if (below(r, 2)) memcpy(noise, "GET / HTTP/1.1\r\n", size < 16 ? size : 16);
        send_all(fd, noise, size);
        shutdown(fd, SHUT_WR);
        receive(fd, answer, ANSWER);
    }
    close(fd);
    atomic_fetch_add(&garbage, 1);
}

/* The head, `count` times a number between two texts, the tail; from malloc. */
static char *repeat(const char *head, const char *before, const char *after, int count, const char *tail) {
    const size_t room = strlen(head) + (size_t)count * (strlen(before) + strlen(after) + 12) + strlen(tail) + 1;
    char *text = malloc(room);
    size_t at = 0;
    if (!text) return NULL;
    at += (size_t)snprintf(text, room, "%s", head);
    for (int i = 0; i < count; i++) at += (size_t)snprintf(text + at, room - at, "%s%d%s", before, i, after);
    snprintf(text + at, room - at, "%s", tail);
    return text;
}

/* Requests that cost a server much more than their client. */
static void send_costly(rng *r, char *answer) {
    static const struct {
        const char *path, *head, *before, *after, *tail;
        int count, status;
    } requests[] = {
        {"/v1/completions",
         "{\"prompt\":\"Once\",\"max_tokens\":4,\"n\":64,\"json_schema\":{\"type\":\"object\",\"properties\":{",
         "\"property", "\":{\"type\":\"string\"},", "\"z\":{}}}}", 5000, 400},
        {"/v1/completions",
         "{\"prompt\":\"Once\",\"max_tokens\":8,\"n\":64,\"json_schema\":{\"type\":\"object\",\"properties\":{",
         "\"p", "\":{\"type\":\"boolean\"},", "\"z\":{}}}}", 50, 200},
        {"/tokenize", "{\"content\":\"", "word ", " ", "\"}", 100000, 200},
        {"/v1/chat/completions", "{\"max_tokens\":1,\"messages\":[", "{\"role\":\"user\",\"content\":\"", "\"},",
         "{\"role\":\"user\",\"content\":\"x\"}]}", 20000, 400},
        {"/v1/messages", "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"system\":[",
         "{\"type\":\"text\",\"text\":\"", "\"},", "{\"type\":\"text\",\"text\":\"x\"}]}", 40000, 400},
        {"/completion", "{\"prompt\":\"Once\",\"n_predict\":1,\"stop\":[", "\"a", "\",", "\"b\"]}", 100000, 400},
    };
    const size_t i = below(r, sizeof requests / sizeof *requests);
    char *body = repeat(requests[i].head, requests[i].before, requests[i].after, requests[i].count, requests[i].tail);
    int fd = body ? dial() : -1;
    if (fd < 0) {
        free(body);
        return;
    }
    int status = post(fd, requests[i].path, body) ? receive(fd, answer, ANSWER) : -1;
    if (status != requests[i].status && status != 503)
        complain("a costly request", status < 0 ? "no answer" : answer);
    close(fd);
    free(body);
}

/* Requests whose end is ambiguous or never comes, and those that a web site could make a browser send. */
static void send_odd(rng *r, char *answer) {
    static const struct {
        const char *text;
        int status;
    } requests[] = {
        {"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\nContent-Length: "
         "14\r\n\r\n{\"content\":\"a\"}",
         400},
        {"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding : chunked\r\nContent-Length: "
         "15\r\n\r\n{\"content\":\"a\"}",
         400},
        {"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
         "chunked\r\n\r\n0000000000000000000000000000000000000000000",
         400},
        {"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: "
         "15\r\nConnection: close\r\n\r\n{\"content\":\"a\"}",
         415},
        {"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\nContent-Length: "
         "15\r\nConnection: close\r\n\r\n{\"content\":\"a\"}",
         403},
        {"GET /props HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", 403},
    };
    const size_t i = below(r, sizeof requests / sizeof *requests);
    int fd = dial();
    if (fd < 0) return;
    int status = send_all(fd, requests[i].text, strlen(requests[i].text)) ? receive(fd, answer, ANSWER) : -1;
    if (status != requests[i].status) complain("an odd request", status < 0 ? "no answer" : answer);
    close(fd);
}

/* Sends a request a byte at a time, or stops reading a long stream; for a few seconds. */
static void keep_busy(rng *r) {
    static const char slow[] =
        "POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{\"prompt\":";
    const bool trickle = below(r, 2);
    int small = 4096, fd = dial();
    if (fd < 0) return;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    if (!trickle)
        post(fd, "/completion",
             "{\"prompt\":\"on\",\"n_predict\":400,\"n_probs\":20,\"stream\":true,\"ignore_eos\":true}");
    for (unsigned i = 0; i < 40 && !atomic_load(&done) && !atomic_load(&resting); i++) {
        if (trickle && !send_all(fd, slow + i, 1)) break;
        usleep(100000);
    }
    close(fd);
}

static void attack(rng *r, char *answer) {
    switch (below(r, 3)) {
    case 0: send_costly(r, answer); break;
    case 1: send_odd(r, answer); break;
    default: keep_busy(r);
    }
    atomic_fetch_add(&attacks, 1);
}

/* Long prompts and texts at the same time, so that every cell of the cache and the largest batch have been used
 * before the memory is measured. */
static void *fill_cache(void *arg) {
    enum { PROMPT = 440 };
    char *answer = malloc(ANSWER), body[8 * PROMPT + 128];
    int at = snprintf(body, sizeof body, "{\"n_predict\":60,\"ignore_eos\":true,\"prompt\":[");
    for (int i = 0; i < PROMPT; i++)
        at += snprintf(body + at, sizeof body - (size_t)at, "%s%d", i ? "," : "",
                       300 + (i * 7 + (int)(intptr_t)arg * 31) % 1000);
    snprintf(body + at, sizeof body - (size_t)at, "]}");
    for (int round = 0; answer && round < 2; round++) {
        int fd = dial();
        if (fd < 0) break;
        if (!post(fd, "/completion", body) || receive(fd, answer, ANSWER) != 200) complain("warming up", answer);
        close(fd);
    }
    free(answer);
    return NULL;
}

static void *client(void *arg) {
    rng r = {(uint64_t)(uintptr_t)arg * 77 + 5};
    char *answer = malloc(ANSWER);
    while (answer && !atomic_load(&done)) {
        if (atomic_load(&resting)) {
            usleep(10000);
            continue;
        }
        atomic_fetch_add(&at_work, 1);
        unsigned mood = below(&r, 22);
        if (mood < 9)
            behave(&r, answer);
        else if (mood < 11)
            look(&r, answer);
        else if (mood < 15)
            leave(&r);
        else if (mood < 17)
            stall(&r);
        else if (mood < 20)
            send_garbage(&r, answer);
        else
            attack(&r, answer);
        atomic_fetch_sub(&at_work, 1);
        if (below(&r, 4) == 0) usleep(below(&r, 300) * 1000);
    }
    free(answer);
    return NULL;
}

/* ---- Memory and slots ---- */

static double memory_of(pid_t pid) {
    char path[64], line[256];
    double value = -1;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "VmRSS:", 6) == 0) value = strtod(line + 6, NULL) / 1024;
    if (f) fclose(f);
    return value;
}

static bool slots_are_free(void) {
    static char answer[ANSWER];
    for (int tries = 0; tries < 100; tries++) {
        int fd = dial(), status = fd >= 0 && post(fd, "/slots", NULL) ? receive(fd, answer, sizeof answer) : -1;
        if (fd >= 0) close(fd);
        if (status == 200 && strstr(answer, "\"is_processing\"") && !strstr(answer, "\"is_processing\":true") &&
            !strstr(answer, "\"is_processing\": true"))
            return true;
        usleep(100000);
    }
    fprintf(stderr, "soak: %.500s\n", answer);
    return false;
}

/* Lets all clients finish; returns the memory then in MiB, or -1 when a slot stays busy. */
static double at_rest(void) {
    atomic_store(&resting, true);
    while (atomic_load(&at_work) > 0) usleep(10000);
    bool idle = memory_of(server) >= 0 && slots_are_free();
    sleep(1);
    double memory = memory_of(server);
    atomic_store(&resting, false);
    return idle ? memory : -1;
}

/* Lets all clients work until that many seconds after the start. */
static double work_until(double start, double end) {
    double told = now(), most = 0;
    while (now() - start < end) {
        usleep(500000);
        double memory = memory_of(server);
        if (memory < 0) {
            complain("the server", "is gone");
            break;
        }
        most = memory > most ? memory : most;
        if (now() - told < 60) continue;
        told = now();
        printf(
            "%4.0f s: %.2f MiB, %ld answered, %ld full, %ld left, %ld stalled, %ld garbage, %ld attacks, %ld wrong\n",
            told - start, memory, atomic_load(&answered), atomic_load(&full), atomic_load(&left),
            atomic_load(&stalled), atomic_load(&garbage), atomic_load(&attacks), atomic_load(&wrong));
        fflush(stdout);
    }
    return most;
}

int main(int argc, char **argv) {
    int clients = argc > 4 ? atoi(argv[4]) : 12;
    pthread_t threads[256];
    if (argc < 4 || clients < 1 || clients > 256) {
        fprintf(stderr, "usage: soak PORT PID SECONDS [CLIENTS]\n");
        return 2;
    }
    port = atoi(argv[1]);
    server = (pid_t)atoi(argv[2]);
    seconds = atoi(argv[3]);
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, fill_cache, (void *)(intptr_t)i);
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < clients; i++) pthread_create(&threads[i], NULL, client, (void *)(intptr_t)(i + 1));
    double start = now();
    work_until(start, seconds / 4.0);
    double early = at_rest(), most = work_until(start, seconds), late = at_rest();
    atomic_store(&done, true);
    for (int i = 0; i < clients; i++) pthread_join(threads[i], NULL);
    bool idle = early > 0 && late > 0;
    if (!idle) complain("the slots", "are not free again");
    double change = late - early, limit = early / 100 > 1 ? early / 100 : 1;
    const char *watch = getenv("SOAK_MEMORY");
    if (idle && !(watch && strcmp(watch, "0") == 0) && (change > limit || change < -limit))
        complain("memory", "is not flat");
    printf("%d s, %d clients: %ld requests, %ld answered, %ld sent away (full), %ld left, %ld stalled, %ld garbage, "
           "%ld attacks, %ld wrong; memory at rest %.2f MiB after the first quarter, %.2f MiB at the end (%+.2f%%), "
           "at most %.2f "
           "MiB; "
           "slots %s\n",
           seconds, clients, atomic_load(&asked), atomic_load(&answered), atomic_load(&full), atomic_load(&left),
           atomic_load(&stalled), atomic_load(&garbage), atomic_load(&attacks), atomic_load(&wrong), early, late,
           100 * change / early, most, idle ? "free" : "STUCK");
    return atomic_load(&wrong) != 0;
}
