// Memory of the stand-in device: host memory, zeroed when it is new. Copies happen at once, and are booked as if later.
#include "device.h"
#include <sys/mman.h>

struct Block {
    size_t bytes;
    cudaMemoryType type;
    int device;
};
static std::map<uintptr_t, Block>& blocks = *new std::map<uintptr_t, Block>;

static const Block* find(const void* pointer, uintptr_t* base = nullptr) {
    Lock lock(mu);
    auto at = blocks.upper_bound((uintptr_t)pointer);
    if (at == blocks.begin() || (uintptr_t)pointer >= std::prev(at)->first + std::prev(at)->second.bytes)
        return nullptr;
    if (base) *base = std::prev(at)->first;
    return &std::prev(at)->second;
}
cudaError_t allocate(void** out, size_t bytes, cudaMemoryType type) {
    *out = nullptr;
    if (!bytes) return cudaSuccess;
    Lock lock(mu);
    fcu_context(device);
    if (type == cudaMemoryTypeDevice && used[device] + bytes > total_bytes) return cudaErrorMemoryAllocation;
    size_t size = (bytes + 4095) & ~4095ul;
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return cudaErrorMemoryAllocation;
    blocks[(uintptr_t)memory] = {size, type, device};
    if (type == cudaMemoryTypeDevice) used[device] += size;
    *out = memory;
    return cudaSuccess;
}
cudaError_t release(void* pointer) {
    Lock lock(mu);
    auto at = blocks.find((uintptr_t)pointer);
    if (at == blocks.end()) return cudaErrorInvalidValue;
    if (at->second.type == cudaMemoryTypeDevice) used[at->second.device] -= at->second.bytes;
    munmap(pointer, at->second.bytes);
    blocks.erase(at);
    return cudaSuccess;
}
static int memory_kind(const void* pointer) { // as CUPTI numbers them: 1 pageable, 2 pinned, 3 device
    const Block* block = find(pointer);
    return !block ? 1 : block->type == cudaMemoryTypeHost ? 2 : 3;
}
static fcu_op copy(void* dst, const void* src, size_t bytes, bool async) {
    fcu_op op = {};
    op.kind = FCU_MEMCPY;
    op.dst = dst;
    op.src = src;
    op.bytes = bytes;
    op.async = async;
    op.src_kind = memory_kind(src);
    op.dst_kind = memory_kind(dst);
    bool from = op.src_kind == 3, to = op.dst_kind == 3;
    op.copy_kind = from && to ? 8 : from ? 2 : to ? 1 : 9;
    op.duration = 1500 + bytes / (from && to ? device_bytes_per_ns / 2 : host_bytes_per_ns);
    return op;
}
// Copies wait as on a device: those to and from pageable memory do, save small uploads, which are staged.
static void copy_on(cudaStream_t stream, const fcu_op& op) {
    CUstream_st* s = submit(stream, op);
    if (s->capture) return;
    bool pageable = op.src_kind == 1 || op.dst_kind == 1;
    if (op.copy_kind == 8 || (op.async && !pageable) || (op.copy_kind == 1 && op.src_kind == 1 && op.bytes <= 65536))
        return;
    waits++;
    fcu_wait_until(s->free_at);
}

struct Symbol {
    size_t bytes;
    void* memory;
};
static std::unordered_map<const void*, Symbol>& symbols = *new std::unordered_map<const void*, Symbol>;

extern "C" {
void __cudaRegisterVar(void**, char* host, char*, const char*, int, size_t bytes, int, int) {
    Lock lock(mu);
    symbols[host] = {bytes, nullptr};
}
cudaError_t cudaMalloc(void** out, size_t bytes) {
    API(cudaMalloc);
    if (breaks_capture()) FAIL(cudaErrorStreamCaptureUnsupported);
    if (cudaError_t e = allocate(out, bytes, cudaMemoryTypeDevice)) FAIL(e);
    return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
    API(cudaFree);
    if (!pointer) {
        fcu_context(device);
        return cudaSuccess;
    }
    if (breaks_capture()) FAIL(cudaErrorStreamCaptureUnsupported);
    waits++;
    fcu_wait_until(drained(device));
    if (cudaError_t e = release(pointer)) FAIL(e);
    return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** out, size_t bytes, cudaStream_t) {
    API(cudaMallocAsync);
    if (cudaError_t e = allocate(out, bytes, cudaMemoryTypeDevice)) FAIL(e);
    return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) {
    API(cudaFreeAsync);
    release(pointer);
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** out, size_t bytes, unsigned) {
    API(cudaHostAlloc);
    if (breaks_capture()) FAIL(cudaErrorStreamCaptureUnsupported);
    if (cudaError_t e = allocate(out, bytes, cudaMemoryTypeHost)) FAIL(e);
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) {
    API(cudaFreeHost);
    release(pointer);
    return cudaSuccess;
}
cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
    API(cudaHostRegister);
    Lock lock(mu);
    blocks[(uintptr_t)pointer] = {bytes, cudaMemoryTypeHost, device};
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* pointer) {
    API(cudaHostUnregister);
    Lock lock(mu);
    blocks.erase((uintptr_t)pointer);
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    API(cudaMemGetInfo);
    *total = total_bytes;
    *free = total_bytes - used[device];
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* pointer) {
    memset(out, 0, sizeof *out);
    const Block* block = find(pointer);
    out->type = block ? block->type : cudaMemoryTypeUnregistered;
    out->device = block ? block->device : -1;
    if (block) out->devicePointer = (void*)pointer;
    if (block && block->type == cudaMemoryTypeHost) out->hostPointer = (void*)pointer;
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
    API(cudaMemcpyAsync);
    copy_on(stream, copy(dst, src, bytes, true));
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind) {
    API(cudaMemcpy);
    if (breaks_capture()) FAIL(cudaErrorStreamCaptureUnsupported);
    copy_on(nullptr, copy(dst, src, bytes, false));
    return cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void* dst, int, const void* src, int, size_t bytes, cudaStream_t stream) {
    API(cudaMemcpyPeerAsync);
    copy_on(stream, copy(dst, src, bytes, true));
    return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* dst, size_t dpitch, const void* src, size_t spitch, size_t width, size_t height,
                              cudaMemcpyKind, cudaStream_t stream) {
    API(cudaMemcpy2DAsync);
    for (size_t row = 0; row < height; row++)
        memmove((char*)dst + row * dpitch, (const char*)src + row * spitch, width);
    fcu_op op = copy(dst, src, width * height, true);
    op.bytes = 0;
    copy_on(stream, op);
    return cudaSuccess;
}
cudaError_t cudaMemset(void* pointer, int value, size_t bytes) {
    API(cudaMemset);
    fcu_op op = {};
    op.kind = FCU_MEMSET;
    op.dst = pointer;
    op.bytes = bytes;
    op.value = value;
    op.dst_kind = 3;
    op.duration = 1000 + bytes / device_bytes_per_ns;
    submit(nullptr, op);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t stream) {
    API(cudaMemsetAsync);
    fcu_op op = {};
    op.kind = FCU_MEMSET;
    op.dst = pointer;
    op.bytes = bytes;
    op.value = value;
    op.dst_kind = 3;
    op.async = 1;
    op.duration = 1000 + bytes / device_bytes_per_ns;
    submit(stream, op);
    return cudaSuccess;
}
cudaError_t cudaGetSymbolAddress(void** out, const void* symbol) {
    Lock lock(mu);
    auto& entry = symbols[symbol];
    if (!entry.memory) allocate(&entry.memory, std::max<size_t>(entry.bytes, 4096), cudaMemoryTypeDevice);
    *out = entry.memory;
    return cudaSuccess;
}
cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* src, size_t bytes, size_t offset, cudaMemcpyKind) {
    API(cudaMemcpyToSymbol);
    void* to;
    cudaGetSymbolAddress(&to, symbol);
    copy_on(nullptr, copy((char*)to + offset, src, bytes, false));
    return cudaSuccess;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* out, int index) {
    *out = (cudaMemPool_t)&contexts[index];
    return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* value) {
    *(uint64_t*)value = 0;
    return cudaSuccess;
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) { return cudaSuccess; }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }
}
