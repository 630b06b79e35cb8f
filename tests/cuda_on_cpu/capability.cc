// The compute capability that a module was compiled for.
#include "queue.h"

int emul::capability() { return EMULATED_ARCH / 10; }
