// SPDX-License-Identifier: Apache-2.0
// sim_gpu: what the simulated libcuda offers beside CUDA, for the simulated runtime and for tests.
#pragma once

#include <cuda.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// How many accesses nothing ordered so far, and what is known of the first hundred in `text`, a
// line and more each.
unsigned long long vpmm_sim_gpu_hazards(char* text, size_t size);
// How many copies named both devices, as those without peer access do.
unsigned long long vpmm_sim_gpu_peer_copies();
// Work that takes time on `stream` and touches nothing.
CUresult vpmm_sim_gpu_launch(const char* name, unsigned long long duration_ns, CUstream stream);
// A line on stderr if VPMM_SIM_GPU_VERBOSE is set.
void vpmm_sim_gpu_say_unsupported(const char* function);

#ifdef __cplusplus
}
#endif
