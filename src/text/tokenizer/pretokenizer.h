/* Stages of pre-tokenizers that are implemented by code instead of a pattern. */
#ifndef TN_TEXT_TOKENIZER_PRETOKENIZER_H
#define TN_TEXT_TOKENIZER_PRETOKENIZER_H

/* Splits runs of digits into groups of three from the right: 12 345 678. */
#define TN__PRE_DIGIT_GROUPS "\x01"
/* The same, but only for runs that are not followed by a letter, mark, digit or underscore. */
#define TN__PRE_DIGIT_GROUPS_WORD "\x02"

#endif
