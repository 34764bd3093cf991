#pragma once

// Owns: what `llama-server --fit-print on` prints. Model, drafter and their contexts are made as the server would make
// them, without reading a weight or taking their memory, and their sizes are printed as one JSON object in a line:
// n_ctx, n_ctx_seq (tokens of a sequence) and places, by name of the device or "host", each with free and total bytes
// and, for target and drafter, the bytes of model, context and compute.

struct common_params;

// params: as parsed and completed for one server; a context size of 0 stands for the model's own. Prints to stdout and
// returns the exit code.
int lucebox_memory_plan_print(common_params & params);
