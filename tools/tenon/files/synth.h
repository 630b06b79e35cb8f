/* What synthetic models have in common: numbers by the name of a shape, and a vocabulary. */
#ifndef TENON_TOOL_SYNTH_H
#define TENON_TOOL_SYNTH_H

#include "files/layout.h"

/* Fills the layout from the name of a shape ("8b") or a list ("layers=4,width=512"), and checks it. TN_E_SYNTAX for
 * other texts, TN_E_INVALID for numbers that do not fit each other and for fewer than 512 tokens. */
tn_status synth_layout(const tn_arch *arch, const char *shape, struct layout *out);
/* Sets all tokenizer.* keys, for a vocabulary of `size` tokens. */
tn_status synth_vocab(tn_gguf_writer *writer, uint32_t size, bool encoder);

#endif
