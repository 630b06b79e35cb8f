/* Ops of recurrent layers: convolutions over time, linear attention, selective scans.
 *
 * The state of a layer is a tensor of rows, f32[row size, rows], beside the KV cache. A row holds the state of a
 * sequence after one of its tokens: its current state, a snapshot, a checkpoint. An op reads the rows in which
 * sequences begin, processes all tokens of a batch and updates rows in place; its result is the output of the tokens.
 * The state must be memory of the caller. It is never copied to another device: the op runs where the state is.
 *
 * A batch may mix tokens of several sequences. `steps`, i32[4, tokens], links them; for every token
 *
 *   previous  the token before it in its sequence, or -1: it is the first of its sequence in this batch
 *   next      the token after it in its sequence, or -1: previous < own index < next
 *   read      where previous is -1, the row of the state to begin with; -1: zeros; -2: a padding row: its output is 0
 *             and it touches nothing
 *   write     the row that receives the state after this token, or -1
 *
 * Tokens linked in this way form a subsequence. Subsequences are processed one after another in the order of
 * their first tokens, so that one may begin with a row that an earlier one has written.
 *
 * No contents of the table cause accesses outside the state: a subsequence whose first token has another
 * `previous` or `read` is padding, a link is valid if both of its ends agree and it points forward, and a `write` out
 * of range is ignored. There are no gradients. */
#ifndef TENON_RECURRENT_H
#define TENON_RECURRENT_H

#include "tenon/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Indices in tn_tensor.src that all recurrent ops share, and of a token's entries in `steps`. */
enum { TN_RECURRENT_STATE, TN_RECURRENT_STEPS };
enum { TN_STEP_PREVIOUS, TN_STEP_NEXT, TN_STEP_READ, TN_STEP_WRITE };

/* Depth-wise convolution over the tokens of a sequence, width 2 to 8:
 *
 *   y[c,t] = bias[c] + Σ_j w[j,c] · x[c, t-(width-1)+j]     then silu(y) if asked for
 *
 * x f32[channels, tokens], w f32[width, channels], bias f32[channels] or NULL → f32[channels, tokens]. Tokens before
 * the batch are in the state, f32[(width-1)*channels, rows]: element j*channels + c of a row is channel c of the j-th
 * of the last width-1 tokens, oldest first. With width 2 and w = (1,0) the result is x of the token before: RWKV's
 * token shift. Rows of x may have gaps. */
TN_API tn_tensor *tn_causal_conv(tn_arena *a, tn_tensor *x, tn_tensor *w, tn_tensor *bias, tn_tensor *state,
                                 tn_tensor *steps, bool silu);
enum { TN_CONV_X = 2, TN_CONV_W, TN_CONV_BIAS };

/* Linear attention. Every value head has a state S[dk, dv] and for each token
 *
 *   S ← exp(g) · S                       g per head or per channel of k; NULL: no decay
 *   v' = beta · (v - Sᵀk)                with params.delta; otherwise v' = beta · v; beta NULL: 1
 *   S ← S + k v'ᵀ
 *   o = scale · Sᵀq
 *
 * With u (RWKV 6; not together with delta) the output is that of the state before the token, and the token itself
 * counts with u: o = scale · (S_before + (u⊙k) v'ᵀ)ᵀ q.
 *
 * Mamba-2 is q = C, k = B, v = dt·x, g = dt·A. Gated delta networks use delta; KDA delta and g per channel; lightning
 * attention and retention a constant g.
 *
 * q and k f32[dk, heads_k, tokens], v f32[dv, heads_v, tokens], g f32[1 or dk, heads_v, tokens], beta f32[1, heads_v,
 * tokens], u f32[dk, heads_v] → f32[dv, heads_v, tokens]. heads_v is a multiple of heads_k. Rows may have gaps. State
 * f32[dk*dv*heads_v, rows]: element (h*dv + j)*dk + i of a row is S[i,j] of head h. */
typedef struct tn_linear_attention_sources {
    tn_tensor *q, *k, *v;
    tn_tensor *g, *beta, *u; /* or NULL */
    tn_tensor *state, *steps;
} tn_linear_attention_sources;
TN_API tn_tensor *tn_linear_attention(tn_arena *a, const tn_linear_attention_sources *s,
                                      const tn_linear_attention_params *p);
enum { TN_LINEAR_Q = 2, TN_LINEAR_K, TN_LINEAR_V, TN_LINEAR_G, TN_LINEAR_BETA, TN_LINEAR_U };

/* Mamba-1. For each token and channel c
 *
 *   S[n,c] ← exp(dt[c] · A[n,c]) · S[n,c] + dt[c] · x[c] · B[n]
 *   y[c] = Σ_n S[n,c] · C[n]
 *
 * x and dt f32[inner, tokens], A f32[d_state, inner], B and C f32[d_state, tokens] → f32[inner, tokens]. State
 * f32[d_state*inner, rows]: element c*d_state + n of a row is S[n,c]. Rows may have gaps. */
typedef struct tn_selective_scan_sources {
    tn_tensor *x, *dt, *A, *B, *C;
    tn_tensor *state, *steps;
} tn_selective_scan_sources;
TN_API tn_tensor *tn_selective_scan(tn_arena *a, const tn_selective_scan_sources *s);
enum { TN_SCAN_X = 2, TN_SCAN_DT, TN_SCAN_A, TN_SCAN_B, TN_SCAN_C };

/* RWKV 7. Every head has a state S[d, d] and for each token
 *
 *   S ← S·diag(w) + (S a) bᵀ + v kᵀ     S a with the state before the token
 *   o = S r
 *
 * r, w, k, v, a, b f32[d, heads, tokens] → f32[d, heads, tokens]. w is the decay itself, between 0 and 1. State
 * f32[d*d*heads, rows]: element (h*d + j)*d + i of a row is row j and column i of S of head h. Rows may have gaps. */
typedef struct tn_rwkv7_sources {
    tn_tensor *r, *w, *k, *v, *a, *b;
    tn_tensor *state, *steps;
} tn_rwkv7_sources;
TN_API tn_tensor *tn_rwkv7(tn_arena *a, const tn_rwkv7_sources *s);
enum { TN_RWKV7_R = 2, TN_RWKV7_W, TN_RWKV7_K, TN_RWKV7_V, TN_RWKV7_A, TN_RWKV7_B };

#ifdef __cplusplus
}
#endif
#endif
