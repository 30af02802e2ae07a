// Streams, events, capture and graphs.
#include "device.h"

extern "C" {
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned flags, int priority) {
    API(cudaStreamCreateWithPriority);
    Lock lock(mu);
    fcu_context(device);
    *out = new CUstream_st{device, ids += 4, flags, std::max(-5, std::min(priority, 0)), false};
    streams.insert(*out);
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned flags) {
    API(cudaStreamCreateWithFlags);
    return cudaStreamCreateWithPriority(out, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* out) {
    API(cudaStreamCreate);
    return cudaStreamCreateWithPriority(out, 0, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    API(cudaStreamDestroy);
    Lock lock(mu);
    streams.erase(stream);
    delete stream;
    return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
    *priority = real(stream)->priority;
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    API(cudaStreamQuery);
    CUstream_st* s = real(stream);
    if (s->capture) {
        s->capture->broken = true;
        FAIL(cudaErrorStreamCaptureUnsupported);
    }
    if (fcu_now() < s->free_at) FAIL(cudaErrorNotReady);
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    API(cudaStreamSynchronize);
    CUstream_st* s = real(stream);
    if (s->capture) {
        s->capture->broken = true;
        FAIL(cudaErrorStreamCaptureUnsupported);
    }
    wait_for(s->free_at, 3, s->device, s->id, 0);
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
    API(cudaDeviceSynchronize);
    if (breaks_capture()) FAIL(cudaErrorStreamCaptureUnsupported);
    fcu_context(device);
    wait_for(drained(device), 4, device, ~0u, 0);
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    API(cudaStreamWaitEvent);
    CUstream_st* s = real(stream);
    Lock lock(mu);
    if (event->capture && captures.count(event->capture)) {
        s->capture = event->capture;
        return cudaSuccess;
    }
    if (event->recorded) s->free_at = std::max(s->free_at, event->when);
    uint64_t now = fcu_now();
    if (fcu_trace.on) fcu_trace.sync(2, s->device, s->id, event->id, now, now, current);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned flags) {
    API(cudaEventCreateWithFlags);
    fcu_context(device);
    *out = new CUevent_st{++event_ids, flags, device};
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* out) {
    API(cudaEventCreate);
    fcu_context(device);
    *out = new CUevent_st{++event_ids, 0, device};
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    API(cudaEventDestroy);
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
    API(cudaEventRecordWithFlags);
    CUstream_st* s = real(stream);
    Lock lock(mu);
    if (s->capture) {
        event->capture = s->capture;
        return cudaSuccess;
    }
    event->capture = nullptr;
    event->recorded = true;
    event->stream = s->id;
    event->when = std::max(fcu_now() + latency_ns, s->free_at);
    s->free_at = std::max(s->free_at, event->when);
    if (fcu_trace.on) fcu_trace.event(s->device, s->id, event->id, event->when, current);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    API(cudaEventRecord);
    return cudaEventRecordWithFlags(event, stream, 0);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    API(cudaEventQuery);
    if (event->capture) FAIL(cudaErrorCapturedEvent);
    if (breaks_capture()) FAIL(cudaErrorStreamCaptureUnsupported);
    if (event->recorded && fcu_now() < event->when) FAIL(cudaErrorNotReady);
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    API(cudaEventSynchronize);
    if (event->capture) {
        event->capture->broken = true;
        FAIL(cudaErrorCapturedEvent);
    }
    if (event->recorded) wait_for(event->when, 1, event->device, event->stream, event->id);
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
    API(cudaEventElapsedTime);
    if (!from->recorded || !to->recorded || (from->flags | to->flags) & cudaEventDisableTiming)
        FAIL(cudaErrorInvalidResourceHandle);
    if (fcu_now() < std::max(from->when, to->when)) FAIL(cudaErrorNotReady);
    *ms = (double(to->when) - double(from->when)) / 1e6;
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    std::swap(*mode, capture_mode);
    return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    API(cudaStreamBeginCapture);
    Lock lock(mu);
    CUstream_st* s = real(stream);
    if (s->legacy || s->capture) FAIL(s->legacy ? cudaErrorStreamCaptureUnsupported : cudaErrorIllegalState);
    s->capture = new Capture{++graph_ids, new CUgraph_st, s, mode, std::this_thread::get_id()};
    captures.insert(s->capture);
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* out) {
    API(cudaStreamEndCapture);
    Lock lock(mu);
    Capture* capture = real(stream)->capture;
    if (!capture) FAIL(cudaErrorIllegalState);
    for (auto* s : streams)
        if (s->capture == capture) s->capture = nullptr;
    captures.erase(capture);
    *out = capture->broken ? nullptr : capture->graph;
    if (capture->broken) FAIL(cudaErrorStreamCaptureInvalidated);
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    API(cudaStreamIsCapturing);
    Lock lock(mu);
    // Asking about the legacy stream while another one is captured is an error of CUDA's; PyTorch asks of others only.
    Capture* capture = real(stream)->capture;
    *status = !capture          ? cudaStreamCaptureStatusNone
              : capture->broken ? cudaStreamCaptureStatusInvalidated
                                : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, size_t* count) {
    API(cudaStreamGetCaptureInfo);
    Lock lock(mu);
    cudaStreamIsCapturing(stream, status);
    Capture* capture = real(stream)->capture;
    if (id) *id = capture ? capture->id : 0;
    if (graph) *graph = capture ? capture->graph : nullptr;
    if (dependencies) *dependencies = nullptr;
    if (edges) *edges = nullptr;
    if (count) *count = 0;
    return cudaSuccess;
}
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t*, const cudaGraphEdgeData*, size_t,
                                                unsigned) {
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long) {
    API(cudaGraphInstantiateWithFlags);
    *out = new CUgraphExec_st{graph->ops, ++graph_ids};
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long flags) {
    return cudaGraphInstantiateWithFlags(out, graph, flags);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    API(cudaGraphLaunch);
    for (fcu_op op : exec->ops) { // one after the other; branches do not overlap
        op.graph = exec->id;
        submit(stream, op);
    }
    return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
    if (nodes)
        for (size_t i = 0; i < std::min(*count, graph->ops.size()); i++) nodes[i] = (cudaGraphNode_t)&graph->ops[i];
    *count = graph->ops.size();
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    API(cudaGraphDestroy);
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    API(cudaGraphExecDestroy);
    delete exec;
    return cudaSuccess;
}
cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned) { return cudaSuccess; }
}
