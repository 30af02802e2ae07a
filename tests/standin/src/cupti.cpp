// Stand-in for libcupti.so.13, as far as PyTorch's profiler (Kineto) uses it: activity records of what is simulated.
#include "fcu.h"
#include "cbid.h"
#include <cupti.h>
#include <cstring>
#include <ctime>
#include <mutex>
#include <set>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>
#include <vector>

static std::recursive_mutex& mu = *new std::recursive_mutex;
using Lock = std::lock_guard<std::recursive_mutex>;

// --- time: CLOCK_MONOTONIC in here, outside what the subscriber's clock says, by default CLOCK_REALTIME
static CUpti_TimestampCallbackFunc clock_of_user;
static uint64_t ticks() {
    if (clock_of_user) return clock_of_user();
    timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}
struct Instant { // by both clocks
    uint64_t ns, ticks;
};
static Instant instant() { // the tightest of some readings: between the two of one, another process may run
    Instant best = {};
    for (uint64_t i = 0, narrowest = ~0ull; i < 8; i++) {
        uint64_t before = fcu_now(), between = ticks(), after = fcu_now();
        if (after - before < narrowest) narrowest = after - before, best = {before + narrowest / 2, between};
    }
    return best;
}
static Instant first;
static void start_clock() {
    first = instant();
    fcu_wait_until(first.ns + 3000000); // so that the rate is known well enough at once
}
static uint64_t outside(uint64_t ns) {
    if (!first.ns) start_clock();
    static thread_local Instant at;
    static thread_local double rate;
    if (fcu_now() - at.ns > 1000000) { // anew every millisecond; both clocks drift by far less in between
        at = instant();
        rate = double(at.ticks - first.ticks) / double(at.ns - first.ns);
    }
    return at.ticks + int64_t((double(ns) - double(at.ns)) * rate);
}

// --- buffers
// ----------------------------------------------------------------------------------------------------------------
static CUpti_BuffersCallbackRequestFunc request;
static CUpti_BuffersCallbackCompleteFunc complete;
static uint8_t* buffer;
static size_t room, filled;
static bool enabled[CUPTI_ACTIVITY_KIND_COUNT];
static std::set<uint32_t>& muted = *new std::set<uint32_t>;

static void flush() {
    if (!buffer) return;
    uint8_t* full = std::exchange(buffer, nullptr);
    complete(nullptr, 0, full, room, std::exchange(filled, 0));
}
template <class Record> static void write(const Record& record) {
    Lock lock(mu);
    size_t size = (sizeof record + 7) & ~7ul;
    if (buffer && filled + size > room) flush();
    if (!buffer) {
        if (!request) return;
        size_t records = 0;
        request(&buffer, &room, &records);
        if (!buffer) return;
        memset(buffer, 0, room);
    }
    memcpy(buffer + filled, &record, sizeof record);
    filled += size;
}
static size_t size_of(uint32_t kind) {
    switch (kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
        return sizeof(CUpti_ActivityKernel10);
    case CUPTI_ACTIVITY_KIND_MEMCPY:
        return sizeof(CUpti_ActivityMemcpy6);
    case CUPTI_ACTIVITY_KIND_MEMSET:
        return sizeof(CUpti_ActivityMemset4);
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER:
        return sizeof(CUpti_ActivityAPI);
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION:
        return sizeof(CUpti_ActivityExternalCorrelation);
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION:
        return sizeof(CUpti_ActivitySynchronization2);
    case CUPTI_ACTIVITY_KIND_CUDA_EVENT:
        return sizeof(CUpti_ActivityCudaEvent2);
    default:
        return 0;
    }
}

// --- what cudart.cpp reports
// --------------------------------------------------------------------------------------------------
static thread_local std::vector<uint64_t> external[CUPTI_EXTERNAL_CORRELATION_KIND_SIZE];
static uint64_t last_sync;

static void on_enter(uint32_t correlation) {
    if (!enabled[CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION]) return;
    for (int kind = 0; kind < CUPTI_EXTERNAL_CORRELATION_KIND_SIZE; kind++) {
        if (external[kind].empty()) continue;
        CUpti_ActivityExternalCorrelation r = {};
        r.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
        r.externalKind = (CUpti_ExternalCorrelationKind)kind;
        r.externalId = external[kind].back();
        r.correlationId = correlation;
        write(r);
    }
}
static void on_api(bool driver, uint32_t cbid, uint64_t start, uint64_t end, uint32_t correlation, int result) {
    CUpti_ActivityKind kind = driver ? CUPTI_ACTIVITY_KIND_DRIVER : CUPTI_ACTIVITY_KIND_RUNTIME;
    if (!enabled[kind] || (!driver && muted.count(cbid))) return;
    CUpti_ActivityAPI r = {};
    r.kind = kind;
    r.cbid = cbid;
    r.start = outside(start);
    r.end = outside(end);
    r.processId = getpid();
    r.threadId = (uint32_t)pthread_self(); // Kineto maps the low half of pthread_self to the thread
    r.correlationId = correlation;
    r.returnValue = result;
    write(r);
}
static void on_op(const fcu_op& op) {
    uint64_t start = outside(op.start), end = outside(op.end);
    if (op.kind == FCU_KERNEL && enabled[CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL]) {
        CUpti_ActivityKernel10 r = {};
        r.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
        r.name = op.name;
        r.start = start;
        r.end = r.completed = end;
        r.deviceId = op.device;
        r.contextId = op.device + 1;
        r.streamId = op.stream;
        r.correlationId = op.correlation;
        r.gridX = op.grid.x;
        r.gridY = op.grid.y;
        r.gridZ = op.grid.z;
        r.blockX = op.block.x;
        r.blockY = op.block.y;
        r.blockZ = op.block.z;
        r.registersPerThread = 32;
        r.dynamicSharedMemory = op.shared;
        r.graphId = op.graph;
        r.graphNodeId = op.node;
        write(r);
    } else if (op.kind == FCU_MEMCPY && enabled[CUPTI_ACTIVITY_KIND_MEMCPY]) {
        CUpti_ActivityMemcpy6 r = {};
        r.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
        r.copyKind = op.copy_kind;
        r.srcKind = op.src_kind;
        r.dstKind = op.dst_kind;
        r.flags = op.async;
        r.bytes = op.bytes;
        r.start = start;
        r.end = end;
        r.deviceId = op.device;
        r.contextId = op.device + 1;
        r.streamId = op.stream;
        r.correlationId = r.runtimeCorrelationId = op.correlation;
        r.graphId = op.graph;
        r.graphNodeId = op.node;
        write(r);
    } else if (op.kind == FCU_MEMSET && enabled[CUPTI_ACTIVITY_KIND_MEMSET]) {
        CUpti_ActivityMemset4 r = {};
        r.kind = CUPTI_ACTIVITY_KIND_MEMSET;
        r.value = op.value;
        r.bytes = op.bytes;
        r.start = start;
        r.end = end;
        r.deviceId = op.device;
        r.contextId = op.device + 1;
        r.streamId = op.stream;
        r.correlationId = op.correlation;
        r.flags = op.async;
        r.memoryKind = op.dst_kind;
        r.graphId = op.graph;
        r.graphNodeId = op.node;
        write(r);
    }
}
static void on_sync(int type, int device, uint32_t stream, uint32_t event, uint64_t start, uint64_t end,
                    uint32_t correlation) {
    if (!enabled[CUPTI_ACTIVITY_KIND_SYNCHRONIZATION]) return;
    CUpti_ActivitySynchronization2 r = {};
    r.kind = CUPTI_ACTIVITY_KIND_SYNCHRONIZATION;
    r.type = (CUpti_ActivitySynchronizationType)type;
    r.start = outside(start);
    r.end = outside(end);
    r.correlationId = correlation;
    r.contextId = device + 1;
    r.streamId = stream;
    r.cudaEventId = event;
    r.cudaEventSyncId = last_sync;
    write(r);
}
static void on_event(int device, uint32_t stream, uint32_t event, uint64_t when, uint32_t correlation) {
    if (!enabled[CUPTI_ACTIVITY_KIND_CUDA_EVENT]) return;
    CUpti_ActivityCudaEvent2 r = {};
    r.kind = CUPTI_ACTIVITY_KIND_CUDA_EVENT;
    r.correlationId = correlation;
    r.contextId = device + 1;
    r.streamId = stream;
    r.eventId = event;
    r.deviceId = device;
    r.deviceTimestamp = outside(when);
    r.cudaEventSyncId = ++last_sync;
    write(r);
}
static CUpti_CallbackFunc subscriber;
static void* subscriber_data;
static bool wants_contexts;
static void on_context(int, void* context) {
    if (!subscriber || !wants_contexts) return;
    CUpti_ResourceData data = {};
    data.context = (CUcontext)context;
    subscriber(subscriber_data, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CONTEXT_CREATED,
               (CUpti_CallbackData*)&data);
}
static void switch_hooks() {
    bool any = false;
    for (bool one : enabled) any |= one;
    fcu_trace.enter = on_enter;
    fcu_trace.api = on_api;
    fcu_trace.op = on_op;
    fcu_trace.sync = on_sync;
    fcu_trace.event = on_event;
    fcu_trace.on = any;
}

// --- the functions
// --------------------------------------------------------------------------------------------------------------
extern "C" {
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc r, CUpti_BuffersCallbackCompleteFunc c) {
    request = r;
    complete = c;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc f) {
    if (f != clock_of_user) {
        clock_of_user = f;
        start_clock();
    }
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetTimestamp(uint64_t* out) {
    *out = ticks();
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
    enabled[kind] = true;
    switch_hooks();
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
    enabled[kind] = false;
    switch_hooks();
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnableRuntimeApi(CUpti_CallbackId cbid, uint8_t on) {
    if (on)
        muted.erase(cbid);
    else
        muted.insert(cbid);
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnableDriverApi(CUpti_CallbackId, uint8_t) { return CUPTI_SUCCESS; }
CUptiResult cuptiActivityEnableCudaEventDeviceTimestamps(uint8_t) { return CUPTI_SUCCESS; }
CUptiResult cuptiActivitySetAttribute(CUpti_ActivityAttribute, size_t*, void*) { return CUPTI_SUCCESS; }
CUptiResult cuptiActivityFlushAll(uint32_t) {
    Lock lock(mu);
    flush();
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNextRecord(uint8_t* from, size_t valid, CUpti_Activity** record) {
    uint8_t* next = *record ? (uint8_t*)*record + ((size_of((*record)->kind) + 7) & ~7ul) : from;
    if (next >= from + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = (CUpti_Activity*)next;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* dropped) {
    *dropped = 0;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t id) {
    external[kind].push_back(id);
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t* last) {
    if (external[kind].empty()) return CUPTI_ERROR_QUEUE_EMPTY;
    if (last) *last = external[kind].back();
    external[kind].pop_back();
    return CUPTI_SUCCESS;
}
CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* out, CUpti_CallbackFunc callback, void* data) {
    subscriber = callback;
    subscriber_data = data;
    *out = (CUpti_SubscriberHandle)&subscriber;
    fcu_trace.context = on_context;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle) {
    subscriber = nullptr;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiEnableCallback(uint32_t on, CUpti_SubscriberHandle, CUpti_CallbackDomain domain, CUpti_CallbackId) {
    if (domain == CUPTI_CB_DOMAIN_RESOURCE) wants_contexts = on;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiEnableDomain(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain) { return CUPTI_SUCCESS; }
CUptiResult cuptiFinalize() { return CUPTI_SUCCESS; }
CUptiResult cuptiGetVersion(uint32_t* version) {
    *version = CUPTI_API_VERSION;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetResultString(CUptiResult, const char** text) {
    *text = "an error of the stand-in CUPTI";
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t cbid, const char** name) {
    for (auto& entry : fcu_callback_names)
        if (entry.driver == (domain == CUPTI_CB_DOMAIN_DRIVER_API) && entry.cbid == cbid) {
            *name = entry.name;
            return CUPTI_SUCCESS;
        }
    *name = "INVALID";
    return CUPTI_ERROR_INVALID_PARAMETER;
}
}
