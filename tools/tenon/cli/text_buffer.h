/* Appending to a growing text. */
#ifndef TENON_TOOL_TEXT_BUFFER_H
#define TENON_TOOL_TEXT_BUFFER_H

#include "tenon/tokenizer.h"

/* Appends bytes and keeps a NUL behind them. On TN_E_NOMEM the text is unchanged. tn_text_free() releases it. */
tn_status text_append(tn_text *text, const void *bytes, size_t length);

#endif
