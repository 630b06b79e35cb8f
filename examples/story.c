/* A language model in sixty lines: what it will take, whether it fits, a text, what it took. story MODEL [PROMPT] */
#include <stdio.h>
#include <tenon/llm.h>
#include <tenon/sampler.h>

static size_t bytes_of(const tn_fit *fit) { /* on all devices, without weights that stay in the file's map */
    size_t bytes = 0;
    for (const tn_fit_device *d = fit->devices; d < fit->devices + fit->n_devices; d++)
        bytes += d->weights + d->cache + d->compute + d->scratch;
    return bytes;
}

static tn_status write_story(tn_session *session, const char *prompt) {
    tn_sampler_params params = tn_sampler_params_default();
    params.seed = 1;
    tn_sampler *sampler;
    TN_TRY(tn_sampler_new(&params, (size_t)tn_model_get_info(tn_session_model(session)).n_vocab, &sampler));
    tn_status status = tn_session_prompt(session, 0, prompt, -1);
    fputs(prompt, stdout);
    for (int i = 0; i < 100 && status == TN_OK; i++) {
        status = tn_session_next(session, 0, sampler, NULL); /* allocates nothing */
        if (status == TN_OK || status == TN_END) fputs(tn_session_text(session, 0), stdout);
    }
    puts("");
    tn_sampler_free(sampler);
    return status == TN_END ? TN_OK : status; /* the model ended the story */
}

static tn_status run(const char *path, const char *prompt) {
    tn_model *model = NULL;
    tn_session_plan *plan = NULL;
    tn_session *session = NULL;
    tn_fit planned = {0}, used = {0};
    tn_status status;
    tn_session_params params = tn_session_params_default();
    params.n_ctx = 512;
    TN_TRY_GOTO(tn_model_open(path, NULL, &model), status, out);          /* metadata only */
    TN_TRY_GOTO(tn_session_plan_new(model, &params, &plan), status, out); /* exact bytes, nothing taken */
    TN_TRY_GOTO(tn_session_plan_fit(plan, &planned), status, out);
    if (!planned.fits) printf("It does not fit: %s\n", tn_session_plan_advice(plan));
    TN_TRY_GOTO(tn_session_new(plan, &session), status, out); /* takes just that, or fails here */
    TN_TRY_GOTO(tn_session_memory(session, &used), status, out);
    TN_TRY_GOTO(write_story(session, prompt), status, out);
    printf("planned %zu bytes, used %zu\n", bytes_of(&planned), bytes_of(&used));
out:
    tn_fit_free(&used);
    tn_fit_free(&planned);
    tn_session_free(session);
    tn_session_plan_free(plan);
    tn_model_close(model);
    return status;
}

int main(int argc, char **argv) {
    tn_status status = run(argc > 1 ? argv[1] : "models/tales.gguf", argc > 2 ? argv[2] : "Once upon a time");
    if (status != TN_OK) fprintf(stderr, "story: %s\n", tn_error());
    return status != TN_OK;
}
