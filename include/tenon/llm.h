/* Language models from GGUF files: open, check whether they fit, load, decode, sample.
 *
 *     tn_model *model; tn_session_plan *plan; tn_session *session;
 *     TN_TRY(tn_model_open("model.gguf", NULL, &model));            // metadata only
 *     TN_TRY(tn_session_plan_new(model, &params, &plan));           // exact bytes per device; takes nothing
 *     if (!tn_session_plan_fits(plan)) puts(tn_session_plan_advice(plan));
 *     TN_TRY(tn_session_new(plan, &session));                       // loads and reserves, or fails here
 *     TN_TRY(tn_session_prompt(session, 0, "Once upon a time", -1));
 *     while ((status = tn_session_next(session, 0, sampler, &token)) == TN_OK)      // TN_END: end of the text
 *         fputs(tn_session_text(session, 0), stdout);
 *
 * A session belongs to one thread at a time; several sessions may share a model. tn_session_new allocates exactly
 * the planned memory, which suffices for batches of every size; no device memory is allocated later. The first batch
 * of a new size creates its graph on the host; later batches of that size allocate nothing. */
#ifndef TENON_LLM_H
#define TENON_LLM_H

#include "tenon/gguf.h"
#include "tenon/net/net.h"
#include "tenon/sched.h"
#include "tenon/speed.h"
#include "tenon/token.h"
#include "tenon/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_model tn_model;
typedef struct tn_session_plan tn_session_plan;
typedef struct tn_session tn_session;
typedef struct tn_sampler tn_sampler; /* sampler.h */
typedef struct tn_adapter tn_adapter;
typedef struct tn_control_vector tn_control_vector;

/* Max tokens of a guess, and max layers of a model whose states a head reads. */
enum { TN_GUESS_MOST = 64, TN_STATE_LAYERS_MOST = 8 };

/* ---- Model ---- */

typedef struct tn_model_params {
    bool no_mmap;    /* read the weights instead of mapping them */
    bool vocab_only; /* tokenizer and metadata; sessions are refused */
    /* Examine every weight while loading: NaN or infinity is TN_E_FORMAT with the tensor's name. */
    bool check_weights;
    /* Also load multi-token prediction layers, if the file has them: their weights are planned and take memory;
     * ordinary decodes do not use them. */
    bool nextn;
    /* Open the first of these layers as a separate model, with embedding and output matrix: a head that guesses the
     * token after the next (generate.h). Its sessions need the hidden states of the model with every batch. A file
     * may contain only such a layer. TN_E_UNSUPPORTED: the file has none. */
    bool head;
    /* For a file that is an EAGLE-3 head (architecture eagle3): the model that it guesses for. The head is checked
     * against it, and takes from its file the embedding and the output matrix that the head's file lacks. It must
     * outlive the head. NULL: the file has both. */
    const tn_model *target;
    /* The ranks that compute the model together (net.h); it is divided among them. NULL: this process alone.
     * The transport must outlive the model. */
    tn_net *net;
    int rank, n_ranks;               /* without `net`: plan this rank's part, which cannot run */
    float shares[TN_NET_RANKS_MOST]; /* of the model, by rank; all 0: equal ones */
    bool by_layers;  /* ranks have whole layers, one after the other, instead of a slice of every matrix */
    int stage_ranks; /* with by_layers: this many consecutive ranks, those of a machine, have the same layers and
                      * divide them by rows; 0: 1 */
    /* Rank 0 reads the file; the others receive the metadata when they open the model and their slices of the weights
     * when the first session loads them, and need no file: `path` is then a name for messages. The same on all
     * ranks. */
    bool share_weights;
} tn_model_params;

/* Reads the metadata and checks every tensor's name and shape against the architecture. No weights are touched. With
 * a transport all ranks open the model at the same time. */
TN_API tn_status tn_model_open(const char *path, const tn_model_params *params, tn_model **model) TN_MUST_CHECK;
TN_API void tn_model_close(tn_model *model); /* sessions first */
/* Of an EAGLE-3 head: the layers of its model whose input it reads (tn_session_params.state_layers); returns their
 * number. 0: the model is no such head. */
TN_API int32_t tn_model_target_layers(const tn_model *model, int32_t layers[TN_STATE_LAYERS_MOST]);
TN_API int tn_model_ranks(const tn_model *model); /* that compute it together; 1: this process alone */

/* How a sequence's hidden states become one embedding. */
typedef enum tn_pooling {
    TN_POOLING_MODEL = -1, /* as the file specifies; by default MEAN for encoders, LAST for others */
    TN_POOLING_NONE,       /* one embedding per token */
    TN_POOLING_MEAN,
    TN_POOLING_CLS,  /* the first token's */
    TN_POOLING_LAST, /* the last token's */
    TN_POOLING_RANK  /* the classifier's scores instead of an embedding; needs a model that has one */
} tn_pooling;

typedef struct tn_model_info {
    const char *architecture, *name;
    int64_t n_params;
    size_t bytes; /* of all tensors */
    int32_t n_vocab, n_ctx_train, n_embd, n_layer, n_head, n_head_kv, n_ff, n_expert, n_expert_used, n_window;
    int32_t n_nextn; /* layers of the file that predict further tokens; not in n_layer */
    bool is_encoder; /* embeddings only, not causal */
    bool is_causal;  /* false: a sequence is decoded as a whole, and nothing is kept in the cache */
    /* Layers with recurrent state: positions cannot be shifted, and a sequence is removed or copied as a whole only.
     */
    bool is_recurrent;
    tn_pooling pooling;        /* TN_POOLING_MODEL: the file says nothing */
    int32_t n_labels;          /* scores of the classifier; 0: none */
    const char *chat_template; /* NULL if the model has none */
} tn_model_info;
TN_API tn_model_info tn_model_get_info(const tn_model *model);
TN_API const tn_tokenizer *tn_model_tokenizer(const tn_model *model); /* NULL when the file has none */
TN_API const tn_gguf *tn_model_file(const tn_model *model);

/* ---- Session parameters ---- */

/* Puts the weights whose names match the pattern (a POSIX extended regular expression) on a device. */
typedef struct tn_placement_override {
    const char *pattern;
    const char *device;
} tn_placement_override;

/* Max bytes that a session may use of a device, weights that stay in the file's map included. On the host it also
 * limits what devices with unified memory use together with it. */
typedef struct tn_budget {
    const char *device;
    size_t bytes;
} tn_budget;

/* Rows of a KV cache below 16 bits can be rotated by a Hadamard matrix before they are quantized (tn_hadamard), in
 * blocks of the largest power of two that divides the head. Queries and the result of attention are rotated too, so
 * that only the rounding changes. */
typedef enum tn_cache_rotation {
    TN_ROTATION_AUTO, /* where it improves accuracy: K of all types below 16 bits */
    TN_ROTATION_ON,   /* K and V of all types below 16 bits */
    TN_ROTATION_OFF
} tn_cache_rotation;
/* A type that the KV cache can have, by name. TN_E_TYPE lists the valid ones. */
TN_API tn_status tn_cache_type_parse(const char *name, tn_type *type);

/* A LoRA adapter with the scale that every sequence begins with, and a control vector with its scale. */
typedef struct tn_adapter_use {
    const tn_adapter *adapter;
    float scale;
} tn_adapter_use;
typedef struct tn_control_use {
    const tn_control_vector *vector;
    float scale;
} tn_control_use;

typedef struct tn_session_params {
    /* Tokens that the KV cache holds, shared by the sequences. 0: the length that the model was trained with or,
     * if that does not fit, the largest that fits without moving layers to the host; tn_session_plan_params has the
     * result. */
    int32_t n_ctx;
    int32_t page;          /* cells per page of the KV cache, 1 to 256; 0: 64, or less with many sequences */
    int32_t n_prefixes;    /* prefixes of sequences that are kept for later ones; 0: none */
    int32_t n_checkpoints; /* of these, how many have memory for windows and recurrent states; 0: n_seqs */
    /* Layers with a window or with recurrent state continue only at checkpoints. Tokens between two checkpoints of
     * a sequence; -1: only those of a batch (tn_batch.checkpoints) and of tn_session_prefix_keep. 0: at least 128,
     * and so many that one sequence does not use all checkpoints. */
    int32_t checkpoint_every;
    /* Tiers below the KV cache: evicted prefixes move to host memory of at most cache_ram bytes, and from there to
     * files in the folder cache_disk of at most cache_disk_bytes in total; 0 and NULL: none. The string must outlive
     * the plan. */
    size_t cache_ram;
    const char *cache_disk;
    uint64_t cache_disk_bytes;
    int32_t n_batch;  /* max tokens in one tn_session_decode */
    int32_t n_ubatch; /* max tokens computed at once (a micro-batch); memory is reserved for this many */
    int32_t n_seqs;   /* sequence ids are 0 … n_seqs-1 */
    /* Max guessed tokens of a sequence that a decode can verify and that can be rolled back (generate.h), to 64. */
    int32_t n_guess;
    /* Branches of trees of guesses (tn_batch.parents) besides their first paths, of all sequences together, to
     * 1024. Models with recurrent state have none. */
    int32_t n_branches;
    bool states; /* decodes also return the hidden state of every token (tn_session_state) */
    /* With `states`: the states before these layers instead, concatenated in this order; n_layer is the state after
     * the last layer, before the last norm. None, by default: the input of the output matrix. */
    int32_t n_state_layers, state_layers[TN_STATE_LAYERS_MOST];
    int32_t n_outputs; /* max rows of logits kept per decode; 0: n_seqs plus the guesses of 8 sequences */
    int32_t
        n_candidates; /* number of largest logits per row that a batch with `candidates` returns, to 1024; 0: none */
    int n_threads;    /* 0: one per core */
    tn_threadpool *threads; /* the CPU's pool, outliving the session; NULL: one of its own */
    /* A scheduler whose devices, threads, abort callback and compute memory the session uses (do not set them here
     * as well); NULL: the session creates its own. Sessions that share a scheduler, of the same or of different
     * models, take turns using compute memory of the size of the largest. Results do not change; only one thread at a
     * time may use any of these sessions. It must not be the scheduler that a session created for itself. It may be
     * freed before the sessions. */
    const tn_sched *sched;
    /* Types of the KV cache: f32 f16 bf16 fp8 q8_0 q5_1 q5_0 q4_1 q4_0. The second pair is for layers with a window;
     * TN_TYPE_LIMIT: the same as for the others. */
    tn_type cache_k, cache_v, cache_k_window, cache_v_window;
    tn_cache_rotation cache_rotation;
    const char *devices[16]; /* in order of preference; empty: all GPUs, then the CPU */
    float split[16];         /* share of the layers per device; all 0: fill the first, then the next */
    /* Micro-batches of a prompt that may be in flight where the layers are on several devices: while one is on the
     * second device, the next is on the first. 0 selects the default of 4; 1 disables it. Each takes memory for the
     * copies between devices. */
    int n_pipeline;
    int32_t n_gpu_layers; /* layers off the CPU; -1: as many as fit */
    const tn_placement_override *overrides;
    size_t n_overrides;
    /* A device without a budget may use its free memory; a budget above that has no effect. Devices, overrides and
     * budgets must outlive the plan. budget.h chooses the other parameters so that they fit. */
    const tn_budget *budgets;
    size_t n_budgets;
    /* Plan as if all memory of the devices were free, up to the budgets: for comparing choices while another session
     * uses them. */
    bool assume_free;
    /* Max tokens whose feed-forward part is computed together, at least 32; 0: a default for the device. Smaller
     * chunks need less compute memory and read the weights more often. */
    int32_t ffn_chunk;
    /* The logits of a token depend only on the tokens of its sequence: not on other sequences, on how tokens are
     * divided into batches, on reused prefixes, or on the number of threads. */
    bool repeatable;
    bool no_repack;  /* keep weights as in the file, never in a layout of the CPU's kernels */
    bool embeddings; /* decoding gives embeddings instead of logits; encoders always do */
    tn_pooling pooling;
    float rope_base, rope_scale; /* 0: as the file specifies */
    /* LoRA adapters that sequences may use, at most 32, and control vectors, which are added up (see below). The
     * lists are copied; adapters and vectors outlive the session. */
    const tn_adapter_use *adapters;
    const tn_control_use *controls;
    size_t n_adapters, n_controls;
    int32_t control_first, control_last; /* layers that control vectors are added to; both 0: all */
    const tn_pack_params *pack;          /* effort of planning; NULL: the scheduler's default (sched.h) */
    /* While loading; returning false cancels. */
    bool (*progress)(void *user, size_t done_bytes, size_t total_bytes);
    /* Called from any thread while planning (between graphs), loading (between pieces), decoding, shifting, moving
     * and scoring (at least between micro-batches). Returning true ends the call with TN_E_ABORTED. Then no plan is
     * made, no weights are loaded, and no token of a decode is in the cache; tokens that were being shifted or moved
     * are not in the cache, either. */
    tn_abort_fn abort;
    void *user; /* for both */
    /* For measurements: called for the nodes of every graph that runs (sched.h). Nodes are then computed in pieces,
     * which is slower; the plan includes the scratch for that. NULL: not called. */
    tn_eval_fn eval;
    void *eval_user;
} tn_session_params;
/* 4096 cells, batch 2048, micro-batch 512, 1 sequence, f16. */
TN_API tn_session_params tn_session_params_default(void);

/* ---- Session plan: what a session will take ---- */

/* Assigns layers and weights to devices and plans the KV cache and every graph: all bytes of a session, exactly.
 * Nothing is allocated, and files without data are accepted. A plan that does not fit is a result, not an error. A
 * plan belongs to one thread at a time and is freed before its model; a session keeps the plan it was made from. The
 * weights are included unless an earlier session of the model has loaded them. */
TN_API tn_status tn_session_plan_new(tn_model *model, const tn_session_params *params,
                                     tn_session_plan **plan) TN_MUST_CHECK;
TN_API void tn_session_plan_free(tn_session_plan *plan);
TN_API bool tn_session_plan_fits(const tn_session_plan *plan); /* the memory that was free when it was made */
/* Changes that would make it fit; "" if it fits. Every suggestion was planned and fits. Lasts as long as the plan. */
TN_API const char *tn_session_plan_advice(tn_session_plan *plan);
/* For a plan that fits: a warning if there is not enough memory to keep mapped weights cached, so that tokens wait
 * for the disk; "" otherwise. Based on the free memory at the first call. Lasts as long as the plan. */
TN_API const char *tn_session_plan_warning(tn_session_plan *plan);
TN_API tn_session_params tn_session_plan_params(const tn_session_plan *plan); /* with the defaults filled in */

typedef struct tn_fit_device {
    const char *name;
    size_t weights, cache, compute, scratch; /* exact bytes; of a shared scheduler: including the other sessions' */
    size_t adapters;                         /* LoRA adapters and control vectors of the session */
    size_t staging;                          /* host memory for batches, results, metadata and uploads */
    size_t tier;                             /* host memory of kept prefixes that have left the devices */
    size_t own;                              /* memory that the backend allocates in addition */
    size_t pinned;                           /* of compute, scratch and staging: pinned for GPUs */
    size_t mapped;                           /* weights that stay in the file's map and take no memory of their own */
    size_t lower_bound;                      /* of compute */
    size_t in_order;                         /* compute memory that an online best-fit allocator would need */
    size_t free, total;                      /* on the device now */
    size_t domain;                           /* index of the first device that uses the same memory */
    size_t domain_free, domain_total;        /* of that memory, for all of its devices together */
    bool reported;                           /* false: the device does not report its memory; that of its domain */
    int32_t n_layers;
} tn_fit_device;

/* Planned checkpoints: kept prefixes of models whose layers have windows or recurrent state. Their bytes are part
 * of the cache. */
typedef struct tn_checkpoint_plan {
    int32_t n;     /* checkpoints that fit; 0: no prefixes are kept, or the model needs none */
    int32_t every; /* tokens between them; 0: only on request */
    size_t states; /* bytes of one: recurrent states */
    size_t window; /*
bytes of one: at most so many for cells of windows, which others may share */
} tn_checkpoint_plan;
TN_API tn_checkpoint_plan tn_session_plan_checkpoints(const tn_session_plan *plan);

/* Bytes per device, planned or taken. */
typedef struct tn_fit {
    bool fits;
    tn_fit_device *devices;
    size_t n_devices;
    size_t nodes_prefill, nodes_decode, splits_prefill, splits_decode;
} tn_fit;
TN_API tn_status tn_session_plan_fit(const tn_session_plan *plan, tn_fit *fit) TN_MUST_CHECK;
TN_API void tn_fit_free(tn_fit *fit);
/* Prints a table of the bytes per device and, where the devices' peaks are known, the predicted speed. */
TN_API tn_status tn_session_plan_print(const tn_session_plan *plan, FILE *out);
/* Saves a plan from which no session was made: placement, and the offset of every tensor of every covered
 * graph. Loading needs no search and no packing: the graphs are built again, and the file's offsets are verified
 * against them and adopted. Nothing in the file is trusted. TN_E_STATE: the plan is stale, and the message says what
 * has changed (the library's version, the model, the parameters or the devices), or it does not match the graphs.
 * TN_E_VERSION, TN_E_CHECKSUM, TN_E_FORMAT: the file is of another version or damaged. Free memory may differ: see
 * tn_session_plan_fits. Not for a model that is loaded, nor with params.sched (TN_E_UNSUPPORTED). */
TN_API tn_status tn_session_plan_save(tn_session_plan *plan, const char *path) TN_MUST_CHECK;
TN_API tn_status tn_session_plan_load(tn_model *model, const tn_session_params *params, const char *path,
                                      tn_session_plan **plan) TN_MUST_CHECK;
/* Saved plans in a folder, under names made from what they depend on. */
typedef struct tn_plan_cache {
    const char *folder;          /* created with the first plan that is kept */
    size_t max_files, max_bytes; /* above these, the least recently used plans are removed; 0: 64, 64 MiB */
    int32_t min_ms;              /* plans that took less processor time are not cached; 0: 300; negative: all are */
} tn_plan_cache;
/* Uses a plan from the cache, adopted and verified as by tn_session_plan_load, if it fits and would still be chosen
 * now. Otherwise makes the plan and caches it, if it fits; a failure to cache it is only logged. Plans of a loaded
 * model, with params.sched or with params.budgets are made without the cache. Any number of threads and processes may
 * use the same folder. */
TN_API tn_status tn_session_plan_cached(tn_model *model, const tn_session_params *params, const tn_plan_cache *cache,
                                        tn_session_plan **plan) TN_MUST_CHECK;
/* Whether its packing comes from a saved plan. */
TN_API bool tn_session_plan_adopted(const tn_session_plan *plan);
/* Loads a plan, checks that no two live tensors of a graph overlap, that each is within its chunk, and that the
 * totals are right, and prints what was checked. */
TN_API tn_status tn_session_plan_verify(tn_model *model, const tn_session_params *params, const char *path,
                                        FILE *out) TN_MUST_CHECK;
/* The differences between two plans, as text to free with tn_free(); "" if there are none. */
TN_API tn_status tn_session_plan_compare(const tn_session_plan *a, const tn_session_plan *b,
                                         char **text) TN_MUST_CHECK;
/* Prints the device of every weight and why, one line each. */
TN_API tn_status tn_session_plan_explain(const tn_session_plan *plan, FILE *out);
/* Prints the splits of the largest prefill graph or of the decode graph (tn_sched_dump). */
TN_API tn_status tn_session_plan_splits(const tn_session_plan *plan, bool prefill, FILE *out);
/* The memory plan of one of these graphs. `memory` (may be NULL) receives which of its memories is the given
 * device's. tn_plan_export makes text, JSON, CSV or a picture of it. It lasts as long as the session plan. */
TN_API tn_status tn_session_plan_graph(const tn_session_plan *plan, bool prefill, size_t device,
                                       const tn_plan **graph_plan, size_t *memory) TN_MUST_CHECK;

/* The most tokens of a micro-batch of a prompt of n_tokens: n_ubatch, or fewer where ranks have whole layers, so that
 * they wait less for each other. */
TN_API int32_t tn_session_plan_micro_batch(const tn_session_plan *plan, int32_t n_tokens);

/* Predicted speed, from the graphs and the peaks of the devices (speed.h). */
typedef struct tn_session_speed_params {
    int32_t prompt;   /* tokens of a prompt that follows `depth` cells; 0: no prediction of prefill */
    int32_t depth;    /* cells that a sequence has in the cache before */
    int32_t generate; /* tokens to generate from there on: the prediction is for the middle one */
} tn_session_speed_params;
typedef struct tn_session_speed {
    int32_t prompt, depth;
    double prefill, decode;                /* tokens per second; decode: of all sequences together */
    tn_prediction prefill_run, decode_run; /* one micro-batch, one step */
} tn_session_speed;
/* TN_E_STATE: a device is not measured; the message names it. Runs nothing and takes no device memory. */
TN_API tn_status tn_session_plan_predict(const tn_session_plan *plan, const tn_session_speed_params *params,
                                         tn_session_speed *speed) TN_MUST_CHECK;

/* ---- Session ---- */

/* Allocates what was planned: loads the weights (unless an earlier session of this model did), creates the KV
 * cache, and reserves the memory of every graph. TN_E_TOO_BIG is returned before anything is allocated; its message
 * has the needed and the free bytes and what to try. A plan makes one session; TN_E_STATE: it has made one already,
 * or another session has loaded the model's weights since. The caller may free the plan at any time. */
TN_API tn_status tn_session_new(tn_session_plan *plan, tn_session **session) TN_MUST_CHECK;
/* Plans and creates a session. */
TN_API tn_status tn_session_open(tn_model *model, const tn_session_params *params,
                                 tn_session **session) TN_MUST_CHECK;
/* On ranks other than 0, instead of decoding: computes this rank's part of everything that rank 0 runs, until rank 0
 * frees its session. A failure of any rank ends all of them. */
TN_API tn_status tn_session_follow(tn_session *session) TN_MUST_CHECK;
TN_API void tn_session_free(tn_session *session);
/* Runs batches of common sizes and discards them, so that the first request takes no longer than later ones:
 * devices load kernels and make graphs on first use. Takes some tenths of a second, at most two seconds; does nothing
 * if the host has all layers. TN_E_STATE: the session holds tokens. */
TN_API tn_status tn_session_warm_up(tn_session *session) TN_MUST_CHECK;
TN_API tn_model *tn_session_model(const tn_session *session);
TN_API const tn_session_plan *tn_session_get_plan(const tn_session *session);
TN_API tn_session_params tn_session_get_params(const tn_session *session); /* with the defaults filled in */
/* The memory of the session, counted from its buffers, in the same form as its plan. */
TN_API tn_status tn_session_memory(const tn_session *session, tn_fit *fit) TN_MUST_CHECK;

/* ---- Decoding ---- */

/* Tokens of one or several sequences. Each becomes a cell of the KV cache. */
typedef struct tn_batch {
    int32_t n_tokens;
    const tn_token *tokens;
    const int32_t *positions; /* NULL: after the last position of each sequence */
    const int32_t *seqs;      /* NULL: sequence 0 */
    const bool *outputs;      /* rows whose logits (or embeddings) are computed; NULL: the last of each sequence */
    /* Tokens after which a checkpoint is kept, such as the last of a message; NULL: none. A checkpoint is a kept
     * prefix that ends with this token; it costs only memory. Ignored unless layers have windows or recurrent state.
     * The sequence must have begun with tn_session_prefix_take. Checkpoints for which there is no memory are not
     * kept. */
    const bool *checkpoints;
    /* For a head (tn_model_params.head): for every token, the model's hidden state of the previous token. For an
     * EAGLE-3 head a row has the states before the model's layers (tn_model_target_layers), then one of the head's
     * width: its own state of the previous token, if that was guessed. One of both is zeros. */
    const float *states;
    /* Tokens that are guessed and may be rolled back with tn_session_seq_rewind, at most n_guess of a sequence in
     * a row; NULL: none. Recurrent layers keep the state before each of them until the sequence continues without
     * guesses. */
    const bool *guesses;
    /* Trees of guesses: for every guessed token the index in the batch of the token before it; -1, and NULL: the
     * sequence's previous one in the batch. A token whose parent already has a successor begins a branch; the
     * branches of a sequence are numbered from 1 in this order, and exist until the sequence is decoded or changed
     * again. Such a batch is at most one micro-batch. TN_E_FULL: more branches than n_branches of the session. */
    const int32_t *parents;
    /* Only the argmax of those rows is computed (tn_session_argmax); logits stay on the device. In a loop over single
     * tokens a device that has the whole model computes the next step while the caller handles the last token. */
    bool argmax;
    /* Only the largest logits of those rows leave the device (tn_session_candidates). tn_session_logits fetches a
     * whole row if needed. No effect if n_candidates is 0, if the device uses the host's memory, in sessions that
     * share a scheduler, and on batches larger than a micro-batch. */
    bool candidates;
} tn_batch;

/* TN_E_FULL: the cache has too few free cells; nothing was changed. Remove or shift a sequence and try again.
 * After any failure none of the batch's tokens is in the cache. TN_E_NOT_FINITE when a row of results holds NaN or
 * infinity, which damaged weights cause (see check_weights). */
TN_API tn_status tn_session_decode(tn_session *session, const tn_batch *batch) TN_MUST_CHECK;
TN_API int32_t tn_session_output_count(const tn_session *session); /* of the last decode */
/* Row i of the outputs of the last decode (negative: from the end). Valid until the next; NULL if there is none.
 * After a batch with `candidates` the row is fetched now; several threads may do that. */
TN_API float *tn_session_logits(tn_session *session, int32_t i);
/* With params.states: the hidden state after token i of the last batch, as the output matrix gets it (of an EAGLE-3
 * head, before its last norm), or the states of params.state_layers; NULL if there is none. Valid until the next
 * decode. */
TN_API const float *tn_session_state(const tn_session *session, int32_t i);
/* The index of the highest logit of row i, the lowest of equals; -1 if there is no such row. Fastest after a batch
 * with `argmax`, which has no logits. */
TN_API tn_token tn_session_argmax(const tn_session *session, int32_t i);
/* The largest logits of row i in descending order, of equals the lower token first, after a batch with `candidates`.
 * Returns their number; 0: there are none, use tn_session_logits. Valid until the next decode. */
TN_API int32_t tn_session_candidates(const tn_session *session, int32_t i, const tn_token **tokens,
                                     const float **logits);
/* Embeddings, of a session with params.embeddings. Without pooling, output i belongs to the i-th token of `outputs`
 * (NULL: to every token). With pooling there is one per sequence, in the order in which sequences first occur in the
 * batch; it covers the tokens of this decode. An encoder needs a whole sequence at once: its tokens are contiguous in
 * the batch, at most a micro-batch of them, and nothing stays in the cache. Not normalised. Valid until the next
 * decode; NULL if there is none. */
TN_API float *tn_session_embedding(tn_session *session, int32_t i);
TN_API int32_t tn_session_embedding_size(const tn_session *session); /* floats per output; RANK: the labels */

/* Ranking, with params.pooling RANK. Appends the tokens of a query and a document in the model's format: with the
 * template of the file (tokenizer.chat_template.rerank), else both texts between the vocabulary's special tokens.
 * Special tokens written in the texts are not recognized. Decode them as one sequence. */
TN_API tn_status tn_rank_tokens(const tn_model *model, const char *query, size_t query_length, const char *document,
                                size_t document_length, tn_tokens *out);
/* The relevance of the document of output i: the probability of the label "yes" if the file has labels "yes" and
 * "no", else the first score. NaN: there is no such output. */
TN_API float tn_session_relevance(tn_session *session, int32_t i);
/* Divides a row by its norm: 2 Euclidean, 1 sum of magnitudes, p > 2 the p-norm; 0 scales the largest magnitude to
 * 32760, for storage as 16-bit integers; below 0: no change. A row of zeros is not changed. */
TN_API void tn_embedding_normalize(float *row, int32_t n, int32_t norm);
/* Calls `fn` with the logits of every token of a list, batch by batch: no buffer of vocabulary × tokens is needed. */
typedef bool (*tn_logits_fn)(void *user, int32_t position, const float *logits, int32_t n_vocab);
TN_API tn_status tn_session_score(tn_session *session, int32_t seq, const tn_token *tokens, int32_t n_tokens,
                                  tn_logits_fn fn, void *user) TN_MUST_CHECK;

/* ---- Text generation ---- */

/* Decodes a prompt, which is appended to the contents of the sequence. `length` -1: up to the NUL.
 * */
TN_API tn_status tn_session_prompt(tn_session *session, int32_t seq, const char *text, int64_t length) TN_MUST_CHECK;
TN_API tn_status tn_session_prompt_tokens(tn_session *session, int32_t seq, const tn_token *tokens,
                                          int32_t n_tokens) TN_MUST_CHECK;
/* Samples the next token of a prompted sequence and decodes it. TN_END when the model ends the text: nothing is
 * decoded and *token is TN_TOKEN_NONE, until the next prompt. After a failed decode the next call decodes the same
 * token. `token` may be NULL. generate.h has the parts of this call, for several sequences in one batch. */
TN_API tn_status tn_session_next(tn_session *session, int32_t seq, tn_sampler *sampler,
                                 tn_token *token) TN_MUST_CHECK;
/* The text that the last tn_session_next of this sequence completed: whole characters only, may be empty. After
 * TN_END the incomplete rest. */
TN_API const char *tn_session_text(tn_session *session, int32_t seq);

/* ---- KV cache ---- */

/* Ranges of positions are [from, to); to < 0: to the end. seq < 0: every sequence (remove only). */
TN_API tn_status tn_session_seq_remove(tn_session *session, int32_t seq, int32_t from, int32_t to);
/* Rolls a sequence back to its first n tokens; the others must have been guessed (tn_batch.guesses). Nothing is
 * recomputed. TN_E_UNSUPPORTED: the model has recurrent
 * layers, and the tokens were not marked as guesses. */
TN_API tn_status tn_session_seq_rewind(tn_session *session, int32_t seq, int32_t n);
/* Continues the sequence with the first n tokens of one of its branches (tn_batch.parents); the rest of the tree
 * is rolled back. Branch 0 is the first path, as above. */
TN_API tn_status tn_session_seq_take_branch(tn_session *session, int32_t seq, int32_t branch, int32_t n);
/* The sequences share the cells. */
TN_API tn_status tn_session_seq_copy(tn_session *session, int32_t source, int32_t target, int32_t from, int32_t to);
TN_API tn_status tn_session_seq_keep(tn_session *session, int32_t seq); /* removes all others */
/* Adds to positions, or divides them; rotates K accordingly. Cells that other sequences see are copied first:
 * TN_E_FULL, with nothing changed, where there are no free pages for that. After any other failure the sequence
 * is empty. */
TN_API tn_status tn_session_seq_shift(tn_session *session, int32_t seq, int32_t from, int32_t to, int32_t by);
TN_API tn_status tn_session_seq_divide(tn_session *session, int32_t seq, int32_t from, int32_t to, int32_t by);
/* Whether positions can change: false for models with learned positions or recurrent layers. */
TN_API bool tn_session_can_shift(const tn_session *session);
/* For a sequence that fills its context: removes the older half of the tokens after its first `keep`, rounded to
 * whole pages, and moves the rest up. *n_removed (may be NULL) is the number of removed tokens; the next token has
 * the position after the last remaining one. Moved cells depend on removed tokens, so they never become a kept
 * prefix. TN_E_FULL: shared cells could not be copied; the sequence then holds its first `keep` tokens, and the
 * tokens after the removed ones can be decoded again. TN_E_UNSUPPORTED: see tn_session_can_shift. */
TN_API tn_status tn_session_context_shift(tn_session *session, int32_t seq, int32_t keep, int32_t *n_removed);
TN_API int32_t tn_session_seq_first(const tn_session *session, int32_t seq); /* lowest position, -1 if empty */
TN_API int32_t tn_session_seq_last(const tn_session *session, int32_t seq);  /* highest position, -1 if empty */
/* Compacts partly filled pages, and joins the cells of each sequence. A decode does this automatically when there are
 * too few free pages or a sequence is in too many pieces, and when removed ranges have left so many holes that a
 * quarter of the pages in use could be freed. After a failure the sequences whose
 * cells were being moved are empty. */
TN_API tn_status tn_session_defragment(tn_session *session);
TN_API void tn_session_clear(tn_session *session);

typedef struct tn_cache_usage {
    int32_t cells, used, peak; /* cells of all pages; written cells; maximum of written cells so far */
    int32_t page, tokens;      /* cells per page; max tokens that the session can hold */
    int32_t pages, free_pages;
} tn_cache_usage;
TN_API tn_cache_usage tn_session_cache_usage(const tn_session *session);
/* Number of cells that sequences see; the others hold only kept prefixes, or nothing. Walks all cells. */
TN_API int32_t tn_session_cells_held(tn_session *session);
/* For every cell (`cells` ints) the lowest id of its sequences, or -1: for pictures. */
TN_API void tn_session_cache_map(const tn_session *session, int32_t *owner);

/* For every page (`pages` ints): TN_PAGE_FREE; the only sequence with cells in it; TN_PAGE_SHARED if there are
 * several; n_seqs or above if it has only kept prefixes. */
enum { TN_PAGE_FREE = -1, TN_PAGE_SHARED = -2 };
TN_API void tn_session_page_map(const tn_session *session, int32_t *owner);

/* ---- Prefixes ---- */

/* A session with n_prefixes > 0 records the token of every cell. The contents of a sequence can be kept as a
 * prefix when it ends, or while it continues; another sequence that begins with the same tokens then shares the
 * cells instead of decoding them again, without copies. Prefixes are evicted in least-recently-used order when their
 * memory is needed. `key` separates what must not be shared: a prefix is taken only with the key that it was computed
 * with. Cells whose positions were changed (tn_session_seq_shift) are never taken, because they depend on removed
 * tokens; nor are those of a sequence that did not begin with tn_session_prefix_take, or into which parts of others
 * were copied. After a sequence was removed as a whole, call tn_session_prefix_take again. */

/* Starts the empty sequence `seq` with the longest available prefix of the tokens, kept or in a live sequence;
 * *n_taken tokens need not be decoded. Its later tokens belong to `key`. Omit the last token of a prompt if its
 * logits are needed. Without tokens nothing is taken, and the sequence can be kept later. */
TN_API tn_status tn_session_prefix_take(tn_session *session, int32_t seq, uint64_t key, const tn_token *tokens,
                                        int32_t n_tokens, int32_t *n_taken);
/* Layers with a window or recurrent state can continue only at a checkpoint. Returns the number of tokens that
 * the last tn_session_prefix_take would have taken with a checkpoint there, or 0. Texts branch at that length, so a
 * checkpoint there is useful for the next one. */
TN_API int32_t tn_session_prefix_missed(const tn_session *session);
/* Keeps the contents of the sequence as a prefix. The sequence is not changed. */
TN_API tn_status tn_session_prefix_keep(tn_session *session, int32_t seq);
/* Declares the tokens of a sequence whose state was loaded: `n_tokens` from position 0 on. It can then be kept. The
 * caller guarantees that the state was computed from these tokens, without changes of positions. TN_E_STATE: it holds
 * another number of tokens, has gaps, or shares cells. */
TN_API tn_status tn_session_prefix_note(tn_session *session, int32_t seq, uint64_t key, const tn_token *tokens,
                                        int32_t n_tokens);
/* Drops the kept prefixes that the tokens begin with, and those that begin with all of the tokens. */
TN_API tn_status tn_session_prefix_forget(tn_session *session, uint64_t key, const tn_token *tokens,
                                          int32_t n_tokens);
/* Drops all kept prefixes on the device and in host memory; files stay. */
TN_API void tn_session_prefix_clear(tn_session *session);
typedef struct tn_prefix_usage {
    int32_t kept, limit;   /* prefixes */
    int32_t cells;         /* written cells that only kept prefixes hold */
    uint64_t asked, taken; /* tokens of all tn_session_prefix_take: passed, and taken
                            */
    uint64_t evicted;      /* prefixes evicted to free memory */
    uint64_t hits, misses; /* calls of tn_session_prefix_take with tokens that took some, and none */
} tn_prefix_usage;
TN_API tn_prefix_usage tn_session_prefix_usage(tn_session *session);
/* The length of the longest prefix of the tokens that a live sequence holds with this key: a sequence that begins
 * with them needs no cells for these. 0 in sessions without prefixes. */
TN_API int32_t tn_session_prefix_shared(tn_session *session, uint64_t key, const tn_token *tokens, int32_t n_tokens);
/* A sequence or a kept prefix in the tree of common prefixes. */
typedef struct tn_prefix_info {
    int32_t id;     /* the sequence; n_seqs and above: a kept prefix */
    int32_t tokens; /* up to its last position */
    int32_t parent; /* the earlier entry with the longest common prefix of cells; -1: none */
    int32_t shared; /* tokens of that prefix */
    int32_t cells;
    /* cells that only this entry uses */
    uint64_t last_used; /* of a prefix: higher is later; 0: a sequence */
} tn_prefix_info;
/* Lists sequences that are not empty, then kept prefixes, the most recently used first. Returns their number, up to
 * `capacity`. */
TN_API int32_t tn_session_prefix_tree(tn_session *session, tn_prefix_info *list, int32_t capacity);

/* Tiers: prefixes evicted from the device move to host memory (cache_ram), the least recently used ones there to disk
 * (cache_disk). tn_session_prefix_take continues the device's part of a prefix with blocks from the tiers. The unit
 * is a block of 32 tokens; blocks that several prefixes share are stored once. A block is used only if its checksum,
 * its tokens, the model, the settings of the KV cache and of RoPE, and the key match. At the end of a session its
 * kept prefixes are written to disk, the most recently used first; later sessions of the same model find them.
 * Several sessions and processes may share a folder. Damaged files are ignored; when the disk is full, nothing is
 * written for a while.
 * */
typedef struct tn_tier_usage {
    size_t host_limit, host_bytes;     /* bytes taken for the tier; those in use by blocks */
    uint64_t disk_limit, disk_bytes;   /* the budget; bytes of all files of the folder */
    int32_t host_blocks, disk_blocks;  /* blocks of up to 32 tokens */
    uint64_t host_tokens, disk_tokens; /* tokens that sequences took from the tier */
    uint64_t host_stored, disk_stored; /* blocks that moved there */
    uint64_t dropped, disk_failed;     /* blocks that were dropped; files that could not be written */
} tn_tier_usage;
TN_API tn_tier_usage tn_session_tier_usage(tn_session *session);

/* State: the cache of one sequence (seq ≥ 0) or all (-1), with checksum and the model's identity. */
TN_API tn_status tn_session_state_size(tn_session *session, int32_t seq, size_t *size);
TN_API tn_status tn_session_state_get(tn_session *session, int32_t seq, void *to, size_t size);
TN_API tn_status tn_session_state_set(tn_session *session, int32_t seq, const void *from, size_t size);
TN_API tn_status tn_session_save(tn_session *session, int32_t seq, const char *path); /* atomically */
TN_API tn_status tn_session_load(tn_session *session, int32_t seq, const char *path);

/* ---- LoRA adapters and control vectors ---- */

/*     tn_adapter *poet; tn_session *session;
 *     TN_TRY(tn_adapter_open(model, "poet.gguf", &poet));       // checks names and shapes against the model
 *     params.adapters = &(tn_adapter_use){poet, 1.0f};
 *     params.n_adapters = 1;
 *     TN_TRY(tn_session_open(model, &params, &session));        // planned and loaded with the session
 *     TN_TRY(tn_session_seq_adapters(session, 3, &(float){0})); // not for sequence 3
 *
 * An adapter adds scale × alpha / rank × B·A to weights of the model. The matrices are not merged into the
 * weights, so every sequence can use different adapters, even within one batch, and scales can change at any time. A
 * control vector adds a direction to the hidden state after layers, for all sequences of a session. Both are part of
 * a session's plan; opened files may serve any number of sessions and must be closed after them. */

/* Reads a GGUF file with general.type "adapter", adapter.type "lora" and tensors NAME.lora_a and NAME.lora_b, where
 * NAME is a weight of the model. TN_E_FORMAT, TN_E_SHAPE: the file is not such an adapter, belongs to
 * another architecture, or a matrix does not match its weight; the message names the tensor. TN_E_UNSUPPORTED: this
 * kind of adapter is not supported. All values are read once, for the hash. The model must outlive the adapter. */
TN_API tn_status tn_adapter_open(const tn_model *model, const char *path, tn_adapter **adapter) TN_MUST_CHECK;
TN_API void tn_adapter_close(tn_adapter *adapter); /* accepts NULL; sessions first */

typedef struct tn_adapter_info {
    const char *path, *name; /* name: of the file's metadata, or "" */
    float alpha;             /* 0: none, only the scale is used */
    int32_t rank;            /* the highest of its matrices */
    size_t n_weights;        /* of the model that it adapts */
    size_t bytes;            /* of its tensors in the file */
    uint64_t hash;           /* of its contents */
} tn_adapter_info;
TN_API tn_adapter_info tn_adapter_get_info(const tn_adapter *adapter);
/* Adds scale × alpha / rank × B·A to the values of a weight, n from element `begin` on: the result is the
 * weight of a model with the adapter merged. Weights that are not adapted are not changed. `begin` and n are
 * multiples of the weight's row length. */
TN_API tn_status tn_adapter_merge(const tn_adapter *adapter, const char *weight, float scale, int64_t begin,
                                  int64_t n, float *values) TN_MUST_CHECK;
/* The i-th weight that it adapts; NULL after the last. */
TN_API const char *tn_adapter_weight(const tn_adapter *adapter, size_t i);

enum { TN_ADAPTERS_MOST = 32 }; /* per session */

/* Sets the scales of all adapters of the session for a sequence (-1: for all of them), in the order of
 * params.adapters; 0 turns one off; it costs nothing while no sequence of a batch uses it. Tokens in the cache are
 * not recomputed. A sequence whose scales change while it holds tokens cannot be kept as a prefix. Call it before
 * tn_session_prefix_take: only sequences with the same adapters and scales share prefixes. */
TN_API tn_status tn_session_seq_adapters(tn_session *session, int32_t seq, const float *scales) TN_MUST_CHECK;
/* The scale of the i-th adapter for a sequence; 0 if there is none. */
TN_API float tn_session_seq_adapter_scale(const tn_session *session, int32_t seq, size_t i);

/* The key to pass to tn_session_prefix_shared and tn_session_prefix_forget for sequences with these scales and
 * `key`; NULL: all scales 0. */
TN_API uint64_t tn_session_adapters_key(const tn_session *session, uint64_t key, const float *scales);

/* Reads a GGUF file with f32 tensors direction.N of the model's width: N is the layer, from 1 on, after which the
 * direction is added. */
TN_API tn_status tn_control_vector_open(const tn_model *model, const char *path,
                                        tn_control_vector **vector) TN_MUST_CHECK;
TN_API void tn_control_vector_close(tn_control_vector *vector); /* accepts NULL; sessions first */

/* ---- Numbers ---- */

typedef struct tn_session_stats {
    uint64_t prompt_tokens, prompt_ns;       /* decodes of more than one token per sequence */
    uint64_t generated_tokens, generated_ns; /* one token per sequence */
    uint64_t load_ns;
    tn_sched_stats sched;
} tn_session_stats;
TN_API tn_session_stats tn_session_get_stats(const tn_session *session);
TN_API void tn_session_reset_stats(tn_session *session);
TN_API tn_sched *tn_session_sched(tn_session *session); /* for dumps and callbacks */
/* The launches of a prefill or decode graph, per device; see tn_program_print. On a described device ("cuda:h200") a
 * session takes no memory and reads no weights. */
TN_API tn_status tn_session_print_launches(tn_session *session, bool prefill, FILE *out);

#ifdef __cplusplus
}
#endif
#endif
