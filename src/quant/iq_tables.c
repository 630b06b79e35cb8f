/* Lattice tables of the iq types on the host. */
#include "quant/quant.h"

#define TN__LATTICE const
#include "quant/iq_lattices.h"
