/* The predicted speed of a planned session, as text and JSON. */
#ifndef TENON_TOOL_SPEED_REPORT_H
#define TENON_TOOL_SPEED_REPORT_H

#include "engine/speed_cache.h"

#include "tenon/llm.h"

#include <jansson.h>

/* A line for prefill and decode, or why there is none. */
void print_predicted_speed(const tn_session_plan *plan, FILE *out);
/* An object, or null where a device is not measured. */
json_t *predicted_speed_json(const tn_session_plan *plan);
/* Measures the devices of a plan whose peaks are unknown. Returns an exit code. */
int measure_plan_devices(const tn_session_plan *plan, int n_threads);
/* A collective: every rank measures the devices that it computes with, all at the same time where they have equally
 * many. Returns an exit code. */
int measure_rank_devices(tn_net *net, const tn_session_params *params, int n_threads);

#endif
