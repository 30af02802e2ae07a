// The simulated device: a queue per stream, in which each piece of work has its start and its end.
#include "device.h"
#include <sys/mman.h>

CUstream_st* real(cudaStream_t stream) {
    static CUstream_st* defaults[max_devices];
    if (stream && stream != cudaStreamLegacy && stream != cudaStreamPerThread) return stream;
    Lock lock(mu);
    if (!defaults[device]) {
        fcu_context(device);
        defaults[device] = new CUstream_st{device, 7, 0, 0, true};
        streams.insert(defaults[device]);
    }
    return defaults[device];
}

// A call that is not allowed while a stream is being captured breaks the capture, as CUDA does it.
bool breaks_capture() {
    if (capture_mode == cudaStreamCaptureModeRelaxed) return false;
    Lock lock(mu);
    bool broken = false;
    for (auto* capture : captures)
        if (capture->mode == cudaStreamCaptureModeGlobal ||
            (capture->mode == cudaStreamCaptureModeThreadLocal && capture->thread == std::this_thread::get_id()))
            capture->broken = broken = true;
    return broken;
}

// --- what work does at once: kernels nothing, copies and sets all of it
static std::atomic<uint64_t> kernels_run{0};
static thread_local const char* last_kernel = "";
struct Upload {
    size_t bytes;
    uint64_t kernels;
    bool stays = false;
}; // stays: came from another rank, believed ever after
static std::map<const void*, Upload>& uploads = *new std::map<const void*, Upload>;
static bool holds_upload(const void* at, size_t bytes) {
    auto entry = uploads.upper_bound(at);
    if (entry == uploads.begin()) return false;
    --entry;
    return (entry->second.stays || entry->second.kernels == kernels_run) &&
           (const char*)at + bytes <= (const char*)entry->first + entry->second.bytes;
}
// The next of FAKECUDA_COMPUTED_VALUES, whose bytes are the lowest of what is read; false without any.
static bool next_value(void* to, size_t bytes) {
    static const std::string values = getenv("FAKECUDA_COMPUTED_VALUES") ? getenv("FAKECUDA_COMPUTED_VALUES") : "";
    static size_t at = 0;
    if (values.empty()) return false;
    memset(to, 0, bytes);
    for (size_t i = 0; at + 1 < values.size() && values[at] != ','; i++, at += 2)
        if (i < bytes) ((unsigned char*)to)[i] = std::stoi(values.substr(at, 2), nullptr, 16);
    at = at < values.size() ? at + 1 : 0; // behind the comma, or again from the first
    return true;
}
static void perform(const fcu_op& op) {
    if (op.kind == FCU_KERNEL) {
        // CUB counts many elements in two kernels, the second of which adds up what the first one's blocks counted.
        bool adds_up = strstr(op.name, "DeviceReduceSingleTileKernel") && strstr(last_kernel, "NonZeroOp");
        kernels_run++;
        if (!adds_up) last_kernel = op.name;
    }
    if (op.kind == FCU_MEMCPY) {
        // A size or a flag that a kernel would have computed is read from a block of the caching allocator that may
        // hold another value of before. Such a read gives 0, or what the settings say; save where the same number of
        // bytes was uploaded to that place, and (as sizes have 8 bytes, and PyTorch counts nonzero() in 4) no kernel
        // can have written a size there since.
        Lock lock(mu);
        if (op.copy_kind == 1 || (op.copy_kind == 8 && holds_upload(op.src, op.bytes)))
            uploads[op.dst] = {op.bytes, kernels_run,
                               op.copy_kind == 8 && std::prev(uploads.upper_bound(op.src))->second.stays};
        auto upload = uploads.find(op.src);
        bool counted = op.bytes == 4 && (strstr(last_kernel, "NonZeroOp") || strstr(last_kernel, "UniqueByKey"));
        bool known = (uintptr_t)op.src % 512 ||
                     (upload != uploads.end() && upload->second.bytes == op.bytes &&
                      (upload->second.stays || upload->second.kernels == kernels_run || (op.bytes == 4 && !counted)));
        // Thrust reads pairs of a flag or count and an index, at which it then reads on (`mode` of long rows).
        bool indexed = op.bytes == 16 && (strstr(last_kernel, "ReduceAgent") || strstr(last_kernel, "DeviceReduce"));
        if (op.copy_kind == 2 && (op.bytes <= 8 * computed_count || indexed) && !known) {
            if (verbose) fprintf(stderr, "fakecuda: a computed value of %zu bytes is read\n", op.bytes);
            if (next_value(op.dst, op.bytes)) return;
            memset(op.dst, 0, op.bytes);
            if (op.bytes % 8 == 0)
                std::fill_n((int64_t*)op.dst, op.bytes / 8, computed_size);
            else if (counted)
                *(int32_t*)op.dst = computed_size;
            else if (op.bytes == 1)
                *(char*)op.dst = computed_bool;
        } else
            memmove(op.dst, op.src, op.bytes);
    } else if (op.kind == FCU_MEMSET) {
        uintptr_t from = ((uintptr_t)op.dst + 4095) & ~4095ul, to = ((uintptr_t)op.dst + op.bytes) & ~4095ul;
        if (op.value == 0 && to > from + (1 << 20)) { // give the pages back instead of touching them
            madvise((void*)from, to - from, MADV_DONTNEED);
            memset(op.dst, 0, from - (uintptr_t)op.dst);
            memset((void*)to, 0, (uintptr_t)op.dst + op.bytes - to);
        } else
            memset(op.dst, op.value, op.bytes);
    } else if (op.kind == FCU_HOST) {
        std::thread([op] {
            fcu_wait_until(op.start);
            op.fn(op.data);
        }).detach();
    }
}

// --- when it happens, as the host is told
static void book(CUstream_st* s, fcu_op op) { // puts work on a stream's simulated queue
    uint64_t wait = 0;
    {
        Lock lock(mu);
        uint64_t now = fcu_now();
        op.start = std::max(now + latency_ns, s->free_at + gap_ns);
        if (!(s->flags & cudaStreamNonBlocking))
            for (auto* other : streams)
                if (other->device == s->device && !(other->flags & cudaStreamNonBlocking) &&
                    (s->legacy || other->legacy))
                    op.start = std::max(op.start, other->free_at);
        op.end = op.start + op.duration;
        op.device = s->device;
        op.stream = s->id;
        op.correlation = current;
        s->free_at = op.end;
        while (!s->pending.empty() && s->pending.front() <= now) s->pending.pop_front();
        if (s->pending.size() >= queue_length) wait = s->pending[s->pending.size() - queue_length];
        s->pending.push_back(op.end);
        if (fcu_trace.on && op.kind != FCU_HOST) fcu_trace.op(op);
    }
    perform(op);
    if (wait) fcu_wait_until(wait);
}
CUstream_st* submit(cudaStream_t stream, fcu_op op) { // onto the queue, or into the graph that is being captured
    CUstream_st* s = real(stream);
    {
        Lock lock(mu);
        if (s->capture) {
            op.node = ++node_ids;
            s->capture->graph->ops.push_back(op);
            return s;
        }
    }
    book(s, op);
    return s;
}
static fcu_op kernel(const char* name, dim3 grid, dim3 block, size_t shared, double scale) {
    fcu_op op = {};
    op.kind = FCU_KERNEL;
    op.name = name;
    op.grid = grid;
    op.block = block;
    op.shared = shared;
    op.duration = kernel_ns * scale;
    return op;
}
extern "C" void fcu_launch(const char* name, cudaStream_t stream, dim3 grid, dim3 block, size_t shared, double scale) {
    submit(stream, kernel(name, grid, block, shared, scale));
}

uint64_t drained(int which) {
    Lock lock(mu);
    uint64_t when = 0;
    for (auto* s : streams)
        if (s->device == which) when = std::max(when, s->free_at);
    return when;
}
void wait_for(uint64_t when, int type, int which, uint32_t stream, uint32_t event) {
    uint64_t start = fcu_now();
    waits++;
    fcu_wait_until(when);
    if (fcu_trace.on) fcu_trace.sync(type, which, stream, event, start, fcu_now(), current);
}
extern "C" void fcu_written(const void* to, size_t bytes) {
    Lock lock(mu);
    uploads[to] = {bytes, kernels_run, true};
}
