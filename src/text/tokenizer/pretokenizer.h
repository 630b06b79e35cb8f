/* Stages of pre-tokenizers that code does instead of a pattern. */
#ifndef TN_LLM_TOKENIZER_PRE_H
#define TN_LLM_TOKENIZER_PRE_H

/* Runs of digits in groups of three from the right: 12 345 678. */
#define TN__PRE_DIGIT_GROUPS "\x01"
/* The same for runs that no letter, mark, digit or underscore follows; other runs stay whole. */
#define TN__PRE_DIGIT_GROUPS_WORD "\x02"

#endif
