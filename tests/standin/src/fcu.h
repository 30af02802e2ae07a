// What the stand-in libraries share. The simulated device lives in cudart.cpp; the others call it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>

enum { FCU_KERNEL, FCU_MEMCPY, FCU_MEMSET, FCU_HOST };

struct fcu_op { // one piece of device work; times are nanoseconds of CLOCK_MONOTONIC
    int kind;
    const char* name; // kernels
    uint64_t start, end, duration;
    int device;
    uint32_t stream, correlation, graph;
    uint64_t node;
    dim3 grid, block;
    size_t shared;
    void* dst; // copies and sets
    const void* src;
    size_t bytes;
    int value, copy_kind, src_kind, dst_kind, async; // kinds as CUPTI numbers them
    cudaHostFn_t fn;
    void* data;
};

struct fcu_hooks { // set by the stand-in CUPTI while something is traced
    bool on;
    void (*enter)(uint32_t correlation);
    void (*api)(bool driver, uint32_t cbid, uint64_t start, uint64_t end, uint32_t correlation, int result);
    void (*op)(const fcu_op&);
    void (*sync)(int type, int device, uint32_t stream, uint32_t event, uint64_t start, uint64_t end,
                 uint32_t correlation);
    void (*event)(int device, uint32_t stream, uint32_t event, uint64_t when, uint32_t correlation);
    void (*context)(int device, void* context);
};

extern "C" {
extern fcu_hooks fcu_trace;
uint64_t fcu_now();
void fcu_wait_until(uint64_t when);
void fcu_launch(const char* name, cudaStream_t stream, dim3 grid, dim3 block, size_t shared, double scale);
void fcu_library_kernel(const char* name, cudaStream_t stream);
void fcu_library_kernel_of(const char* name, cudaStream_t stream, double scale);
void fcu_written(const void* to, size_t bytes);
void* fcu_context(int device); // makes it if it is not there yet
bool fcu_has_context(int device);
int fcu_devices();
void fcu_uuid(int device, char bytes[16]);
int fcu_attribute(int attribute);
uint32_t fcu_begin();
uint32_t fcu_correlation();
}

struct fcu_call { // the record of one API call; calls inside it count as part of it
    uint32_t cbid, correlation = 0;
    uint64_t start = 0;
    bool driver, outermost;
    int result = 0;
    fcu_call(uint32_t cbid, bool driver = false);
    ~fcu_call();
};
