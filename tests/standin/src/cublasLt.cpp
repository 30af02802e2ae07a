// The functions of cuBLASLt for which doing nothing is not enough.
#include "fcu.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {
size_t cublasLtGetVersion() { return 130000; }
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, char* results, int* count) {
    memset(results, 0, 96); // cublasLtMatmulHeuristicResult_t: algorithm, workspace 0, state 0 (success)
    *count = 1;
    return 0;
}
int cublasLtMatmul(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*, void*,
                   void*, void*, const void*, void*, size_t, cudaStream_t stream) {
    fcu_library_kernel("cublasLtMatmul", stream);
    return 0;
}
}
