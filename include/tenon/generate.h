/* Text generation: one object per sequence being generated, from a row of logits to a piece of text.
 *
 * A generator samples the next token, recognises the end of the text and stop strings, and turns tokens into text
 * that is valid UTF-8 at every step. It decodes nothing: the caller puts the sampled token of each of its generators
 * into one batch, so that any number of sequences share a decode.
 *
 *     status = tn_generator_sample(generator, session, row);         // row of the last decode
 *     fputs(tn_generator_text(generator, NULL), stdout);
 *     if (status == TN_OK) token = tn_generator_token(generator);    // goes into the next batch
 *
 * A generator belongs to one thread at a time; different generators may sample on different threads at once. For a
 * single sequence tn_session_next (llm.h) does all of this in one call. */
#ifndef TENON_GENERATE_H
#define TENON_GENERATE_H

#include "tenon/base.h"
#include "tenon/llm.h"
#include "tenon/sampler.h"
#include "tenon/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_generator tn_generator;

typedef struct tn_generator_params {
    tn_sampler *sampler;      /* not owned; may be set later with tn_generator_set_sampler */
    unsigned decode_flags;    /* TN_DECODE_… of the text */
    bool ignore_end;          /* tokens that end a text are tokens like any other */
    const char *const *stops; /* strings that end the text and are not part of it; copied */
    size_t n_stops;
} tn_generator_params;

/* The tokenizer must outlive the generator. */
TN_API tn_status tn_generator_new(const tn_tokenizer *tokenizer, const tn_generator_params *params,
                                  tn_generator **generator) TN_MUST_CHECK;
TN_API void tn_generator_free(tn_generator *generator); /* accepts NULL */
/* Begins a new text: forgets pending text, the end and the count. The sampler keeps its history. */
TN_API void tn_generator_restart(tn_generator *generator);
TN_API void tn_generator_set_sampler(tn_generator *generator, tn_sampler *sampler);

/* Samples the next token from output `row` of the session's last decode (negative: from the end); after a batch with
 * `argmax` the token is the argmax of the row. The sampler has then accepted the token.
 * TN_END: the text has ended, and there is no token to decode. It ended with a token that ends a text, or with a stop
 * string (tn_generator_stop). Once a text has ended, further calls sample nothing and return TN_END.
 * Errors are those of the sampler; no text comes with them. */
TN_API tn_status tn_generator_sample(tn_generator *generator, tn_session *session, int32_t row) TN_MUST_CHECK;
/* The same from logits that the caller holds. */
TN_API tn_status tn_generator_sample_logits(tn_generator *generator, const float *logits,
                                            size_t n_vocab) TN_MUST_CHECK;

/* The token sampled last, the one to decode next; TN_TOKEN_NONE before the first. */
TN_API tn_token tn_generator_token(const tn_generator *generator);
/* The text that became certain with the last sample: whole characters only, without anything that could still be the
 * beginning of a stop string; at the end of the text all that was held back. Followed by a NUL; maybe empty. Valid
 * until the next call that changes the generator. `length` may be NULL. */
TN_API const char *tn_generator_text(const tn_generator *generator, size_t *length);
/* Ends the text where it stands, as a limit does, and returns what was held back; "" if it has ended already. */
TN_API const char *tn_generator_finish(tn_generator *generator, size_t *length);
/* Index of the stop string that ended the text; -1 if none did. */
TN_API int tn_generator_stop(const tn_generator *generator);
/* Tokens of the text so far; one that ended it does not count. */
TN_API int64_t tn_generator_count(const tn_generator *generator);

#ifdef __cplusplus
}
#endif
#endif
