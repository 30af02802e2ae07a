// Stand-in for libcuda.so.1: the few driver calls that PyTorch makes.
#include <cuda.h>
#include "fcu.h"
#include "cbid.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <unordered_map>

#define CALL(name) fcu_call call(FCU_CBID_##name, true)

struct Function {
    std::string name;
};
static thread_local CUcontext current;

extern "C" {
CUresult cuInit(unsigned) { return fcu_devices() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }
CUresult cuDriverGetVersion(int* version) {
    *version = 13000;
    return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult e, const char** text) {
    *text = e ? "an error of the stand-in CUDA driver" : "no error";
    return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult e, const char** text) {
    *text = e ? "CUDA_ERROR" : "CUDA_SUCCESS";
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
    *count = fcu_devices();
    return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* out, int index) {
    *out = index;
    return index < fcu_devices() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetAttribute(int* out, CUdevice_attribute attribute, CUdevice) {
    *out = fcu_attribute(attribute);
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* out, int length, CUdevice) {
    snprintf(out, length, "NVIDIA H100 80GB HBM3 (stand-in)");
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid_v2(CUuuid* out, CUdevice index) {
    fcu_uuid(index, out->bytes);
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice index, unsigned* flags, int* active) {
    *flags = 0;
    *active = fcu_has_context(index);
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice index) {
    *out = (CUcontext)fcu_context(index);
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext* out) {
    int index = 0;
    cudaGetDevice(&index);
    *out = current ? current : fcu_has_context(index) ? (CUcontext)fcu_context(index) : nullptr;
    return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
    current = context;
    return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent_v2(CUcontext context) {
    current = context;
    return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent_v2(CUcontext* out) {
    *out = current;
    return CUDA_SUCCESS;
}
CUresult cuCtxSetLimit(CUlimit, size_t) { return CUDA_SUCCESS; }
CUresult cuCtxGetLimit(size_t* out, CUlimit) {
    *out = 0;
    return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* out) {
    int index;
    cudaGetDevice(&index);
    *out = index;
    return CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void* out, CUpointer_attribute attribute, CUdeviceptr pointer) {
    *(CUdeviceptr*)out = attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER ? pointer : 0;
    return CUDA_SUCCESS;
}
CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr pointer) {
    if (base) *base = pointer;
    if (size) *size = 0;
    return CUDA_SUCCESS;
}
CUresult cuMemGetInfo_v2(size_t* free, size_t* total) { return (CUresult)cudaMemGetInfo(free, total); }

// What NVRTC and Triton compile is loaded as nothing, and runs as nothing.
static CUresult load(CUmodule* out) {
    static int module;
    *out = (CUmodule)&module;
    return CUDA_SUCCESS;
}
CUresult cuModuleLoad(CUmodule* out, const char*) { return load(out); }
CUresult cuModuleLoadData(CUmodule* out, const void*) { return load(out); }
CUresult cuModuleLoadDataEx(CUmodule* out, const void*, unsigned, CUjit_option*, void**) { return load(out); }
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* out, CUmodule, const char* name) {
    *out = (CUfunction) new Function{name};
    return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* out, CUfunction_attribute attribute, CUfunction) {
    *out = attribute == CU_FUNC_ATTRIBUTE_NUM_REGS                ? 32
           : attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
                                                                  : 0;
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* out, CUfunction, int threads, size_t) {
    *out = 2048 / (threads > 0 ? threads : 1);
    return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveClusters(int* out, CUfunction, const CUlaunchConfig*) {
    *out = 1;
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void**, void**) {
    CALL(cuLaunchKernel);
    fcu_launch(((Function*)f)->name.c_str(), (cudaStream_t)stream, {gx, gy, gz}, {bx, by, bz}, shared, 1);
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction f, void**, void**) {
    CALL(cuLaunchKernelEx);
    fcu_launch(((Function*)f)->name.c_str(), (cudaStream_t)c->hStream, {c->gridDimX, c->gridDimY, c->gridDimZ},
               {c->blockDimX, c->blockDimY, c->blockDimZ}, c->sharedMemBytes, 1);
    return CUDA_SUCCESS;
}
CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                   unsigned bz, unsigned shared, CUstream stream, void** args) {
    return cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream, args, nullptr);
}
CUresult cuLinkCreate_v2(unsigned, CUjit_option*, void**, CUlinkState* out) {
    *out = (CUlinkState)&current;
    return CUDA_SUCCESS;
}
CUresult cuLinkAddData_v2(CUlinkState, CUjitInputType, void*, size_t, const char*, unsigned, CUjit_option*, void**) {
    return CUDA_SUCCESS;
}
CUresult cuLinkComplete(CUlinkState, void** out, size_t* size) {
    *out = &current;
    *size = 8;
    return CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
    return CUDA_SUCCESS;
}
CUresult cuMemsetD32Async(CUdeviceptr p, unsigned value, size_t count, CUstream) {
    for (size_t i = 0; i < count; i++) ((unsigned*)p)[i] = value;
    return CUDA_SUCCESS;
}

// Virtual memory (expandable segments): the address range is the memory.
CUresult cuMemGetAllocationGranularity(size_t* out, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
    *out = 2 << 20;
    return CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr* out, size_t size, size_t, CUdeviceptr, unsigned long long) {
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *out = (CUdeviceptr)memory;
    return memory == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr p, size_t size) {
    munmap((void*)p, size);
    return CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* out, size_t size, const CUmemAllocationProp*, unsigned long long) {
    *out = size;
    return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle) { return CUDA_SUCCESS; }
CUresult cuMemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) {
    return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr, size_t) { return CUDA_SUCCESS; }
CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }
}
