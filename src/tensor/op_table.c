/* The op table's names and rules, generated from TN_OP_TABLE. */
#include "tenon/tensor.h"

typedef struct op_row {
    const char *name, *symbol;
    int8_t least, most;
    tn_op_family family;
    uint32_t inplace;
} op_row;

static const op_row rows[TN_OP_COUNT] = {
#define TN_X(NAME, name, symbol, least, most, family, inplace)                                                       \
    [TN_OP_##NAME] = {#name, symbol, least, most, TN_FAMILY_##family, inplace},
    TN_OP_TABLE(TN_X)
#undef TN_X
};
static const op_row unknown = {"?", "?", 0, 0, TN_FAMILY_LEAF, 0};

static const op_row *row(tn_op op) { return (unsigned)op < TN_OP_COUNT ? &rows[op] : &unknown; }

const char *tn_op_name(tn_op op) { return row(op)->name; }
const char *tn_op_symbol(tn_op op) { return row(op)->symbol; }
tn_op_family tn_op_get_family(tn_op op) { return row(op)->family; }
int tn_op_least_sources(tn_op op) { return row(op)->least; }
int tn_op_most_sources(tn_op op) { return row(op)->most; }
uint32_t tn_op_inplace_mask(tn_op op) { return row(op)->inplace; }
