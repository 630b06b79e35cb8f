/* Conversion of a Hugging Face model folder to GGUF: configuration, tensors and vocabulary. */
#ifndef TENON_TOOL_CONVERT_H
#define TENON_TOOL_CONVERT_H

#include "convert/safetensors.h"
#include "files/layout.h"
#include "tenon/gguf.h"

#include <jansson.h>

struct hf_model {
    const char *folder;
    const tn_arch_class *class; /* how its weights differ from those in GGUF */
    json_t *root;               /* config.json */
    json_t *config;             /* the part that describes the language model */
    struct layout layout;
    /* RoPE scaling. */
    const char *rope_type; /* NULL: none */
    float rope_factor, rope_attention, rope_beta_fast, rope_beta_slow, rope_temperature;
    float yarn_attention, yarn_log_multiplier;
    bool yarn_exact; /* "truncate": false */
    uint32_t rope_original;
    int32_t rope_sections[4]; /* pairs of a head for each of the four positions of a picture's token; 0: none */
    float *rope_factors;      /* rotated/2 floats, or long then short: twice that; NULL when there are none */
    bool rope_long_short;
    bool *window_layers;           /* which layers use the window; NULL: as the architecture defines */
    bool lists_windows;            /* files list them in any case */
    uint32_t first_position;       /* rows of the matrix of positions before the first one */
    bool answers_yes;              /* a reranker that answers "yes" or "no" */
    int64_t answers[2];            /* these tokens */
    const struct hf_model *target; /* of an EAGLE-3 head: its model */
    const char *activation;        /* hidden_activation, where files of the architecture say it; NULL: they do not */
    const char *task;              /* whose adapter in the folder is added to the weights; NULL: none */
};

/* config.c: reads config.json into the layout. TN_E_UNSUPPORTED for unknown classes and settings. */
tn_status hf_model_open(const char *folder, struct hf_model *model);
/* The same from the text of a config.json, which has no folder and so no weights. */
tn_status hf_model_parse(const char *config, struct hf_model *model);
void hf_model_close(struct hf_model *model);
tn_status hf_model_keys(const struct hf_model *model, tn_gguf_writer *writer);

/* Entries of config.json: that of the first of several names (separated by spaces) whose value is not null. */
json_t *config_first_of(const json_t *object, const char *names);
double config_number(const json_t *object, const char *names, double missing);
bool config_truth(const json_t *object, const char *names, bool missing);
uint32_t config_whole(const json_t *object, const char *names, uint32_t missing); /* 0: not a whole number */

/* What conversion does for a single architecture; each may be NULL. Lists end with a row without a name. */
struct hf_weights;
struct recipe;
struct config_family {
    const char *arch;
    tn_status (*read)(struct hf_model *model); /* entries that only this architecture has */
    /* Sets keys whose values are tensors of the folder. */
    tn_status (*keys)(const struct hf_model *model, struct hf_weights *weights, tn_gguf_writer *writer);
    /* Orders the rows and columns of the tensor `base` ("attn_qkv"), whose source has the name pattern `hf`. */
    tn_status (*order)(const struct hf_model *model, const char *base, const char *hf, struct recipe *recipe);
};
extern const struct config_family dense_config_families[], moe_config_families[], hybrid_config_families[],
    latent_config_families[], encoder_config_families[], head_config_families[];
/* embedding.c: whether the source `hf` is that of a classifier; the tensor gets the shape that its rows have. */
bool hf_model_has_classifier(const struct hf_model *model, const char *hf, tn_arch_tensor *tensor);
/* Sets the keys of models that embed and rank texts: pooling, labels, prompts. */
tn_status hf_embedding_keys(const struct hf_model *model, tn_gguf_writer *writer);
tn_status hf_model_order(const struct hf_model *model, const char *base, const char *hf, struct recipe *recipe);
/* Keys that families of experts have, and single keys "ARCH.name"; a whole number of 0 is left out. */
tn_status config_read_moe(struct hf_model *model);
tn_status config_moe_keys(const struct hf_model *model, struct hf_weights *weights, tn_gguf_writer *writer);
tn_status config_key_u32(const struct hf_model *model, tn_gguf_writer *writer, const char *name, uint32_t value);
tn_status config_key_f32(const struct hf_model *model, tn_gguf_writer *writer, const char *name, double value);
/* layer_types: whether layer `layer` attends to all positions; `missing` without the list. */
bool config_attends(const struct hf_model *model, uint32_t layer, bool missing);
tn_status config_read_granitemoe(struct hf_model *model);
/* Sets the keys that follow from the weights. */
tn_status hf_model_weight_keys(const struct hf_model *model, struct hf_weights *weights, tn_gguf_writer *writer);

/* A JSON file of the folder; *out is NULL when it is absent. */
tn_status hf_load_json(const char *folder, const char *name, json_t **out);
/* Replaces the NUL character in keys, which jansson cannot store: two noncharacters, U+FDEF and U+FDEE. Single ones
 * occur in vocabularies. */
#define HF_NUL_IN_KEY "\xef\xb7\xaf\xef\xb7\xae"
/* The bytes of a file; *out is NULL when it is absent. Freed with tn_free(). */
tn_status hf_load_bytes(const char *folder, const char *name, char **out, size_t *size);

/* nextn.c: counts the layers that predict further tokens, and names their tensors like those of other layers. */
tn_status hf_nextn_find(struct hf_model *model, struct safetensors *set);

/* tasks.c: adapters for tasks that a folder holds beside its weights (Jina embeddings 3). The weights get their usual
 * names, and with model->task its adapter is added to them. */
tn_status hf_tasks_find(const struct hf_model *model, struct safetensors *set);

/* eagle3.c: heads that guess the tokens of another model. */
bool hf_is_eagle3(const struct hf_model *model);
tn_status hf_eagle3_find(struct hf_model *model, struct safetensors *set); /* names its layer like other layers */
/* The model that the head belongs to. It must outlive the head. */
tn_status hf_eagle3_target(struct hf_model *model, const struct hf_model *target);

/* tensors.c: the source of each GGUF tensor. */
tn_status hf_weights_open(struct hf_model *model, struct hf_weights **out); /* may set TN_ARCH_TIED */
void hf_weights_close(struct hf_weights *weights);
/* Whether the folder has a source for an optional tensor; its dimensions become those of the source. */
bool hf_weights_has(struct hf_weights *weights, tn_arch_tensor *tensor);
/* Elements of the list of tokens that a head guesses; 0: there is no list. */
int64_t hf_weights_guessed_tokens(struct hf_weights *weights);
/* Whether a layer of a model with experts has a dense feed-forward part instead. */
bool hf_weights_dense_layer(struct hf_weights *weights, int layer);
/* The only value of a tensor of the folder: "layers.L.mlp.act_fn.beta", L standing for the layer. */
tn_status hf_weights_scalar(struct hf_weights *weights, const char *pattern, int layer, float *out);
/* The type most weights are stored in. */
tn_type hf_weights_type(const struct hf_weights *weights);
/* Finds the source of one tensor and checks its shape. *raw receives a block type when the source holds such blocks,
 * which are then copied as they are; else it is TN_F32. */
tn_status hf_weights_add(struct hf_weights *weights, const char *name, int n_dims, const int64_t *ne, tn_type *raw);
/* Has the type row_source of tensor_writer.h. */
tn_status hf_weights_rows(void *weights, size_t tensor, int64_t first, int64_t count, void *out);
/* Warns about tensors in the folder that were not used. */
void hf_weights_report(const struct hf_weights *weights);

/* Matrices of a PEFT adapter, `which` of 'A' and 'B', under the names of the weights that they change. */
tn_status hf_weights_open_lora(struct hf_model *model, const char *folder, char which, struct hf_weights **out);
/* The dimensions of a tensor's source; false where there is none. */
bool hf_weights_shape(struct hf_weights *weights, const char *name, int64_t *columns, int64_t *rows);
/* Adds a tensor whose rows are those of its source, in their order. */
tn_status hf_weights_add_plain(struct hf_weights *weights, const char *name);
const char *hf_weights_unused(const struct hf_weights *weights); /* a tensor that was not used, or NULL */

/* shape_file.c: writes a file without data to plan with. `shape` is the name of a shape, a list of numbers (as for
 * tenon synth; `arch` names the architecture) or the text of a config.json. `type` is that of the weights. */
tn_status shape_file_write(const char *path, const char *arch, const char *shape, const char *type);

/* peft.c: converts a folder with adapter_config.json, for the model in the folder `base`, to an adapter in `out`. */
bool is_peft_folder(const char *folder);
tn_status peft_convert(const char *folder, const char *base, const char *out, int threads, size_t *n_weights);

/* vocab.c: sets all tokenizer.* keys. `pre` overrides the detected pre-tokenizer when not NULL. */
tn_status hf_vocab_keys(const struct hf_model *model, const char *pre, tn_gguf_writer *writer);
/* pretokenizer.c: the GGUF name of the pre-tokenizer in tokenizer.json, or NULL; `what` receives its patterns. */
const char *hf_pre_name(const json_t *tokenizer, const char *arch, char *what, size_t size);

/* sentencepiece.c: the vocabulary of a tokenizer.model file. */
struct sp_piece {
    tn_gguf_str text; /* into the file's bytes */
    float score;
    int type; /* numbered as in GGUF */
};
struct sp_model {
    struct sp_piece *pieces;
    size_t count;
    bool unigram, add_dummy_prefix, remove_extra_whitespaces;
    tn_gguf_str charsmap;
};
tn_status sp_model_parse(const char *path, const char *bytes, size_t size, struct sp_model *out);
void sp_model_free(struct sp_model *model);

#endif
