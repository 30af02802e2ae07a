// Kernels: their registration by PyTorch's libraries, their launch, and what is asked about them.
#include "device.h"
#include <dlfcn.h>

static std::unordered_map<const void*, const char*>& kernels = *new std::unordered_map<const void*, const char*>;
static const char* name_of(const void* function) {
    Lock lock(mu);
    auto found = kernels.find(function);
    return found == kernels.end() ? "unknown_kernel" : found->second;
}
struct Configuration {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
};
static thread_local std::vector<Configuration> configurations;

extern "C" {
void** __cudaRegisterFatBinary(void*) {
    static void* handle;
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
    Lock lock(mu);
    kernels[host] = name;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream) {
    configurations.push_back({grid, block, shared, stream});
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
    Configuration c = configurations.back();
    configurations.pop_back();
    *grid = c.grid;
    *block = c.block;
    *shared = c.shared;
    *(cudaStream_t*)stream = c.stream;
    return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* out, const void* function) {
    *out = (cudaKernel_t)function;
    return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void**, size_t shared, cudaStream_t stream) {
    API(cudaLaunchKernel);
    if (!grid.x || !grid.y || !grid.z || !block.x || size_t(block.x) * block.y * block.z > 1024)
        FAIL(cudaErrorInvalidConfiguration);
    fcu_launch(name_of(function), stream, grid, block, shared, 1);
    return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 grid, dim3 block, void** args, size_t shared, cudaStream_t stream) {
    return cudaLaunchKernel((const void*)k, grid, block, args, shared, stream);
}
cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void**, size_t shared,
                                        cudaStream_t stream) {
    API(cudaLaunchCooperativeKernel);
    fcu_launch(name_of(function), stream, grid, block, shared, 1);
    return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* function, void**) {
    API(cudaLaunchKernelExC);
    fcu_launch(name_of(function), c->stream, c->gridDim, c->blockDim, c->dynamicSmemBytes, 1);
    return cudaSuccess;
}
void fcu_library_kernel_of(const char* name, cudaStream_t stream, double scale) { // what the other libraries launch
    API(cudaLaunchKernel);
    fcu_launch(name, stream, {132}, {128}, 0, scale);
}
void fcu_library_kernel(const char* name, cudaStream_t stream) { fcu_library_kernel_of(name, stream, 1); }
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void* data) {
    API(cudaLaunchHostFunc);
    fcu_op op = {};
    op.kind = FCU_HOST;
    op.fn = fn;
    op.data = data;
    submit(stream, op);
    return cudaSuccess;
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data, unsigned) {
    API(cudaStreamAddCallback);
    uint64_t when = real(stream)->free_at;
    std::thread([=] {
        fcu_wait_until(when);
        callback(stream, cudaSuccess, data);
    }).detach();
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, const void*) {
    API(cudaFuncGetAttributes);
    memset(out, 0, sizeof *out);
    out->maxThreadsPerBlock = 1024;
    out->numRegs = 32;
    out->ptxVersion = out->binaryVersion = 90;
    out->maxDynamicSharedSizeBytes = 49152;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
    API(cudaFuncSetAttribute);
    return cudaSuccess;
}
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute, int, int) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* out, const void*, int threads, size_t,
                                                                   unsigned) {
    API(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags);
    *out = std::max(1, std::min(32, 2048 / std::max(threads, 1)));
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* out, const void* f, int threads, size_t shared) {
    API(cudaOccupancyMaxActiveBlocksPerMultiprocessor);
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out, f, threads, shared, 0);
}
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** out, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
    static void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); // found beside this file, by its run path
    *out = driver ? dlsym(driver, name) : nullptr;
    if (driver && !*out) *out = dlsym(driver, (name + std::string("_v2")).c_str());
    if (!*out && verbose) fprintf(stderr, "fakecuda: the driver has no %s\n", name);
    if (status) *status = *out ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
}
