/* Properties of ops, generated from TN_OP_TABLE. */
#include "tenon/recurrent.h"

typedef struct op_row {
    const char *name, *symbol;
    int8_t min, max;
    tn_op_family family;
    uint32_t inplace;
} op_row;

static const op_row rows[TN_OP_COUNT] = {
#define TN_X(NAME, name, symbol, min, max, family, inplace)                                                          \
    [TN_OP_##NAME] = {#name, symbol, min, max, TN_FAMILY_##family, inplace},
    TN_OP_TABLE(TN_X)
#undef TN_X
};
static const op_row unknown = {"?", "?", 0, 0, TN_FAMILY_LEAF, 0};

static const op_row *op_row_of(tn_op op) { return (unsigned)op < TN_OP_COUNT ? &rows[op] : &unknown; }

const char *tn_op_name(tn_op op) { return op_row_of(op)->name; }
const char *tn_op_symbol(tn_op op) { return op_row_of(op)->symbol; }
tn_op_family tn_op_get_family(tn_op op) { return op_row_of(op)->family; }
int tn_op_min_sources(tn_op op) { return op_row_of(op)->min; }
int tn_op_max_sources(tn_op op) { return op_row_of(op)->max; }
uint32_t tn_op_inplace_mask(tn_op op) { return op_row_of(op)->inplace; }
int tn_op_written_source(tn_op op) { return op_row_of(op)->family == TN_FAMILY_RECURRENT ? TN_RECURRENT_STATE : -1; }
