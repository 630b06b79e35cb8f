"""Constants and types of Tenon's public headers. Written by declarations.py; a test compares it with them."""
# pylint: disable=all
from ctypes import *  # noqa: F403

(
    TN_OK, TN_E_INVALID, TN_E_SHAPE, TN_E_TYPE, TN_E_NOMEM, TN_E_FULL, TN_E_OVERFLOW, TN_E_UNSUPPORTED, TN_E_NOT_FOUND, TN_E_EXISTS,
    TN_E_IO, TN_E_FORMAT, TN_E_SYNTAX, TN_E_STATE, TN_E_ABORTED, TN_E_INFEASIBLE, TN_E_UNDECIDED, TN_E_DEVICE, TN_E_DEVICE_MEMORY,
    TN_E_DEVICE_LOST, TN_E_TOO_BIG, TN_E_NEED_RESERVE, TN_E_LIMIT, TN_E_CHECKSUM, TN_E_VERSION, TN_E_INTERNAL, TN_E_NOT_FINITE, TN_END,
    TN_LOG_DEBUG, TN_LOG_INFO, TN_LOG_WARN, TN_LOG_ERROR, TN_LOG_OFF, TN_MAX_DIMS, TN_MAX_SRC, TN_MAX_NAME, TN_MAX_PARAMS, TN_F32, TN_F16,
    TN_Q4_0, TN_Q4_1, TN_Q5_0, TN_Q5_1, TN_Q8_0, TN_Q8_1, TN_Q2_K, TN_Q3_K, TN_Q4_K, TN_Q5_K, TN_Q6_K, TN_Q8_K, TN_IQ2_XXS, TN_IQ2_XS,
    TN_IQ3_XXS, TN_IQ1_S, TN_IQ4_NL, TN_IQ3_S, TN_IQ2_S, TN_IQ4_XS, TN_I8, TN_I16, TN_I32, TN_I64, TN_F64, TN_IQ1_M, TN_BF16, TN_TQ1_0,
    TN_TQ2_0, TN_MXFP4, TN_NVFP4, TN_FP8, TN_TYPE_LIMIT, TN_OP_NONE, TN_OP_DUP, TN_OP_CAST, TN_OP_CONT, TN_OP_CPY, TN_OP_VIEW,
    TN_OP_RESHAPE, TN_OP_PERMUTE, TN_OP_TRANSPOSE, TN_OP_ADD, TN_OP_SUB, TN_OP_MUL, TN_OP_DIV, TN_OP_ADD_ID, TN_OP_SCALE, TN_OP_SQR,
    TN_OP_SQRT, TN_OP_LOG, TN_OP_EXP, TN_OP_SIN, TN_OP_COS, TN_OP_CLAMP, TN_OP_NEG, TN_OP_ABS, TN_OP_SGN, TN_OP_STEP, TN_OP_TANH,
    TN_OP_ELU, TN_OP_RELU, TN_OP_LEAKY_RELU, TN_OP_SIGMOID, TN_OP_GELU, TN_OP_GELU_QUICK, TN_OP_GELU_ERF, TN_OP_SILU, TN_OP_HARDSWISH,
    TN_OP_HARDSIGMOID, TN_OP_SOFTPLUS, TN_OP_REGLU, TN_OP_GEGLU, TN_OP_GEGLU_QUICK, TN_OP_GEGLU_ERF, TN_OP_SWIGLU, TN_OP_SWIGLU_OAI,
    TN_OP_SUM, TN_OP_SUM_ROWS, TN_OP_MEAN, TN_OP_CUMSUM, TN_OP_ARGMAX, TN_OP_ARGSORT, TN_OP_TOP_K, TN_OP_CONCAT, TN_OP_REPEAT, TN_OP_PAD,
    TN_OP_ROLL, TN_OP_ARANGE, TN_OP_GET_ROWS, TN_OP_SET_ROWS, TN_OP_ACC, TN_OP_SET, TN_OP_NORM, TN_OP_RMS_NORM, TN_OP_L2_NORM,
    TN_OP_GROUP_NORM, TN_OP_SOFT_MAX, TN_OP_DIAG_MASK_INF, TN_OP_DIAG_MASK_ZERO, TN_OP_ROPE, TN_OP_HADAMARD, TN_OP_MUL_MAT,
    TN_OP_MUL_MAT_ID, TN_OP_OUT_PROD, TN_OP_MIX, TN_OP_IM2COL, TN_OP_CONV_1D, TN_OP_CONV_2D, TN_OP_CONV_TRANSPOSE_1D,
    TN_OP_CONV_TRANSPOSE_2D, TN_OP_POOL_1D, TN_OP_POOL_2D, TN_OP_UPSCALE, TN_OP_ATTENTION, TN_OP_SELECT_POSITIONS, TN_OP_CAUSAL_CONV,
    TN_OP_LINEAR_ATTENTION, TN_OP_SELECTIVE_SCAN, TN_OP_RWKV7, TN_OP_CROSS_ENTROPY_LOSS, TN_OP_TIMESTEP_EMBEDDING, TN_OP_CUSTOM,
    TN_OP_COUNT, TN_FAMILY_LEAF, TN_FAMILY_COPY, TN_FAMILY_VIEW, TN_FAMILY_BINARY, TN_FAMILY_UNARY, TN_FAMILY_GLU, TN_FAMILY_REDUCE,
    TN_FAMILY_MOVE, TN_FAMILY_ROWS, TN_FAMILY_NORM, TN_FAMILY_ROPE, TN_FAMILY_MATMUL, TN_FAMILY_CONV, TN_FAMILY_ATTENTION,
    TN_FAMILY_RECURRENT, TN_FAMILY_CUSTOM, TN_ROPE_NORMAL, TN_ROPE_NEOX, TN_ROPE_MULTI, TN_ROPE_VISION, TN_POOL_MAX, TN_POOL_AVG,
    TN_UPSCALE_NEAREST, TN_UPSCALE_BILINEAR, TN_FLAG_INPUT, TN_FLAG_OUTPUT, TN_FLAG_PARAM, TN_FLAG_LOSS, TN_FLAG_PLANNED, TN_FLAG_KEPT,
    TN_FLAG_REPEATABLE, TN_ATTN_Q, TN_ATTN_K, TN_ATTN_V, TN_ATTN_Q_POS, TN_ATTN_PAGES, TN_ATTN_MASK, TN_ATTN_SINKS, TN_ATTN_SELECTED,
    TN_ATTN_BIAS_TABLE, TN_SELECT_Q, TN_SELECT_KEYS, TN_SELECT_Q_POS, TN_SELECT_PAGES, TN_SELECT_WEIGHTS, TN_GRAPH_DEFAULT_CAPACITY,
    TN_DEVICE_CPU, TN_DEVICE_GPU, TN_DEVICE_IGPU, TN_DEVICE_ACCEL, TN_USAGE_ANY, TN_USAGE_WEIGHTS, TN_USAGE_COMPUTE, TN_MAX_THREADS,
    TN_MAX_CPUS, TN_PRIORITY_NORMAL, TN_PRIORITY_LOW, TN_PRIORITY_HIGH, TN_PRIORITY_REALTIME, TN_NUMA_NONE, TN_NUMA_SPREAD, TN_NUMA_LOCAL,
    TN_GGUF_U8, TN_GGUF_I8, TN_GGUF_U16, TN_GGUF_I16, TN_GGUF_U32, TN_GGUF_I32, TN_GGUF_F32, TN_GGUF_BOOL, TN_GGUF_STR, TN_GGUF_ARR,
    TN_GGUF_U64, TN_GGUF_I64, TN_GGUF_F64, TN_GGUF_MAP, TN_GGUF_READ, TN_GGUF_META, TN_PACK_FAST, TN_PACK_BALANCED, TN_PACK_EXACT,
    TN_PLACEMENT_FREE, TN_PLACEMENT_PINNED, TN_PLACEMENT_SHARE, TN_PLACEMENT_FASTEST, TN_PLACEMENT_NEXT, TN_PLACEMENT_LIMIT,
    TN_PLACEMENT_FULL, TN_PLACEMENT_ONLY, TN_PLAN_TEXT, TN_PLAN_JSON, TN_PLAN_CSV, TN_PLAN_SVG, TN_RECURRENT_STATE, TN_RECURRENT_STEPS,
    TN_STEP_PREVIOUS, TN_STEP_NEXT, TN_STEP_READ, TN_STEP_WRITE, TN_CONV_X, TN_CONV_W, TN_CONV_BIAS, TN_LINEAR_Q, TN_LINEAR_K,
    TN_LINEAR_V, TN_LINEAR_G, TN_LINEAR_BETA, TN_LINEAR_U, TN_SCAN_X, TN_SCAN_DT, TN_SCAN_A, TN_SCAN_B, TN_SCAN_C, TN_RWKV7_R, TN_RWKV7_W,
    TN_RWKV7_K, TN_RWKV7_V, TN_RWKV7_A, TN_RWKV7_B, TN_SPEED_POINTS, TN_SPEED_GROUPS, TN_LAUNCH_DECODE, TN_LAUNCH_EXPERTS,
    TN_LAUNCH_PREFILL, TN_LAUNCH_KINDS, TN_LIMIT_MEMORY, TN_LIMIT_ARITHMETIC, TN_LIMIT_LINK, TN_LIMIT_LAUNCH, TN_PREDICT_STREAMS,
    TN_BACKWARD_TENSORS, TN_ADAMW, TN_SGD, TN_ARCH_HF_PAIRED_ROPE, TN_ARCH_HF_NORM_PLUS_ONE, TN_ARCH_HF_TRANSPOSED,
    TN_ARCH_HF_GROUPED_QKV, TN_ARCH_HF_NESTED, TN_ARCH_HF_INTERLEAVED_EXPERTS, TN_ARCH_HF_TRANSPOSED_EXPERTS, TN_ARCH_COUNT,
    TN_ARCH_WIDTH, TN_ARCH_HEADS, TN_ARCH_KV_HEADS, TN_ARCH_HEAD, TN_ARCH_FFN, TN_ARCH_REAL, TN_ARCH_TRUTH, TN_ARCH_MATRIX, TN_ARCH_NORM,
    TN_ARCH_BIAS, TN_ARCH_EMBEDDING, TN_ARCH_FACTORS, TN_ARCH_CONV, TN_ARCH_DECAY, TN_ARCH_REQUIRED, TN_ARCH_USUAL, TN_ARCH_OPTIONAL,
    TN_NET_RANKS_MOST, TN_NET_F32, TN_NET_BF16, TN_NET_Q8, TN_NET_NOTE, TN_TOKEN_NONE, TN_TOKENIZER_SPM, TN_TOKENIZER_BPE,
    TN_TOKENIZER_RAW_BPE, TN_TOKENIZER_WORDPIECE, TN_TOKENIZER_UNIGRAM, TN_TOKENIZER_WORLD, TN_TOKENIZER_PLAMO, TN_TOKENIZER_WHITESPACE,
    TN_TOKEN_NORMAL, TN_TOKEN_UNKNOWN, TN_TOKEN_CONTROL, TN_TOKEN_USER_DEFINED, TN_TOKEN_UNUSED, TN_TOKEN_BYTE, TN_SPECIAL_BOS,
    TN_SPECIAL_EOS, TN_SPECIAL_EOT, TN_SPECIAL_EOM, TN_SPECIAL_UNK, TN_SPECIAL_SEP, TN_SPECIAL_PAD, TN_SPECIAL_CLS, TN_SPECIAL_MASK,
    TN_SPECIAL_FIM_PRE, TN_SPECIAL_FIM_SUF, TN_SPECIAL_FIM_MID, TN_SPECIAL_FIM_PAD, TN_SPECIAL_FIM_REP, TN_SPECIAL_FIM_SEP,
    TN_SPECIAL_NEWLINE, TN_SPECIAL_COUNT, TN_ENCODE_ADD_SPECIAL, TN_ENCODE_PARSE_SPECIAL, TN_ENCODE_CONTINUE, TN_DECODE_SPECIAL,
    TN_DECODE_CONTINUE, TN_GUESS_MOST, TN_STATE_LAYERS_MOST, TN_POOLING_MODEL, TN_POOLING_NONE, TN_POOLING_MEAN, TN_POOLING_CLS,
    TN_POOLING_LAST, TN_POOLING_RANK, TN_ROTATION_AUTO, TN_ROTATION_ON, TN_ROTATION_OFF, TN_PAGE_FREE, TN_PAGE_SHARED, TN_ADAPTERS_MOST,
    TN_PREFER_SPEED, TN_PREFER_CONTEXT, TN_PREFER_QUALITY, TN_TOOLS_AUTO, TN_TOOLS_NONE, TN_TOOLS_REQUIRED, TN_CHAT_CONTENT,
    TN_CHAT_REASONING, TN_CHAT_CALL, TN_CHAT_ARGUMENTS, TN_CHAT_CALL_END, TN_SAMPLER_PENALTIES, TN_SAMPLER_DRY, TN_SAMPLER_TOP_N_SIGMA,
    TN_SAMPLER_TOP_K, TN_SAMPLER_TYPICAL, TN_SAMPLER_TOP_P, TN_SAMPLER_MIN_P, TN_SAMPLER_XTC, TN_SAMPLER_TEMPERATURE, TN_SAMPLER_KINDS,
    TN_SPEC_NONE, TN_SPEC_NGRAM, TN_SPEC_DRAFT, TN_SPEC_MTP, TN_SPEC_EAGLE3, TN_SPEC_CALLBACK, TN_SPEC_KINDS, TN_RANK_DEVICES,
    TN_VERSION_MINOR, TN_VERSION_MAJOR, TN_GGUF_MAX_KEY, TN_GGUF_MAX_PARTS, TN_GGUF_DEFAULT_ALIGNMENT, TN_TOKENIZER_MAX_TEXT,
    TN_GGUF_MAX_TENSORS, TN_VERSION_PATCH, TN_GGUF_MAX_NAME, TN_TOKENIZER_MAX_TOKENS, TN_GGUF_MAX_KEYS, TN_GGUF_MAX_ALIGNMENT,
    TN_GGUF_MAX_NESTING,
) = (
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 0, 1, 2, 3, 4, 4, 10, 64, 64, 0,
    1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 34, 35, 39, 40, 63, 64, 0, 1,
    2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36,
    37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 66, 67, 68, 69,
    70, 71, 72, 73, 74, 75, 76, 77, 78, 79, 80, 81, 82, 83, 84, 85, 86, 87, 88, 89, 90, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,
    15, 0, 1, 2, 3, 0, 1, 0, 1, 1, 2, 4, 8, 16, 32, 64, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2, 3, 4, 2048, 0, 1, 2, 3, 0, 1, 2, 4096, 1024,
    0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 1, 2, 0, 1, 2, -1, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 0, 1, 0, 1, 2,
    3, 2, 3, 4, 2, 3, 4, 5, 6, 7, 2, 3, 4, 5, 6, 2, 3, 4, 5, 6, 7, 5, 3, 0, 1, 2, 3, 0, 1, 2, 3, 17, 48, 0, 1, 1, 2, 4, 8, 16, 32, 256, 0,
    1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 64, 0, 1, 2, 4096, -1, 0, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5,
    6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 1, 2, 4, 1, 2, 64, 8, -1, 0, 1, 2, 3, 4, 0, 1, 2, -1, -2, 32, 0, 1, 2, 0, 1, 2, 0, 1, 2, 3, 4,
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 16, 2, 0, 65535, 10000, 32, 2147418112, 131072, 0, 255, 16777216, 65536, 67108864,
    8,
)


class tn_allocator(Structure): pass
class tn_memory_stats(Structure): pass
class FILE(Structure): pass
class tn_arena(Structure): pass
class tn_tensor(Structure): pass
class tn_buffer(Structure): pass
class tn_location(Structure): pass
class tn_arena_params(Structure): pass
class tn_rope_params(Structure): pass
class tn_page_run(Structure): pass
class tn_attention_params(Structure): pass
class tn_select_params(Structure): pass
class tn_linear_attention_params(Structure): pass
class tn_conv_params(Structure): pass
class tn_pool_params(Structure): pass
class tn_custom_job(Structure): pass
class tn_op_params_scale(Structure): pass
class tn_op_params_clamp(Structure): pass
class tn_op_params_leaky_relu(Structure): pass
class tn_op_params_glu(Structure): pass
class tn_op_params_permute(Structure): pass
class tn_op_params_concat(Structure): pass
class tn_op_params_argsort(Structure): pass
class tn_op_params_top_k(Structure): pass
class tn_op_params_pad(Structure): pass
class tn_op_params_roll(Structure): pass
class tn_op_params_arange(Structure): pass
class tn_op_params_region(Structure): pass
class tn_op_params_norm(Structure): pass
class tn_op_params_soft_max(Structure): pass
class tn_op_params_diag_mask(Structure): pass
class tn_op_params_hadamard(Structure): pass
class tn_op_params_causal_conv(Structure): pass
class tn_op_params_upscale(Structure): pass
class tn_op_params_timestep(Structure): pass
class tn_op_params_custom(Structure): pass
class tn_op_params_mul_mat(Structure): pass
class tn_op_params(Union): pass
class tn_attention_sources(Structure): pass
class tn_graph(Structure): pass
class tn_fingerprint(Structure): pass
class tn_device(Structure): pass
class tn_buffer_type(Structure): pass
class tn_stream(Structure): pass
class tn_event(Structure): pass
class tn_program(Structure): pass
class tn_device_caps(Structure): pass
class tn_device_budget(Structure): pass
class tn_device_rates(Structure): pass
class tn_device_preset(Structure): pass
class tn_tensor_source(Structure): pass
class tn_threadpool(Structure): pass
class tn_stream_params(Structure): pass
class tn_cpu_mask(Structure): pass
class tn_threadpool_params(Structure): pass
class tn_gguf_str(Structure): pass
class tn_gguf_arr(Structure): pass
class tn_gguf_value_anonymous(Union): pass
class tn_gguf_value(Structure): pass
class tn_gguf_kv(Structure): pass
class tn_gguf(Structure): pass
class tn_gguf_params(Structure): pass
class tn_gguf_tensor(Structure): pass
class tn_gguf_writer(Structure): pass
class tn_gguf_writer_params(Structure): pass
class tn_gguf_rename(Structure): pass
class tn_gguf_copy_params(Structure): pass
class tn_pack_item(Structure): pass
class tn_pack_params(Structure): pass
class tn_pack_result(Structure): pass
class tn_pack_table(Structure): pass
class tn_picture_box(Structure): pass
class tn_picture(Structure): pass
class tn_placement_device(Structure): pass
class tn_placement_layer(Structure): pass
class tn_placement_params(Structure): pass
class tn_placement(Structure): pass
class tn_plan(Structure): pass
class tn_plan_memory(Structure): pass
class tn_plan_bins(Structure): pass
class tn_plan_params(Structure): pass
class tn_plan_entry(Structure): pass
class tn_plan_offset(Structure): pass
class tn_recompute_params(Structure): pass
class tn_recomputation(Structure): pass
class tn_linear_attention_sources(Structure): pass
class tn_selective_scan_sources(Structure): pass
class tn_rwkv7_sources(Structure): pass
class tn_sched(Structure): pass
class tn_sched_params(Structure): pass
class tn_sched_memory(Structure): pass
class tn_sched_info(Structure): pass
class tn_sched_stats(Structure): pass
class tn_device_speed(Structure): pass
class tn_measure_params(Structure): pass
class tn_predict_params(Structure): pass
class tn_prediction(Structure): pass
class tn_trainer(Structure): pass
class tn_trainer_params(Structure): pass
class tn_trainer_memory(Structure): pass
class tn_arch_class(Structure): pass
class tn_arch_constants(Structure): pass
class tn_arch_key(Structure): pass
class tn_arch(Structure): pass
class tn_arch_tensor(Structure): pass
class tn_net(Structure): pass
class tn_net_params(Structure): pass
class tn_tokenizer(Structure): pass
class tn_tokenizer_params(Structure): pass
class tn_tokens(Structure): pass
class tn_text(Structure): pass
class tn_detokenizer(Structure): pass
class tn_model(Structure): pass
class tn_session_plan(Structure): pass
class tn_session(Structure): pass
class tn_sampler(Structure): pass
class tn_adapter(Structure): pass
class tn_control_vector(Structure): pass
class tn_model_params(Structure): pass
class tn_model_info(Structure): pass
class tn_placement_override(Structure): pass
class tn_budget(Structure): pass
class tn_adapter_use(Structure): pass
class tn_control_use(Structure): pass
class tn_session_params(Structure): pass
class tn_fit_device(Structure): pass
class tn_checkpoint_plan(Structure): pass
class tn_fit(Structure): pass
class tn_plan_cache(Structure): pass
class tn_session_speed_params(Structure): pass
class tn_session_speed(Structure): pass
class tn_batch(Structure): pass
class tn_cache_usage(Structure): pass
class tn_prefix_usage(Structure): pass
class tn_prefix_info(Structure): pass
class tn_tier_usage(Structure): pass
class tn_adapter_info(Structure): pass
class tn_session_stats(Structure): pass
class tn_budget_params(Structure): pass
class tn_budget_choice(Structure): pass
class tn_budget_device(Structure): pass
class tn_budget_ladder(Structure): pass
class tn_chat_template(Structure): pass
class tn_chat_caps(Structure): pass
class tn_chat_params(Structure): pass
class tn_chat_prompt(Structure): pass
class tn_chat_event(Structure): pass
class tn_chat_parser(Structure): pass
class tn_grammar(Structure): pass
class tn_piece(Structure): pass
class tn_pieces(Structure): pass
class tn_grammar_state(Structure): pass
class tn_grammar_trigger(Structure): pass
class tn_grammar_state_params(Structure): pass
class tn_logit_bias(Structure): pass
class tn_sampler_params(Structure): pass
class tn_token_prob(Structure): pass
class tn_generator(Structure): pass
class tn_generator_params(Structure): pass
class tn_speculator(Structure): pass
class tn_guess(Structure): pass
class tn_spec_params(Structure): pass
class tn_spec_stats(Structure): pass
class tn_rank_device(Structure): pass
class tn_rank_resources(Structure): pass


tn_log_fn = CFUNCTYPE(None, c_void_p, c_int, c_char_p)
tn_custom_fn = CFUNCTYPE(None, POINTER(tn_custom_job))
tn_read_fn = CFUNCTYPE(c_int, c_void_p, c_size_t, c_void_p, c_size_t)
tn_abort_fn = CFUNCTYPE(c_bool, c_void_p)
tn_threadpool_fn = CFUNCTYPE(None, c_void_p, c_int, c_int)
tn_eval_fn = CFUNCTYPE(c_bool, c_void_p, POINTER(tn_tensor), c_bool)
tn_location_fn = CFUNCTYPE(c_bool, c_void_p, POINTER(tn_tensor), POINTER(tn_location))
tn_arch_tensor_fn = CFUNCTYPE(c_int, c_void_p, POINTER(tn_arch_tensor))
tn_logits_fn = CFUNCTYPE(c_bool, c_void_p, c_int32, POINTER(c_float), c_int32)
tn_chat_event_fn = CFUNCTYPE(c_int, c_void_p, POINTER(tn_chat_event))
tn_propose_fn = CFUNCTYPE(c_int, c_void_p, POINTER(tn_guess))


tn_allocator._fields_ = [
    ("alloc", CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_size_t)), ("free", CFUNCTYPE(None, c_void_p, c_void_p, c_size_t)),
    ("user", c_void_p),
]
tn_memory_stats._fields_ = [("allocations", c_uint64), ("live_blocks", c_uint64), ("live_bytes", c_uint64), ("peak_bytes", c_uint64)]
tn_op_params_scale._fields_ = [("scale", c_float), ("bias", c_float)]
tn_op_params_clamp._fields_ = [("min", c_float), ("max", c_float)]
tn_op_params_leaky_relu._fields_ = [("slope", c_float)]
tn_op_params_glu._fields_ = [("swapped", c_int32), ("alpha", c_float), ("limit", c_float)]
tn_op_params_permute._fields_ = [("axis", c_int32 * 4)]
tn_op_params_concat._fields_ = [("dim", c_int32)]
tn_op_params_argsort._fields_ = [("descending", c_int32)]
tn_op_params_top_k._fields_ = [("k", c_int32)]
tn_op_params_pad._fields_ = [("before", c_int32 * 4), ("after", c_int32 * 4)]
tn_op_params_roll._fields_ = [("shift", c_int32 * 4)]
tn_op_params_arange._fields_ = [("start", c_float), ("stop", c_float), ("step", c_float)]
tn_op_params_region._fields_ = [("nb1", c_uint64), ("nb2", c_uint64), ("nb3", c_uint64), ("offset", c_uint64)]
tn_op_params_norm._fields_ = [("eps", c_float), ("groups", c_int32)]
tn_op_params_soft_max._fields_ = [("scale", c_float), ("max_bias", c_float)]
tn_op_params_diag_mask._fields_ = [("n_past", c_int32)]
tn_op_params_hadamard._fields_ = [("block", c_int32)]
tn_rope_params._fields_ = [
    ("dims", c_int32), ("mode", c_int32), ("sections", c_int32 * 4), ("base", c_float), ("freq_scale", c_float), ("ext_factor", c_float),
    ("attn_factor", c_float), ("beta_fast", c_float), ("beta_slow", c_float), ("n_ctx_orig", c_int32), ("reverse", c_int32),
    ("exact_ramp", c_int32),
]
tn_attention_params._fields_ = [
    ("scale", c_float), ("soft_cap", c_float), ("max_bias", c_float), ("causal", c_int32), ("window", c_int32), ("chunk", c_int32),
    ("page", c_int32), ("window_after", c_int32), ("select_block", c_int32), ("bias_distance", c_int32), ("bias_bidirectional", c_int32),
]
tn_select_params._fields_ = [
    ("k", c_int32), ("block", c_int32), ("local", c_int32), ("causal", c_int32), ("window", c_int32), ("page", c_int32),
]
tn_linear_attention_params._fields_ = [("scale", c_float), ("delta", c_int32), ("tiled", c_int32)]
tn_op_params_causal_conv._fields_ = [("silu", c_int32)]
tn_conv_params._fields_ = [
    ("stride", c_int32 * 2), ("pad", c_int32 * 2), ("dilation", c_int32 * 2), ("groups", c_int32), ("is_2d", c_int32),
]
tn_pool_params._fields_ = [("kind", c_int32), ("kernel", c_int32 * 2), ("stride", c_int32 * 2), ("pad", c_int32 * 2)]
tn_op_params_upscale._fields_ = [("mode", c_int32)]
tn_op_params_timestep._fields_ = [("dim", c_int32), ("max_period", c_int32)]
tn_op_params_custom._fields_ = [("fn", tn_custom_fn), ("user", c_void_p), ("n_tasks", c_int32)]
tn_op_params_mul_mat._fields_ = [("precise", c_int32)]
tn_op_params._fields_ = [
    ("scale", tn_op_params_scale), ("clamp", tn_op_params_clamp), ("leaky_relu", tn_op_params_leaky_relu), ("glu", tn_op_params_glu),
    ("permute", tn_op_params_permute), ("concat", tn_op_params_concat), ("argsort", tn_op_params_argsort), ("top_k", tn_op_params_top_k),
    ("pad", tn_op_params_pad), ("roll", tn_op_params_roll), ("arange", tn_op_params_arange), ("region", tn_op_params_region),
    ("norm", tn_op_params_norm), ("soft_max", tn_op_params_soft_max), ("diag_mask", tn_op_params_diag_mask),
    ("hadamard", tn_op_params_hadamard), ("rope", tn_rope_params), ("attention", tn_attention_params), ("select", tn_select_params),
    ("linear_attention", tn_linear_attention_params), ("causal_conv", tn_op_params_causal_conv), ("conv", tn_conv_params),
    ("pool", tn_pool_params), ("upscale", tn_op_params_upscale), ("timestep", tn_op_params_timestep), ("custom", tn_op_params_custom),
    ("mul_mat", tn_op_params_mul_mat), ("bytes", c_ubyte * 64),
]
tn_tensor._fields_ = [
    ("type", c_int), ("op", c_int), ("flags", c_uint32), ("n_dims", c_int32), ("ne", c_int64 * 4), ("nb", c_size_t * 4),
    ("params", tn_op_params), ("src", POINTER(tn_tensor) * 10), ("view_src", POINTER(tn_tensor)), ("view_offset", c_size_t),
    ("data", c_void_p), ("buffer", POINTER(tn_buffer)), ("extra", c_void_p), ("location", POINTER(tn_location)), ("name", c_char * 64),
]
tn_location._fields_ = [("type", POINTER(tn_buffer_type)), ("usage", c_int)]
tn_arena_params._fields_ = [("size", c_size_t), ("memory", c_void_p), ("no_alloc", c_bool), ("repeatable", c_bool)]
tn_page_run._fields_ = [("cell", c_int32), ("count", c_int32), ("first", c_int32), ("divisor", c_int32)]
tn_custom_job._fields_ = [("result", POINTER(tn_tensor)), ("ith", c_int), ("nth", c_int), ("user", c_void_p)]
tn_attention_sources._fields_ = [
    ("q", POINTER(tn_tensor)), ("k", POINTER(tn_tensor)), ("v", POINTER(tn_tensor)), ("q_pos", POINTER(tn_tensor)),
    ("pages", POINTER(tn_tensor)), ("mask", POINTER(tn_tensor)), ("sinks", POINTER(tn_tensor)), ("selected", POINTER(tn_tensor)),
    ("bias_table", POINTER(tn_tensor)),
]
tn_fingerprint._fields_ = [("lo", c_uint64), ("hi", c_uint64)]
tn_device_caps._fields_ = [
    ("async", c_bool), ("events", c_bool), ("host_buffers", c_bool), ("wrap_host", c_bool), ("unified", c_bool), ("repeatable", c_bool),
    ("described", c_bool),
]
tn_device_budget._fields_ = [
    ("domain", c_size_t), ("free", c_size_t), ("total", c_size_t), ("domain_free", c_size_t), ("domain_total", c_size_t),
    ("reported", c_bool),
]
tn_device_rates._fields_ = [
    ("read", c_double), ("f32", c_double), ("f16", c_double), ("i8", c_double), ("link", c_double), ("launch", c_double),
]
tn_device_preset._fields_ = [
    ("name", c_char_p), ("title", c_char_p), ("memory", c_size_t), ("limit", c_size_t), ("unified", c_bool), ("rates", tn_device_rates),
]
tn_tensor_source._fields_ = [("tensor", POINTER(tn_tensor)), ("read", tn_read_fn), ("user", c_void_p)]
tn_stream_params._fields_ = [("n_threads", c_int), ("threads", POINTER(tn_threadpool)), ("abort", tn_abort_fn), ("abort_user", c_void_p)]
tn_cpu_mask._fields_ = [("words", c_uint64 * 16)]
tn_threadpool_params._fields_ = [
    ("n_threads", c_int), ("poll", c_int), ("priority", c_int), ("mask", tn_cpu_mask), ("strict", c_bool), ("numa", c_int),
    ("paused", c_bool), ("n_decode", c_int),
]
tn_gguf_str._fields_ = [("data", c_char_p), ("size", c_size_t)]
tn_gguf_arr._fields_ = [("data", c_void_p), ("count", c_uint64), ("type", c_int)]
tn_gguf_value_anonymous._fields_ = [
    ("u", c_uint64), ("i", c_int64), ("f", c_double), ("b", c_bool), ("str", tn_gguf_str), ("arr", tn_gguf_arr),
]
tn_gguf_value._anonymous_ = ["anonymous"]
tn_gguf_value._fields_ = [("type", c_int), ("anonymous", tn_gguf_value_anonymous)]
tn_gguf_kv._fields_ = [("key", tn_gguf_str), ("value", tn_gguf_value)]
tn_gguf_params._fields_ = [("mode", c_int), ("one_part", c_bool), ("name", c_char_p)]
tn_gguf_tensor._fields_ = [
    ("name", c_char_p), ("type", c_int), ("n_dims", c_int), ("ne", c_int64 * 4), ("size", c_size_t), ("file_offset", c_uint64),
    ("part", c_int), ("data", c_void_p),
]
tn_gguf_writer_params._fields_ = [("part_bytes", c_uint64), ("no_data", c_bool)]
tn_gguf_rename._fields_ = [("from", c_char_p), ("to", c_char_p)]
tn_gguf_copy_params._fields_ = [
    ("set", POINTER(tn_gguf_kv)), ("set_count", c_size_t), ("remove", POINTER(c_char_p)), ("remove_count", c_size_t),
    ("rename", POINTER(tn_gguf_rename)), ("rename_count", c_size_t), ("part_bytes", c_uint64), ("part_count", POINTER(c_int)),
    ("progress", CFUNCTYPE(c_bool, c_void_p, c_uint64, c_uint64)), ("user", c_void_p),
]
tn_pack_item._fields_ = [
    ("start", c_int64), ("end", c_int64), ("size", c_size_t), ("alignment", c_size_t), ("fixed", c_bool), ("chunk", c_uint32),
    ("offset", c_size_t),
]
tn_pack_params._fields_ = [
    ("effort", c_int), ("capacity", c_size_t), ("max_chunk", c_size_t), ("bins", POINTER(c_size_t)), ("n_bins", c_size_t),
    ("max_steps", c_uint64), ("time_limit", c_double), ("cancel", CFUNCTYPE(c_bool, c_void_p)), ("user", c_void_p),
]
tn_pack_result._fields_ = [
    ("count", c_size_t), ("offsets", POINTER(c_size_t)), ("chunks", POINTER(c_uint32)), ("chunk_count", c_size_t),
    ("chunk_sizes", POINTER(c_size_t)), ("size", c_size_t), ("reserved", c_size_t), ("live_peak", c_size_t), ("lower_bound", c_size_t),
    ("ratio", c_double), ("optimal", c_bool), ("steps", c_uint64), ("conflict_count", c_size_t), ("conflict", POINTER(c_size_t)),
]
tn_pack_table._fields_ = [("count", c_size_t), ("items", POINTER(tn_pack_item)), ("ids", POINTER(c_char_p)), ("memory", c_void_p)]
tn_picture_box._fields_ = [
    ("start", c_int64), ("end", c_int64), ("offset", c_size_t), ("size", c_size_t), ("chunk", c_uint32), ("kind", c_uint32),
    ("label", c_char_p), ("note", c_char_p),
]
tn_picture._fields_ = [
    ("title", c_char_p), ("box_count", c_size_t), ("boxes", POINTER(tn_picture_box)), ("chunk_count", c_size_t),
    ("chunk_sizes", POINTER(c_size_t)), ("kind_count", c_size_t), ("kinds", POINTER(c_char_p)), ("lower_bound", c_size_t),
]
tn_placement_device._fields_ = [
    ("name", c_char_p), ("free", c_size_t), ("fixed", c_size_t), ("speed", c_double), ("share", c_double), ("domain", c_size_t),
]
tn_placement_layer._fields_ = [("name", c_char_p), ("device", c_int), ("late", c_bool)]
tn_placement_params._fields_ = [
    ("devices", POINTER(tn_placement_device)), ("n_devices", c_size_t), ("layers", POINTER(tn_placement_layer)), ("n_layers", c_size_t),
    ("bytes", POINTER(c_size_t)), ("n_off_host", c_int64), ("domain_free", POINTER(c_size_t)), ("n_domains", c_size_t),
]
tn_placement._fields_ = [("device", c_int), ("cause", c_int)]
tn_plan_memory._fields_ = [("name", c_char_p), ("alignment", c_size_t), ("max_chunk", c_size_t)]
tn_plan_bins._fields_ = [("sizes", POINTER(c_size_t)), ("count", c_size_t)]
tn_plan_params._fields_ = [
    ("memories", POINTER(tn_plan_memory)), ("n_memories", c_size_t), ("memory_of", POINTER(c_uint16)),
    ("tensor_size", CFUNCTYPE(c_size_t, c_void_p, c_size_t, POINTER(tn_tensor))),
    ("inplace_mask", CFUNCTYPE(c_uint32, c_void_p, POINTER(tn_tensor), c_size_t)), ("user", c_void_p), ("bins", POINTER(tn_plan_bins)),
    ("pack", tn_pack_params),
]
tn_plan_entry._fields_ = [
    ("memory", c_int32), ("chunk", c_uint32), ("offset", c_size_t), ("size", c_size_t), ("first", c_uint32), ("last", c_uint32),
    ("inplace_of", c_uint32),
]
tn_plan_offset._fields_ = [("memory", c_int32), ("chunk", c_uint32), ("offset", c_uint64), ("size", c_uint64)]
tn_recompute_params._fields_ = [
    ("plan", POINTER(tn_plan_params)), ("budgets", POINTER(c_size_t)), ("seconds", CFUNCTYPE(c_double, c_void_p, POINTER(tn_tensor))),
    ("user", c_void_p),
]
tn_recomputation._fields_ = [
    ("arena", POINTER(tn_arena)), ("graph", POINTER(tn_graph)), ("origin", POINTER(c_uint32)), ("n_recomputed", c_size_t),
    ("before", c_size_t), ("after", c_size_t), ("smallest", c_size_t), ("seconds", c_double), ("added_seconds", c_double),
]
tn_linear_attention_sources._fields_ = [
    ("q", POINTER(tn_tensor)), ("k", POINTER(tn_tensor)), ("v", POINTER(tn_tensor)), ("g", POINTER(tn_tensor)),
    ("beta", POINTER(tn_tensor)), ("u", POINTER(tn_tensor)), ("state", POINTER(tn_tensor)), ("steps", POINTER(tn_tensor)),
]
tn_selective_scan_sources._fields_ = [
    ("x", POINTER(tn_tensor)), ("dt", POINTER(tn_tensor)), ("A", POINTER(tn_tensor)), ("B", POINTER(tn_tensor)),
    ("C", POINTER(tn_tensor)), ("state", POINTER(tn_tensor)), ("steps", POINTER(tn_tensor)),
]
tn_rwkv7_sources._fields_ = [
    ("r", POINTER(tn_tensor)), ("w", POINTER(tn_tensor)), ("k", POINTER(tn_tensor)), ("v", POINTER(tn_tensor)), ("a", POINTER(tn_tensor)),
    ("b", POINTER(tn_tensor)), ("state", POINTER(tn_tensor)), ("steps", POINTER(tn_tensor)),
]
tn_sched_params._fields_ = [
    ("devices", c_char_p * 16), ("streams", POINTER(POINTER(tn_stream))), ("n_streams", c_size_t), ("n_threads", c_int),
    ("threads", POINTER(tn_threadpool)), ("pipeline", c_bool), ("n_in_flight", c_int), ("share", POINTER(tn_sched)),
    ("exclusive", c_bool), ("max_schedules", c_size_t), ("pack", POINTER(tn_pack_params)), ("reorder", c_bool), ("strict", c_bool),
    ("abort", tn_abort_fn), ("abort_user", c_void_p),
]
tn_sched_memory._fields_ = [
    ("compute", c_size_t), ("scratch", c_size_t), ("missing", c_size_t), ("lower_bound", c_size_t), ("in_order", c_size_t),
]
tn_sched_info._fields_ = [
    ("nodes", c_size_t), ("splits", c_size_t), ("copies", c_size_t), ("copy_bytes", c_size_t), ("in_flight", c_size_t),
]
tn_sched_stats._fields_ = [
    ("schedules_made", c_uint64), ("schedules_reused", c_uint64), ("schedules_forgotten", c_uint64), ("plans_made", c_uint64),
    ("plans_adopted", c_uint64), ("plans_reused", c_uint64), ("runs", c_uint64), ("schedules_reordered", c_uint64),
    ("buffers_grown", c_uint64), ("bytes_copied", c_uint64), ("split_ns", c_uint64), ("plan_ns", c_uint64), ("bind_ns", c_uint64),
    ("submit_ns", c_uint64),
]
tn_device_speed._fields_ = [
    ("read", c_double), ("read_mapped", c_double), ("move", c_double), ("multiply", c_double * 5 * 64), ("experts", c_double * 5),
    ("ramp", c_double), ("attention_keys", c_double * 3), ("attention_fixed", c_double), ("attention_many", c_double), ("link", c_double),
    ("launch", c_double * 3), ("run", c_double), ("given", c_bool),
]
tn_measure_params._fields_ = [
    ("n_threads", c_int), ("threads", POINTER(tn_threadpool)), ("types", POINTER(c_int)), ("n_types", c_size_t), ("seconds", c_double),
    ("progress", CFUNCTYPE(c_bool, c_void_p, c_size_t, c_size_t)), ("user", c_void_p),
]
tn_predict_params._fields_ = [("n_past", c_int64), ("n_seqs", c_int64), ("n_threads", c_int)]
tn_prediction._fields_ = [
    ("seconds", c_double), ("streams", c_double * 17), ("copies", c_double), ("multiply", c_double), ("attention", c_double),
    ("other", c_double), ("launch", c_double), ("bytes", c_double), ("operations", c_double), ("copy_bytes", c_double),
    ("nodes", c_size_t), ("limit", c_int),
]
tn_trainer_params._fields_ = [
    ("optimizer", c_int), ("rate", c_float), ("beta1", c_float), ("beta2", c_float), ("eps", c_float), ("momentum", c_float),
    ("decay", c_float), ("clip", c_float), ("accumulate", c_int32), ("devices", c_char_p * 16), ("n_threads", c_int),
    ("budget", c_size_t),
]
tn_trainer_memory._fields_ = [
    ("n_params", c_size_t), ("state", c_size_t), ("compute", c_size_t), ("scratch", c_size_t), ("saved", c_size_t),
    ("n_recomputed", c_size_t), ("added_time", c_double),
]
tn_arch_class._fields_ = [("name", c_char_p), ("traits", c_uint32), ("entry", c_char_p)]
tn_arch_constants._fields_ = [
    ("window", c_uint32), ("kv_heads", c_uint32), ("softcap_attention", c_float), ("softcap_output", c_float), ("scale_output", c_float),
    ("scale_residual", c_float), ("scale_embedding", c_float), ("scale_attention", c_float), ("alibi", c_float),
]
tn_arch_key._fields_ = [("name", c_char_p), ("unit", c_int), ("value", c_double), ("pattern", c_char_p)]
tn_arch._fields_ = [
    ("name", c_char_p), ("traits", c_uint64), ("rotated", c_float), ("window_period", c_int), ("full_first", c_bool),
    ("default_window", c_uint32), ("fewest_layers", c_int), ("one_ffn_key", c_bool), ("parallel_key", c_bool), ("output_q8_0", c_bool),
    ("experts_sum_to_one", c_bool), ("typical", tn_arch_constants), ("keys", POINTER(tn_arch_key)), ("classes", tn_arch_class * 10),
]
tn_arch_tensor._fields_ = [("name", c_char_p), ("kind", c_int), ("need", c_int), ("n_dims", c_int), ("ne", c_int64 * 4)]
tn_net_params._fields_ = [("rank", c_int), ("n_ranks", c_int), ("timeout_ms", c_uint32), ("message_bytes", c_size_t), ("type", c_int)]
tn_tokenizer_params._fields_ = [("allow_unknown_pre", c_bool)]
tn_tokens._fields_ = [("ids", POINTER(c_int32)), ("count", c_size_t), ("capacity", c_size_t)]
tn_text._fields_ = [("bytes", POINTER(c_char)), ("length", c_size_t), ("capacity", c_size_t)]
tn_model_params._fields_ = [
    ("no_mmap", c_bool), ("vocab_only", c_bool), ("check_weights", c_bool), ("nextn", c_bool), ("head", c_bool),
    ("target", POINTER(tn_model)), ("net", POINTER(tn_net)), ("rank", c_int), ("n_ranks", c_int), ("shares", c_float * 64),
    ("by_layers", c_bool), ("stage_ranks", c_int), ("share_weights", c_bool),
]
tn_model_info._fields_ = [
    ("architecture", c_char_p), ("name", c_char_p), ("n_params", c_int64), ("bytes", c_size_t), ("n_vocab", c_int32),
    ("n_ctx_train", c_int32), ("n_embd", c_int32), ("n_layer", c_int32), ("n_head", c_int32), ("n_head_kv", c_int32), ("n_ff", c_int32),
    ("n_expert", c_int32), ("n_expert_used", c_int32), ("n_window", c_int32), ("n_nextn", c_int32), ("is_encoder", c_bool),
    ("is_causal", c_bool), ("is_recurrent", c_bool), ("pooling", c_int), ("n_labels", c_int32), ("chat_template", c_char_p),
]
tn_placement_override._fields_ = [("pattern", c_char_p), ("device", c_char_p)]
tn_budget._fields_ = [("device", c_char_p), ("bytes", c_size_t)]
tn_adapter_use._fields_ = [("adapter", POINTER(tn_adapter)), ("scale", c_float)]
tn_control_use._fields_ = [("vector", POINTER(tn_control_vector)), ("scale", c_float)]
tn_session_params._fields_ = [
    ("n_ctx", c_int32), ("page", c_int32), ("n_prefixes", c_int32), ("n_checkpoints", c_int32), ("checkpoint_every", c_int32),
    ("cache_ram", c_size_t), ("cache_disk", c_char_p), ("cache_disk_bytes", c_uint64), ("n_batch", c_int32), ("n_ubatch", c_int32),
    ("n_seqs", c_int32), ("n_guess", c_int32), ("n_branches", c_int32), ("states", c_bool), ("n_state_layers", c_int32),
    ("state_layers", c_int32 * 8), ("n_outputs", c_int32), ("n_candidates", c_int32), ("n_threads", c_int),
    ("threads", POINTER(tn_threadpool)), ("sched", POINTER(tn_sched)), ("cache_k", c_int), ("cache_v", c_int), ("cache_k_window", c_int),
    ("cache_v_window", c_int), ("cache_rotation", c_int), ("devices", c_char_p * 16), ("split", c_float * 16), ("n_pipeline", c_int),
    ("n_gpu_layers", c_int32), ("overrides", POINTER(tn_placement_override)), ("n_overrides", c_size_t), ("budgets", POINTER(tn_budget)),
    ("n_budgets", c_size_t), ("assume_free", c_bool), ("ffn_chunk", c_int32), ("repeatable", c_bool), ("no_repack", c_bool),
    ("embeddings", c_bool), ("pooling", c_int), ("rope_base", c_float), ("rope_scale", c_float), ("adapters", POINTER(tn_adapter_use)),
    ("controls", POINTER(tn_control_use)), ("n_adapters", c_size_t), ("n_controls", c_size_t), ("control_first", c_int32),
    ("control_last", c_int32), ("pack", POINTER(tn_pack_params)), ("progress", CFUNCTYPE(c_bool, c_void_p, c_size_t, c_size_t)),
    ("abort", tn_abort_fn), ("user", c_void_p), ("eval", tn_eval_fn), ("eval_user", c_void_p),
]
tn_fit_device._fields_ = [
    ("name", c_char_p), ("weights", c_size_t), ("cache", c_size_t), ("compute", c_size_t), ("scratch", c_size_t), ("adapters", c_size_t),
    ("staging", c_size_t), ("tier", c_size_t), ("own", c_size_t), ("pinned", c_size_t), ("mapped", c_size_t), ("lower_bound", c_size_t),
    ("in_order", c_size_t), ("free", c_size_t), ("total", c_size_t), ("domain", c_size_t), ("domain_free", c_size_t),
    ("domain_total", c_size_t), ("reported", c_bool), ("n_layers", c_int32),
]
tn_checkpoint_plan._fields_ = [("n", c_int32), ("every", c_int32), ("states", c_size_t), ("window", c_size_t)]
tn_fit._fields_ = [
    ("fits", c_bool), ("devices", POINTER(tn_fit_device)), ("n_devices", c_size_t), ("nodes_prefill", c_size_t),
    ("nodes_decode", c_size_t), ("splits_prefill", c_size_t), ("splits_decode", c_size_t),
]
tn_plan_cache._fields_ = [("folder", c_char_p), ("max_files", c_size_t), ("max_bytes", c_size_t), ("min_ms", c_int32)]
tn_session_speed_params._fields_ = [("prompt", c_int32), ("depth", c_int32), ("generate", c_int32)]
tn_session_speed._fields_ = [
    ("prompt", c_int32), ("depth", c_int32), ("prefill", c_double), ("decode", c_double), ("prefill_run", tn_prediction),
    ("decode_run", tn_prediction),
]
tn_batch._fields_ = [
    ("n_tokens", c_int32), ("tokens", POINTER(c_int32)), ("positions", POINTER(c_int32)), ("seqs", POINTER(c_int32)),
    ("outputs", POINTER(c_bool)), ("checkpoints", POINTER(c_bool)), ("states", POINTER(c_float)), ("guesses", POINTER(c_bool)),
    ("parents", POINTER(c_int32)), ("argmax", c_bool), ("candidates", c_bool),
]
tn_cache_usage._fields_ = [
    ("cells", c_int32), ("used", c_int32), ("peak", c_int32), ("page", c_int32), ("tokens", c_int32), ("pages", c_int32),
    ("free_pages", c_int32),
]
tn_prefix_usage._fields_ = [
    ("kept", c_int32), ("limit", c_int32), ("cells", c_int32), ("asked", c_uint64), ("taken", c_uint64), ("evicted", c_uint64),
    ("hits", c_uint64), ("misses", c_uint64),
]
tn_prefix_info._fields_ = [
    ("id", c_int32), ("tokens", c_int32), ("parent", c_int32), ("shared", c_int32), ("cells", c_int32), ("last_used", c_uint64),
]
tn_tier_usage._fields_ = [
    ("host_limit", c_size_t), ("host_bytes", c_size_t), ("disk_limit", c_uint64), ("disk_bytes", c_uint64), ("host_blocks", c_int32),
    ("disk_blocks", c_int32), ("host_tokens", c_uint64), ("disk_tokens", c_uint64), ("host_stored", c_uint64), ("disk_stored", c_uint64),
    ("dropped", c_uint64), ("disk_failed", c_uint64),
]
tn_adapter_info._fields_ = [
    ("path", c_char_p), ("name", c_char_p), ("alpha", c_float), ("rank", c_int32), ("n_weights", c_size_t), ("bytes", c_size_t),
    ("hash", c_uint64),
]
tn_session_stats._fields_ = [
    ("prompt_tokens", c_uint64), ("prompt_ns", c_uint64), ("generated_tokens", c_uint64), ("generated_ns", c_uint64),
    ("load_ns", c_uint64), ("sched", tn_sched_stats),
]
tn_budget_params._fields_ = [
    ("prefer", c_int), ("cache_types", POINTER(c_int)), ("n_cache_types", c_size_t), ("keep_cache_k", c_bool), ("keep_cache_v", c_bool),
    ("keep_ubatch", c_bool), ("frontier", c_bool), ("progress", CFUNCTYPE(c_bool, c_void_p, c_size_t, c_size_t)), ("user", c_void_p),
]
tn_budget_choice._fields_ = [
    ("n_ctx", c_int32), ("n_ubatch", c_int32), ("ffn_chunk", c_int32), ("cache_k", c_int), ("cache_v", c_int), ("n_layers", c_int32),
    ("n_host_experts", c_int32), ("fits", c_bool), ("chosen", c_bool), ("missing", c_size_t), ("prefill", c_double), ("decode", c_double),
    ("bytes", POINTER(c_size_t)),
]
tn_budget_device._fields_ = [("name", c_char_p), ("budget", c_size_t), ("free", c_size_t), ("total", c_size_t)]
tn_budget_ladder._fields_ = [
    ("choices", POINTER(tn_budget_choice)), ("n_choices", c_size_t), ("devices", POINTER(tn_budget_device)), ("n_devices", c_size_t),
    ("n_planned", c_size_t), ("prefer", c_int), ("wanted_ctx", c_int32), ("predicted", c_bool), ("note", c_char * 256),
]
tn_chat_caps._fields_ = [
    ("system_role", c_bool), ("text_content", c_bool), ("part_content", c_bool), ("null_content", c_bool), ("tools", c_bool),
    ("tool_calls", c_bool), ("tool_results", c_bool), ("parallel_calls", c_bool), ("object_arguments", c_bool), ("reasoning", c_bool),
    ("mutation", c_bool),
]
tn_chat_params._fields_ = [
    ("messages", c_char_p), ("tools", c_char_p), ("variables", c_char_p), ("bos_token", c_char_p), ("eos_token", c_char_p),
    ("tool_name", c_char_p), ("tool_choice", c_int), ("parallel_calls", c_bool), ("generation_prompt", c_bool),
    ("continue_final", c_bool), ("keep_reasoning", c_bool), ("format", c_char_p), ("now", c_int64),
]
tn_chat_event._fields_ = [("kind", c_int), ("call", c_size_t), ("text", c_char_p), ("length", c_size_t), ("id", c_char_p)]
tn_piece._fields_ = [("bytes", c_char_p), ("length", c_size_t)]
tn_grammar_trigger._fields_ = [("text", c_char_p), ("token", c_int32), ("included", c_bool)]
tn_grammar_state_params._fields_ = [
    ("grammar", POINTER(tn_grammar)), ("pieces", POINTER(tn_pieces)), ("triggers", POINTER(tn_grammar_trigger)), ("n_triggers", c_size_t),
    ("memory", c_size_t), ("masks", c_size_t),
]
tn_logit_bias._fields_ = [("token", c_int32), ("bias", c_float)]
tn_sampler_params._fields_ = [
    ("seed", c_uint64), ("chain", c_int * 9), ("n_chain", c_size_t), ("min_keep", c_size_t), ("temperature", c_float),
    ("dynamic_range", c_float), ("dynamic_exponent", c_float), ("top_k", c_int32), ("top_p", c_float), ("min_p", c_float),
    ("typical_p", c_float), ("top_n_sigma", c_float), ("xtc_probability", c_float), ("xtc_threshold", c_float),
    ("penalty_window", c_int32), ("repeat_penalty", c_float), ("frequency_penalty", c_float), ("presence_penalty", c_float),
    ("dry_multiplier", c_float), ("dry_base", c_float), ("dry_allowed_length", c_int32), ("dry_window", c_int32),
    ("dry_breakers", POINTER(c_char_p)), ("n_dry_breakers", c_size_t), ("mirostat", c_int32), ("mirostat_tau", c_float),
    ("mirostat_eta", c_float), ("logit_bias", POINTER(tn_logit_bias)), ("n_logit_bias", c_size_t), ("pieces", POINTER(tn_pieces)),
]
tn_token_prob._fields_ = [("token", c_int32), ("logprob", c_float)]
tn_generator_params._fields_ = [
    ("sampler", POINTER(tn_sampler)), ("decode_flags", c_uint), ("ignore_end", c_bool), ("stops", POINTER(c_char_p)),
    ("n_stops", c_size_t),
]
tn_guess._fields_ = [
    ("seq", c_int32), ("tokens", POINTER(c_int32)), ("n_tokens", c_int32), ("room", c_int32), ("sampler", POINTER(tn_sampler)),
    ("n", c_int32), ("guess", c_int32 * 64), ("probs", c_float * 64), ("tree", c_bool), ("parents", c_int32 * 64), ("at", c_int32),
]
tn_spec_params._fields_ = [
    ("kind", c_int), ("n_max", c_int32), ("n_min", c_int32), ("p_min", c_float), ("fixed", c_bool), ("ngram", c_int32),
    ("ngram_bytes", c_size_t), ("draft", POINTER(tn_session)), ("propose", tn_propose_fn), ("user", c_void_p),
]
tn_spec_stats._fields_ = [
    ("steps", c_uint64), ("guessed_steps", c_uint64), ("guessed", c_uint64), ("accepted", c_uint64), ("tried", c_uint64 * 64),
    ("right", c_uint64 * 64), ("propose_ns", c_uint64), ("saved_ns", c_int64), ("failed", c_bool),
]
tn_rank_device._fields_ = [("id", c_uint64), ("memory", c_uint64)]
tn_rank_resources._fields_ = [
    ("read", c_double), ("multiply", c_double), ("n_devices", c_int), ("devices", tn_rank_device * 16), ("model_bytes", c_uint64),
    ("machine", c_uint64),
]
