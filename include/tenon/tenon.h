/* The whole public interface in one include, C or C++. Authors of backends also include backend_impl.h.
 *
 * The first group is libtenon; the second needs libtenon-llm when its functions are called. */
#ifndef TENON_TENON_H
#define TENON_TENON_H

#include "tenon/backend.h"
#include "tenon/base.h"
#include "tenon/cpu.h"
#include "tenon/gguf.h"
#include "tenon/graph.h"
#include "tenon/pack.h"
#include "tenon/placement.h"
#include "tenon/plan.h"
#include "tenon/recompute.h"
#include "tenon/recurrent.h"
#include "tenon/sched.h"
#include "tenon/speed.h"
#include "tenon/tensor.h"
#include "tenon/train.h"

#include "tenon/arch.h"
#include "tenon/budget.h"
#include "tenon/chat.h"
#include "tenon/generate.h"
#include "tenon/grammar.h"
#include "tenon/llm.h"
#include "tenon/net/ranks.h"
#include "tenon/sampler.h"
#include "tenon/token.h"
#include "tenon/tokenizer.h"

#endif
