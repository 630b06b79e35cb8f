/* tenon serve: options, set-up, event loop and shutdown of the HTTP server. Requests and engines are in serve/. */
#include "serve/http/guard.h"
#include "serve/http/http.h"
#include "serve/models/catalog.h"

#include "cli/text_input.h"
#include "engine/budget_options.h"
#include "engine/context_shift.h"
#include "engine/load_options.h"
#include "engine/loaded_model.h"
#include "engine/options.h"
#include "engine/serving_params.h"
#include "engine/speed_cache.h"
#include "ranks/ranks.h"
#include "speculate/speculation.h"

#include <errno.h>
#include <event2/event_compat.h>
#include <event2/listener.h>
#include <event2/thread.h>
#include <malloc.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

struct serve_watch {
    struct server *server;
    double grace;
    uint64_t deadline, last_ping;
    struct evhttp_bound_socket *socket;
};

/* Ten times a second: sends pings, and shuts down after an interruption. */
static void on_tick(evutil_socket_t fd, short what, void *user) {
    struct serve_watch *watch = user;
    struct server *server = watch->server;
    uint64_t now = tn_time_ns();
    (void)fd;
    (void)what;
    if (now - watch->last_ping > 1000000000u) {
        watch->last_ping = now;
        ping_requests(server);
    }
    models_tick(server);
    guards_tick(server, server->listener);
    streams_yield(server);
    if (interrupted() && !watch->deadline) {
        watch->deadline = now + (uint64_t)(watch->grace * 1e9);
        if (watch->socket) evhttp_del_accept_socket(server->http, watch->socket);
        watch->socket = NULL;
        server->listener = NULL;
        models_stop(server);
        models_forget_listeners(server);
    }
    if (!watch->deadline) return;
    if (now > watch->deadline) cancel_requests(server);
    /* Leaves 200 ms for the last responses to be sent. */
    if (!server->requests && now + (uint64_t)(watch->grace * 1e9) > watch->deadline + 200000000u)
        event_base_loopbreak(server->base);
}

static int read_keys(struct server *server, const struct args *args) {
    const char *file = args_text(args, "api-key-file"), *list = args_text(args, "api-key");
    char *text = NULL;
    size_t size;
    int code = EXIT_OK;
    if (file && (code = read_text_file(file, &text, &size))) return code;
    for (int part = 0; part < 2; part++) {
        const char *at = part ? text : list;
        while (at && *at) {
            size_t length = strcspn(at, part ? "\r\n" : ",");
            if (length && server->n_keys == sizeof server->keys / sizeof *server->keys) {
                free(text);
                return fail("at most %zu API keys", sizeof server->keys / sizeof *server->keys);
            }
            if (length && (server->keys[server->n_keys] = strndup(at, length))) server->n_keys++;
            at += length + (at[length] != '\0');
        }
    }
    free(text);
    if ((file || list) && !server->n_keys) return fail("the list of API keys is empty");
    return EXIT_OK;
}

/* Whether downloads are offered: where the options do not say, beside presets, and where no model is named at all. */
static bool offers_downloads(const struct args *args) {
    if (args_given(args, "models-cache")) return args_flag(args, "models-cache");
    if (args->count || args_text(args, "model") || args_text(args, "hf-repo") || args_text(args, "model-url") ||
        args_text(args, "models-dir") || args_text(args, "plan"))
        return false;
    return args_text(args, "models-preset") || (!args_text(args, "alias") && catalog_has_downloads());
}

static int find_models(struct server *server, const struct args *args) {
    char buffer[4096];
    const char *alias = args_text(args, "alias");
    server->use_cache = offers_downloads(args);
    const bool several = args_text(args, "models-dir") || args_text(args, "models-preset") || server->use_cache;
    if (several && (args->count || args_text(args, "model") || alias))
        return fail_usage(args, "several models cannot be combined with a model or an alias");
    if (several && args_text(args, "plan"))
        return fail_usage(args, "--plan is the plan of one model and cannot be combined with several");
    server->on_demand = several;
    server->autoload = args_flag(args, "models-autoload");
    server->models_max = (int)args_int(args, "models-max");
    server->sleep_after = args_real(args, "sleep-idle-seconds");
    server->memory_limit = args_size(args, "models-memory");
    if (several) {
        int code = models_find_all(server);
        server->started_once = true;
        return code;
    }
    const char *path = find_model(args, buffer, sizeof buffer);
    if (!path) return EXIT_ERROR;
    /* Ranks that receive their weights need no file. */
    if (!args_flag(args, "share-weights") && access(path, F_OK) != 0) {
        fail("%s: %s", path, strerror(errno));
        advise_download(path);
        return EXIT_ERROR;
    }
    return models_add(server, path, alias) ? EXIT_OK : fail_status(TN_E_NOMEM, "server");
}

static const struct {
    const char *name;
    tn_pooling pooling;
} poolings[] = {{"model", TN_POOLING_MODEL}, {"none", TN_POOLING_NONE}, {"mean", TN_POOLING_MEAN},
                {"cls", TN_POOLING_CLS},     {"last", TN_POOLING_LAST}, {"rank", TN_POOLING_RANK}};

/* --cache-ram and --cache-disk: tiers of kept prefixes below the KV cache. */
static int configure_tiers(struct server *server, const struct args *args) {
    const char *ram = args_text(args, "cache-ram"), *disk = args_text(args, "cache-disk");
    const char *comma = disk ? strrchr(disk, ',') : NULL;
    uint64_t bytes = 0, scale = strspn(ram, "0123456789") == strlen(ram) ? 1 << 20 : 1;
    if (!parse_size(ram, &bytes) || bytes > SIZE_MAX / scale)
        return fail_usage(args, "--cache-ram is a number of MiB or a size such as 8G, not '%s'", ram);
    server->params.cache_ram = (size_t)(bytes * scale);
    if (disk && (!comma || comma == disk || !parse_size(comma + 1, &server->params.cache_disk_bytes) ||
                 !server->params.cache_disk_bytes))
        return fail_usage(args, "--cache-disk is a folder and a size, such as /var/cache/tenon,20G, not '%s'", disk);
    if (disk && !(server->cache_disk = strndup(disk, (size_t)(comma - disk))))
        return fail_status(TN_E_NOMEM, "server");
    server->params.cache_disk = server->cache_disk;
    if ((disk || bytes) && !server->n_prefixes)
        return fail_usage(args, "--cache-ram and --cache-disk keep prefixes, which --cache-prefixes 0 turns off");
    return EXIT_OK;
}

/* A grammar or schema of the options binds all requests that bring none. */
static int read_server_grammar(struct server *server, const struct args *args) {
    tn_grammar *grammar = NULL;
    int code = sampling_grammar_text(args, &server->grammar);
    if (code || !server->grammar) return code;
    const tn_status status = tn_grammar_new(server->grammar, NULL, &grammar);
    tn_grammar_free(grammar);
    return status == TN_OK ? EXIT_OK : fail_status(status, "the grammar of the options");
}

static bool is_folder(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static int configure_server(struct server *server, const struct args *args) {
    server->n_slots = (int)args_int(args, "parallel");
    server->queue_limit = (int)args_int(args, "queue");
    server->admit_tokens = (int32_t)args_int(args, "admit-tokens");
    /* Given both the context and the number of slots, a slot's share is what the user has sized. */
    server->unified = args_given(args, "kv-unified") ? args_flag(args, "kv-unified")
                                                     : !(args_given(args, "ctx") && args_given(args, "parallel"));
    server->keep = (int32_t)args_int(args, "keep");
    server->timeout = args_real(args, "timeout");
    server->show_metrics = args_flag(args, "metrics");
    server->show_slots = args_flag(args, "slots");
    server->slot_path = args_text(args, "slot-save-path");
    server->n_prefixes = (int32_t)args_int(args, "cache-prefixes");
    server->share_prefixes = args_flag(args, "share-prefixes");
    server->log_requests = args_flag(args, "access-log");
    server->embeddings = args_flag(args, "embedding");
    server->default_predict = (int32_t)args_int(args, "predict");
    server->web_ui = args_flag(args, "ui");
    server->ignore_end = args_flag(args, "ignore-eos");
    server->continues_messages = args_flag(args, "prefill-assistant");
    server->suffix_first = args_flag(args, "spm-infill");
    server->ping_seconds = (int)args_int(args, "sse-ping-interval");
    int code = sampling_params(args, &server->sampling);
    if (!code) code = read_server_grammar(server, args);
    if (server->slot_path && !is_folder(server->slot_path))
        return fail_usage(args, "--slot-save-path %s: there is no such folder", server->slot_path);
    if (!args_flag(args, "cache-prompt")) server->n_prefixes = 0;
    if (!code) code = template_variables(args, &server->variables);
    if (!code) code = thread_params_from(args, &server->threads);
    apply_memory_policy(args);
    if (!code) code = session_params_from(args, &server->params);
    if (!code) code = speculation_prepare(args, &server->params);
    if (!code) code = configure_tiers(server, args);
    if (!code && server->params.n_budgets) {
        speed_cache_load();
        code = budget_params_from(args, &server->budget);
    }
    if (!code) code = read_chat_template(args, &server->chat_template);
    server->reasoning_format = args_text(args, "reasoning-format");
    server->verbose = args_flag(args, "verbose");
    server->aliases = args_text(args, "alias");
    server->tags = args_text(args, "tags");
    server->origins = args_text(args, "cors-origins");
    server->prefix = args_text(args, "api-prefix");
    if (*server->prefix && (server->prefix[0] != '/' || server->prefix[strlen(server->prefix) - 1] == '/'))
        return fail_usage(args, "--api-prefix begins with a slash and does not end with one, such as /llm");
    if (!code) code = chat_format_from(args, &server->chat_format);
    for (size_t i = 0; i < sizeof poolings / sizeof *poolings; i++)
        if (strcmp(args_text(args, "pooling"), poolings[i].name) == 0) server->params.pooling = poolings[i].pooling;
    if (args_flag(args, "rerank")) server->params.pooling = TN_POOLING_RANK;
    if (server->params.pooling == TN_POOLING_RANK) server->embeddings = true;
    if (!code) code = read_keys(server, args);
    return code ? code : find_models(server, args);
}

/* evhttp_bind_socket() sets a backlog of 128 connections. When more arrive at once the kernel drops some, and their
 * clients get neither an answer nor an error. */
static struct evhttp_bound_socket *bind_socket(struct server *server, const char *host, int port, bool shared,
                                               int *error) {
    enum { BACKLOG = 4096 };
    char service[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *list = NULL;
    struct evhttp_bound_socket *bound = NULL;
    snprintf(service, sizeof service, "%d", port);
    if ((*error = getaddrinfo(host, service, &hints, &list)) != 0) return NULL; /* negative: of getaddrinfo */
    const unsigned flags =
        LEV_OPT_REUSEABLE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_CLOSE_ON_FREE | (shared ? LEV_OPT_REUSEABLE_PORT : 0);
    for (struct addrinfo *a = list; a && !bound; a = a->ai_next) {
        struct evconnlistener *listener =
            evconnlistener_new_bind(server->base, NULL, NULL, flags, BACKLOG, a->ai_addr, (int)a->ai_addrlen);
        if (!listener) *error = errno;
        if (!listener) continue;
        bound = evhttp_bind_listener(server->http, listener);
        if (!bound) evconnlistener_free(listener);
    }
    freeaddrinfo(list);
    return bound;
}

/* Says what is wrong: the port, or the address. */
static int fail_to_listen(const char *host, int port, int error) {
    if (error == EADDRINUSE)
        return fail("cannot listen at %s:%d: another program uses this port; choose another with --port", host, port);
    if (error == EACCES)
        return fail("cannot listen at %s:%d: ports below 1024 need a privilege; choose another with --port", host,
                    port);
    if (error == EADDRNOTAVAIL)
        return fail(
            "cannot listen at %s: this machine has no such address; --host takes one of its own, 0.0.0.0 for all",
            host);
    if (error < 0) return fail("cannot listen at %s: %s", host, gai_strerror(error));
    return fail("cannot listen at %s:%d: %s", host, port, strerror(error));
}

/* No descriptors are left: the listener pauses, and tries again ten times a second. */
static void on_accept_error(struct evconnlistener *listener, void *user) {
    (void)user;
    static uint64_t told;
    if (!told || tn_time_ns() - told > 60000000000u) {
        told = tn_time_ns();
        warn("cannot accept connections: %s; waiting until some are closed", strerror(errno));
    }
    evconnlistener_disable(listener);
}

static int start_listening(struct server *server, struct serve_watch *watch, const struct args *args) {
    const char *host = args_text(args, "host");
    const char *key_file = args_text(args, "ssl-key-file"), *certificate = args_text(args, "ssl-cert-file");
    int port = (int)args_int(args, "port");
    if (!key_file != !certificate) return fail_usage(args, "--ssl-key-file and --ssl-cert-file are used together");
    if (key_file && tls_start(key_file, certificate, &server->tls)) return EXIT_ERROR;
    server->guards.max_count = (size_t)args_int(args, "max-connections");
    server->guards.max_held = args_size(args, "max-bodies");
    server->guards.max_body = args_size(args, "max-body");
    server->guards.max_head = 64 * 1024;
    server->http = evhttp_new(server->base);
    if (!server->http) return fail("out of memory for the HTTP server");
    evhttp_set_max_headers_size(server->http, (ev_ssize_t)server->guards.max_head);
    evhttp_set_max_body_size(server->http, (ev_ssize_t)server->guards.max_body);
    evhttp_set_timeout(server->http, (int)server->timeout);
    evhttp_set_allowed_methods(server->http, EVHTTP_REQ_GET | EVHTTP_REQ_POST | EVHTTP_REQ_HEAD | EVHTTP_REQ_OPTIONS |
                                                 EVHTTP_REQ_PUT | EVHTTP_REQ_DELETE | EVHTTP_REQ_PATCH);
    evhttp_set_gencb(server->http, on_request, server);
    evhttp_set_bevcb(server->http, guard_connection, server);
    int bind_error = 0;
    watch->socket = bind_socket(server, host, port, args_flag(args, "reuse-port"), &bind_error);
    if (!watch->socket) return fail_to_listen(host, port, bind_error);
    server->listener = evhttp_bound_socket_get_listener(watch->socket);
    evconnlistener_set_error_cb(server->listener, on_accept_error);
    /* Binding does not report that listening failed for lack of memory; enabling the listener again does. */
    if (evconnlistener_enable(server->listener) != 0)
        return fail("out of memory: cannot listen at %s:%d", host, port);
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof address;
    if (getsockname(evhttp_bound_socket_get_fd(watch->socket), (struct sockaddr *)&address, &size) == 0)
        port = ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                                   : ((struct sockaddr_in *)&address)->sin_port);
    fprintf(stderr, "tenon: listening at http%s://%s:%d\n", server->tls ? "s" : "", host, port);
    server->loopback = strcmp(host, "127.0.0.1") == 0 || strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0;
    if (!server->n_keys && !server->loopback)
        warn("anyone who can reach %s can use this server; set --api-key", host);
    return EXIT_OK;
}

/* Limits heap fragmentation over weeks of requests: large blocks (samplers, grammar masks) are mapped and unmapped
 * instead of leaving holes between small blocks that live longer. */
static void limit_fragmentation(void) {
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 64 * 1024);
    mallopt(M_TRIM_THRESHOLD, 1024 * 1024);
    mallopt(M_ARENA_MAX, 2);
#endif
}

/* Ranks other than 0 follow: they do not listen. */
static int join_ranks(struct server *server, const struct args *args) {
    const int code = ranks_join(args, &server->net);
    if (code || !server->net) return code;
    if (server->on_demand) return fail("several ranks serve one model: give one with -m");
    ranks_threads(args, server->net, &server->threads);
    server->params.cache_ram = 0;
    server->params.cache_disk = NULL;
    return EXIT_OK;
}

static int run_serve(const struct args *args) {
    struct server *server = tn_calloc(1, sizeof *server);
    if (!server) return fail_status(TN_E_NOMEM, "server");
    struct serve_watch watch = {.server = server, .grace = args_real(args, "grace")};
    struct event *tick = NULL;
    server->args = args;
    server->started = time(NULL);
    signal(SIGPIPE, SIG_IGN);
    lost_file_watch();
    limit_fragmentation();
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    int code = EXIT_OK;
    evthread_use_pthreads();
    /* Not event_base_new(): when evhttp runs out of memory for a connection, it uses the current base, which only
     * event_init() sets. */
    server->base = event_init();
    tick = server->base ? event_new(server->base, -1, EV_PERSIST, on_tick, &watch) : NULL;
    struct timeval interval = {.tv_usec = 100000};
    if (!tick || event_add(tick, &interval) != 0) code = fail("out of memory for the event loop");
    if (!code) code = configure_server(server, args);
    if (!code) code = join_ranks(server, args);
    if (!code && !preparers_start(server)) code = fail("out of memory for the HTTP server");
    if (!code && tn_net_rank(server->net) == 0) code = start_listening(server, &watch, args);
    if (!code && !server->on_demand) {
        server->loading = server->models[0];
        code = engine_start(server->models[0]);
    }
    if (!code) event_base_dispatch(server->base);
    /* However the loop ended: engine threads must stop, and no request may wait for them. */
    models_stop(server);
    preparers_stop(server);
    cancel_requests(server);
    if (!code && !server->on_demand) {
        engine_join(server->models[0]);
        code = server->models[0]->exit_code;
    }
    recordings_free(server);
    models_free(server);
    ranks_leave(server->net);
    if (server->http) evhttp_free(server->http);
    guards_free(server);
    tls_stop(server->tls);
    if (tick) event_free(tick);
    if (server->base) event_base_free(server->base);
    for (size_t i = 0; i < server->n_keys; i++) free(server->keys[i]);
    free(server->chat_template);
    json_decref(server->variables);
    free(server->cache_disk);
    tn_free(server->grammar);
    tn_free(server);
    return code;
}

static const struct option options[] = {
    {.name = "host",
     .value = "ADDRESS",
     .kind = OPTION_TEXT,
     .fallback = "127.0.0.1",
     .help = "address to listen at",
     .env = "LLAMA_ARG_HOST"},
    {.name = "port",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = 65535,
     .fallback = "8080",
     .help = "port to listen at, 0 for any free one",
     .env = "LLAMA_ARG_PORT"},
    {.name = "reuse-port",
     .kind = OPTION_FLAG,
     .help = "let several servers listen at the same port; the kernel divides the connections",
     .env = "LLAMA_ARG_REUSE_PORT"},
    {.name = "ui",
     .aliases = "--webui",
     .kind = OPTION_FLAG,
     .fallback = "on",
     .help = "serve the web UI",
     .env = "LLAMA_ARG_UI"},
    {.name = "parallel",
     .letter = "np",
     .value = "N",
     .kind = OPTION_INT,
     .min = 1,
     .max = 1024,
     .fallback = "4",
     .words = "-1=4",
     .help = "number of slots: requests processed at the same time, which share the context (--ctx, --kv-unified)",
     .env = "LLAMA_ARG_N_PARALLEL"},
    {.name = "queue",
     .value = "N",
     .kind = OPTION_INT,
     .min = 1,
     .max = 1 << 20,
     .fallback = "256",
     .help = "max waiting requests; further ones are rejected with status 503"},
    {.name = "admit-tokens",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = INT32_MAX,
     .fallback = "512",
     .help = "a request starts when its prompt and this many tokens of its answer fit in the KV cache, or "
             "its max_tokens if that is less"},
    {.name = "kv-unified",
     .letter = "kvu",
     .kind = OPTION_FLAG,
     .fallback = "off",
     .help = "a request may use the whole context; with --no-kv-unified its slot's share of it, as without "
             "either when both --ctx and --parallel are given",
     .env = "LLAMA_ARG_KV_UNIFIED"},
    OPTIONS_CONTEXT_SHIFT(NULL, "0"),
    {.name = "predict",
     .letter = "n",
     .aliases = "--n-predict",
     .value = "N",
     .kind = OPTION_INT,
     .min = -1,
     .max = 1e9,
     .fallback = "-1",
     .words = "-2=-1",
     .help = "max tokens for requests that set no limit, -1 for up to the context size",
     .env = "LLAMA_ARG_N_PREDICT"},
    {.name = "alias",
     .letter = "a",
     .value = "NAME",
     .kind = OPTION_TEXT,
     .help =
         "name of the model for clients; several are separated by commas, the first in alphabetical order is its id",
     .env = "LLAMA_ARG_ALIAS"},
    {.name = "api-key",
     .value = "KEYS",
     .kind = OPTION_TEXT,
     .help = "accepted API keys, separated by commas; clients must send one of them",
     .env = "TENON_API_KEY LLAMA_API_KEY"},
    {.name = "api-key-file",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .help = "read the API keys from FILE, one per line",
     .env = "LLAMA_ARG_API_KEY_FILE"},
    {.name = "models-dir",
     .value = "FOLDER",
     .kind = OPTION_TEXT,
     .help = "serve all GGUF files in FOLDER; a model is loaded when a request names it",
     .env = "LLAMA_ARG_MODELS_DIR"},
    {.name = "models-preset",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .help = "serve the models of an INI file: [NAME] with model = PATH or hf-repo = OWNER/REPO[:QUANT]",
     .env = "LLAMA_ARG_MODELS_PRESET"},
    {.name = "models-cache",
     .kind = OPTION_FLAG,
     .help = "serve all downloaded models, as OWNER/REPO:QUANT; clients may download more; the default beside "
             "--models-preset, and without any model if there are downloads"},
    {.name = "models-max",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = 1024,
     .fallback = "0",
     .help = "max models that are loaded at the same time, 0 for as many as fit; the least recently used makes room",
     .env = "LLAMA_ARG_MODELS_MAX"},
    {.name = "models-autoload",
     .kind = OPTION_FLAG,
     .fallback = "on",
     .help = "load the model that a request names; with --no-models-autoload only POST /models/load does",
     .env = "LLAMA_ARG_MODELS_AUTOLOAD"},
    {.name = "tags",
     .value = "NAMES",
     .kind = OPTION_TEXT,
     .help = "tags of the model for clients, separated by commas",
     .env = "LLAMA_ARG_TAGS"},
    {.name = "sleep-idle-seconds",
     .value = "TIME",
     .kind = OPTION_SECONDS,
     .min = -1,
     .max = 1e9,
     .fallback = "0",
     .help = "unload the model when nobody has used it for this long; the next request loads it; 0 for never"},
    {.name = "cors-origins",
     .value = "ORIGINS",
     .kind = OPTION_TEXT,
     .fallback = "localhost",
     .help =
         "web sites whose scripts may use the server: a list with commas, localhost for pages of this machine, * for "
         "all",
     .env = "LLAMA_ARG_CORS_ORIGINS"},
    {.name = "api-prefix",
     .value = "PATH",
     .kind = OPTION_TEXT,
     .fallback = "",
     .help = "all paths begin with PATH, such as /llm",
     .env = "LLAMA_ARG_API_PREFIX"},
    {.name = "models-memory",
     .value = "SIZE",
     .kind = OPTION_SIZE,
     .fallback = "0",
     .help = "max planned memory of all loaded models together, 0 for the free memory of the devices"},
    {.name = "embedding",
     .aliases = "--embeddings",
     .kind = OPTION_FLAG,
     .help = "also serve /v1/embeddings; always on for encoders",
     .env = "LLAMA_ARG_EMBEDDINGS"},
    {.name = "pooling",
     .value = "KIND",
     .kind = OPTION_TEXT,
     .fallback = "model",
     .choices = "model none mean cls last rank",
     .help = "how token vectors are combined into one embedding; none: one vector per token; rank: as --rerank",
     .env = "LLAMA_ARG_POOLING"},
    {.name = "rerank",
     .aliases = "--reranking",
     .kind = OPTION_FLAG,
     .help = "serve /v1/rerank instead of /v1/embeddings; always on for models whose file marks them as rerankers",
     .env = "LLAMA_ARG_RERANKING"},
    {.name = "reasoning-format",
     .value = "FORMAT",
     .kind = OPTION_TEXT,
     .fallback = "deepseek",
     .choices = "deepseek none auto deepseek-legacy",
     .help = "where reasoning goes unless a request says: deepseek and auto: to reasoning_content; none: it stays in "
             "the content",
     .env = "LLAMA_ARG_THINK"},
    {.name = "metrics", .kind = OPTION_FLAG, .help = "serve /metrics", .env = "LLAMA_ARG_ENDPOINT_METRICS"},
    {.name = "slots",
     .kind = OPTION_FLAG,
     .fallback = "on",
     .help = "serve /slots",
     .env = "LLAMA_ARG_ENDPOINT_SLOTS"},
    {.name = "cache-prompt",
     .kind = OPTION_FLAG,
     .fallback = "on",
     .help = "reuse common prefixes of requests; --no-cache-prompt is --cache-prefixes 0",
     .env = "LLAMA_ARG_CACHE_PROMPT"},
    {.name = "slot-save-path",
     .value = "FOLDER",
     .kind = OPTION_TEXT,
     .help = "folder in which POST /slots/ID saves and restores slots",
     .env = "LLAMA_ARG_SLOT_SAVE_PATH"},
    OPTION_CACHE_PREFIXES,
    OPTIONS_CHECKPOINTS,
    {.name = "cache-ram",
     .letter = "cram",
     .value = "SIZE",
     .kind = OPTION_TEXT,
     .fallback = "0",
     .help = "host memory for conversations evicted from the KV cache: MiB, or a size such as 8G; 0 for none",
     .env = "LLAMA_ARG_CACHE_RAM"},
    {.name = "cache-disk",
     .value = "FOLDER,SIZE",
     .kind = OPTION_TEXT,
     .help = "folder for conversations evicted from host memory, and its max size; survives restarts"},
    {.name = "share-prefixes",
     .kind = OPTION_FLAG,
     .help = "requests may reuse cached prompts of other API keys; response times then show what others have asked"},
    {.name = "access-log", .kind = OPTION_FLAG, .help = "log every response as a line of JSON on standard error"},
    {.name = "max-body",
     .value = "SIZE",
     .kind = OPTION_SIZE,
     .fallback = "16M",
     .help = "max size of a request body"},
    {.name = "max-bodies",
     .value = "SIZE",
     .kind = OPTION_SIZE,
     .fallback = "128M",
     .help = "max size of the bodies of all connections together; further ones are rejected with status 503"},
    {.name = "max-connections",
     .value = "N",
     .kind = OPTION_INT,
     .min = 1,
     .max = 1 << 20,
     .fallback = "4096",
     .help = "max connections; further ones wait until some are closed"},
    {.name = "ssl-key-file",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .help = "private key (PEM) to serve HTTPS",
     .env = "LLAMA_ARG_SSL_KEY_FILE"},
    {.name = "ssl-cert-file",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .help = "certificate and its chain (PEM) to serve HTTPS",
     .env = "LLAMA_ARG_SSL_CERT_FILE"},
    {.name = "prefill-assistant",
     .kind = OPTION_FLAG,
     .fallback = "on",
     .help = "a last message of the assistant is the beginning of the answer; --no-prefill-assistant makes it a "
             "complete message, unless a request says otherwise",
     .env = "LLAMA_ARG_PREFILL_ASSISTANT"},
    {.name = "spm-infill",
     .kind = OPTION_FLAG,
     .help = "/infill puts the suffix before the prefix, for models that were trained so"},
    {.name = "sse-ping-interval",
     .value = "SECONDS",
     .kind = OPTION_INT,
     .min = -1,
     .max = 86400,
     .fallback = "5",
     .help = "pause between comments that keep event streams alive while there is nothing to send; -1 for none",
     .env = "LLAMA_ARG_SSE_PING_INTERVAL"},
    {.name = "timeout",
     .letter = "to",
     .value = "TIME",
     .kind = OPTION_SECONDS,
     .min = 1,
     .max = 86400,
     .fallback = "60",
     .help = "close a connection when the client neither sends nor receives for this long",
     .env = "LLAMA_ARG_TIMEOUT"},
    {.name = "grace",
     .value = "TIME",
     .kind = OPTION_SECONDS,
     .min = 0,
     .max = 3600,
     .fallback = "5",
     .help = "time for running requests to finish when the server stops"},
    {0},
};
static const struct option_group *const groups[] = {
    &model_options,       &load_options, &adapter_options, &template_options, &sampling_options,
    &speculation_options, NULL};

const struct command command_serve = {
    .name = "serve",
    .summary = "serve a model over HTTP, with a web UI for chat",
    .arguments = "[MODEL]",
    .options = options,
    .groups = groups,
    .details = "Clients of the OpenAI API and of llama.cpp's server work unchanged; docs/server.md lists all "
               "endpoints. Sampling "
               "options set the defaults for requests.",
    .examples = "tenon serve model.gguf\n"
                "tenon serve model.gguf -c 16384 -np 8 --host 0.0.0.0 --api-key secret\n"
                "tenon serve --models-dir ~/models --models-memory 24G\n"
                "tenon serve --port 0 --metrics",
    .section = SECTION_USE,
    .min_arguments = 0,
    .max_arguments = 1,
    .run = run_serve,
};
