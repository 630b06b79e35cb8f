/* Where a model's weights go on some devices and why, and how its graph is cut between them.
 *
 *     splits MODEL [DEVICE…]     e.g. splits models/tales.gguf sim:4M,name=left sim:3M,name=right */
#include <stdio.h>
#include <tenon/llm.h>

static tn_status show(const char *path, char **devices, int n_devices) {
    tn_model *model = NULL;
    tn_session *session = NULL;
    tn_session_params params = tn_session_params_default();
    tn_status status;
    params.n_ctx = 512;
    params.n_ubatch = 64;
    for (int i = 0; i < n_devices && i < 15; i++) params.devices[i] = devices[i];
    if (n_devices == 0) params.devices[0] = "cpu";
    TN_TRY_GOTO(tn_model_open(path, NULL, &model), status, out);
    TN_TRY_GOTO(tn_session_new(model, &params, &session), status, out);
    printf("Weights\n");
    TN_TRY_GOTO(tn_session_explain(session, stdout), status, out);
    printf("\nOne token\n");
    TN_TRY_GOTO(tn_session_dump_splits(session, false, stdout), status, out);
out:
    tn_session_free(session);
    tn_model_close(model);
    return status;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: splits MODEL [DEVICE...]\n");
        return 2;
    }
    if (show(argv[1], argv + 2, argc - 2) == TN_OK) return 0;
    fprintf(stderr, "splits: %s\n", tn_error());
    return 1;
}
