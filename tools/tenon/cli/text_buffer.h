/* Appending to growing texts and lists of tokens. */
#ifndef TENON_TOOL_TEXT_BUFFER_H
#define TENON_TOOL_TEXT_BUFFER_H

#include "tenon/tokenizer.h"

/* On TN_E_NOMEM the text or list is unchanged. tn_text_free() and tn_tokens_free() release them. */
tn_status text_append(tn_text *text, const void *bytes, size_t length); /* keeps a NUL behind the text */
tn_status tokens_append(tn_tokens *tokens, const tn_token *ids, size_t count);

#endif
