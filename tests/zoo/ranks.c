#include "ranks.h"

#include "tenon/net/net.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ZOO_RANKS_MOST = 4, RANKS_TIMEOUT_MS = 60000, RANKS_TOKENS_MOST = 128 };

typedef struct zoo_rank {
    const char *path;
    tn_model_params how;
    tn_session_params params;
    const tn_token *tokens;
    int32_t n_tokens;
    float **rows; /* of rank 0: a row of logits or states per token */
    int32_t *width;
    tn_status status;
    char error[512];
} zoo_rank;

static tn_status play_tokens(zoo_rank *r, const tn_model_info *info, tn_session *s) {
    const int32_t width = info->is_encoder ? info->n_embd : info->n_vocab;
    const int32_t first = info->is_causal ? r->n_tokens * 3 / 4 : r->n_tokens;
    bool outputs[RANKS_TOKENS_MOST];
    *r->width = width;
    *r->rows = calloc((size_t)r->n_tokens * (size_t)width, sizeof **r->rows);
    if (!*r->rows) return TN_E_NOMEM;
    memset(outputs, true, sizeof outputs);
    for (int32_t at = 0, n; at < r->n_tokens; at += n) {
        n = at ? 1 : first;
        TN_TRY(tn_session_decode(s, &(tn_batch){.n_tokens = n, .tokens = r->tokens + at, .outputs = outputs}));
        for (int32_t i = 0; i < n; i++) {
            const float *row = info->is_encoder ? tn_session_embedding(s, i) : tn_session_logits(s, i);
            if (!row) return tn_fail(TN_E_STATE, "no results of token %d", at + i);
            memcpy(*r->rows + (size_t)(at + i) * (size_t)width, row, (size_t)width * sizeof *row);
        }
    }
    return TN_OK;
}

/* Whether the session takes the bytes that its plan says. */
static tn_status check_memory(tn_session *s) {
    tn_fit planned, taken;
    TN_TRY(tn_session_plan_fit((tn_session_plan *)(uintptr_t)tn_session_get_plan(s), &planned));
    tn_status status = tn_session_memory(s, &taken);
    for (size_t d = 0; status == TN_OK && d < planned.n_devices; d++) {
        const tn_fit_device *p = &planned.devices[d], *t = &taken.devices[d];
        if (p->weights != t->weights || p->mapped != t->mapped || p->cache != t->cache || p->compute != t->compute ||
            p->scratch != t->scratch || p->staging != t->staging)
            status = tn_fail(TN_E_STATE, "%s: other bytes are taken than were planned", p->name);
    }
    tn_fit_free(&planned);
    tn_fit_free(&taken);
    return status;
}

static void *run_zoo_rank(void *user) {
    zoo_rank *r = user;
    tn_model *model = NULL;
    tn_session *session = NULL;
    r->status = tn_model_open(r->path, &r->how, &model);
    if (r->status == TN_OK) r->status = tn_session_open(model, &r->params, &session);
    if (r->status == TN_OK) r->status = check_memory(session);
    if (r->status == TN_OK) {
        const tn_model_info info = tn_model_get_info(model);
        r->status = r->rows ? play_tokens(r, &info, session) : tn_session_follow(session);
    }
    if (r->status != TN_OK) {
        snprintf(r->error, sizeof r->error, "%s", tn_error());
        if (r->how.net) tn_net_abort(r->how.net, r->status, r->error);
    }
    tn_session_free(session);
    tn_model_close(model);
    return NULL;
}

/* Runs `n` ranks; *rows is rank 0's, to be freed. */
static tn_status run_zoo_ranks(const zoo_rank *like, int n, bool by_layers, float **rows, int32_t *width) {
    tn_net *nets[ZOO_RANKS_MOST] = {NULL};
    zoo_rank ranks[ZOO_RANKS_MOST];
    pthread_t threads[ZOO_RANKS_MOST];
    tn_status status = TN_OK;
    *rows = NULL;
    if (n > 1) TN_TRY(tn_net_threads(&(tn_net_params){.n_ranks = n, .timeout_ms = RANKS_TIMEOUT_MS}, nets));
    for (int r = 0; r < n; r++) {
        ranks[r] = *like;
        ranks[r].how = (tn_model_params){.net = nets[r], .by_layers = by_layers};
        ranks[r].rows = r ? NULL : rows;
        ranks[r].width = width;
        if (r && pthread_create(&threads[r], NULL, run_zoo_rank, &ranks[r])) abort();
    }
    (void)run_zoo_rank(&ranks[0]);
    for (int r = 1; r < n; r++) pthread_join(threads[r], NULL);
    for (int r = n - 1; r >= 0; r--)
        if (ranks[r].status != TN_OK) status = tn_fail(ranks[r].status, "rank %d of %d: %s", r, n, ranks[r].error);
    for (int r = 0; r < n; r++) tn_net_free(nets[r]);
    return status;
}

static double rows_nmse(const float *got, const float *want, size_t n) {
    double difference = 0, scale = 0;
    for (size_t i = 0; i < n; i++) {
        difference += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        scale += (double)want[i] * want[i];
    }
    return difference / scale;
}

int zoo_run_ranks(const char *path, const tn_session_params *params, const tn_token *tokens, int32_t n_tokens,
                  bool by_layers, double bar) {
    const char *mode = by_layers ? "layers" : "rows";
    zoo_rank like = {.path = path, .params = *params, .tokens = tokens, .n_tokens = n_tokens};
    float *one = NULL, *many = NULL;
    int32_t width = 0;
    int result = n_tokens <= RANKS_TOKENS_MOST ? 0 : 2;
    like.params.n_threads = 1;
    if (!result && run_zoo_ranks(&like, 1, false, &one, &width) != TN_OK) result = 2;
    if (result) printf("%-6s %s\n", mode, tn_error());
    for (int n = 2; n <= ZOO_RANKS_MOST && !result; n++) {
        const tn_status status = run_zoo_ranks(&like, n, by_layers, &many, &width);
        if (status == TN_E_UNSUPPORTED) {
            printf("%-6s %d ranks refused: %s\n", mode, n, tn_error());
        } else if (status != TN_OK) {
            printf("%-6s %s\n", mode, tn_error());
            result = 2;
        } else {
            const double error = rows_nmse(many, one, (size_t)n_tokens * (size_t)width);
            result = error <= bar ? 0 : 1;
            printf("%-6s %d ranks %.2e%s\n", mode, n, error, result ? "  ABOVE THE BAR" : "");
        }
        free(many);
        many = NULL;
    }
    free(one);
    return result;
}
