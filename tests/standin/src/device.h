// What the files of the stand-in libcudart share: its settings, and the simulated device.
#pragma once
#include "cbid.h"
#include "fcu.h"
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

using Lock = std::lock_guard<std::recursive_mutex>;
inline std::recursive_mutex& mu = *new std::recursive_mutex; // never destroyed: calls come during exit, too

// --- settings
inline double setting(const char* name, double otherwise) {
    const char* text = getenv(name);
    return text && *text ? atof(text) : otherwise;
}
inline const uint64_t kernel_ns = setting("FAKECUDA_KERNEL_US", 10) * 1000;
inline const uint64_t latency_ns = setting("FAKECUDA_LATENCY_US", 4) * 1000; // from a launch to its start
inline const uint64_t gap_ns = setting("FAKECUDA_GAP_US", 1) * 1000;         // between two pieces of work
inline const double host_bytes_per_ns = setting("FAKECUDA_PCIE_GBS", 25);
inline const double device_bytes_per_ns = setting("FAKECUDA_HBM_GBS", 2000);
inline const size_t total_bytes = setting("FAKECUDA_MEMORY_GB", 79.1) * (1 << 30);
inline const size_t queue_length = setting("FAKECUDA_QUEUE", 1024); // work that a stream takes before a launch waits

inline const int64_t computed_size = setting("FAKECUDA_COMPUTED_SIZE", 0); // what a computed int64 reads as
inline const size_t computed_count = setting("FAKECUDA_COMPUTED_COUNT", 1); // so many, copied together
inline const bool computed_bool = setting("FAKECUDA_COMPUTED_BOOL", 0);
inline const bool verbose = setting("FAKECUDA_VERBOSE", 0);

// --- calls: the record of one, and its error
inline std::atomic<uint64_t> waits{0};    // how often the host was made to wait for the device, busy or not
inline thread_local uint32_t current = 0; // correlation of the outermost call
inline thread_local cudaError_t last_error = cudaSuccess;
inline cudaError_t fail(cudaError_t error) { return error == cudaErrorNotReady ? error : last_error = error; }
#define API(name) fcu_call call(FCU_CBID_##name)
#define FAIL(error) return fail((cudaError_t)(call.result = (error)))

// --- devices
struct CUctx_st {
    int device;
};
static const int max_devices = 16;
inline CUctx_st contexts[max_devices];
inline bool active[max_devices];
inline size_t used[max_devices];
inline thread_local int device = 0;
std::vector<int>& visible(); // the physical device behind each index, as CUDA_VISIBLE_DEVICES says

// --- streams, events, graphs
struct CUgraph_st {
    std::vector<fcu_op> ops;
};
struct CUgraphExec_st {
    std::vector<fcu_op> ops;
    uint32_t id;
};
struct Capture {
    unsigned long long id;
    CUgraph_st* graph;
    CUstream_st* origin;
    cudaStreamCaptureMode mode;
    std::thread::id thread;
    bool broken = false;
};
struct CUstream_st {
    int device;
    uint32_t id;
    unsigned flags;
    int priority;
    bool legacy;
    uint64_t free_at = 0;
    std::deque<uint64_t> pending{};
    Capture* capture = nullptr;
};
struct CUevent_st {
    uint32_t id;
    unsigned flags;
    int device;
    bool recorded = false;
    uint64_t when = 0;
    uint32_t stream = 0;
    Capture* capture = nullptr;
};
inline std::set<CUstream_st*>& streams = *new std::set<CUstream_st*>;
inline std::set<Capture*>& captures = *new std::set<Capture*>;
inline std::atomic<uint32_t> ids{7}, event_ids{0}, graph_ids{0}, node_ids{0};
inline thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
CUstream_st* real(cudaStream_t stream); // the stream behind a handle, the default one included
bool breaks_capture();                  // this call must not come while a stream is captured: if one is, it is broken

// --- work
CUstream_st* submit(cudaStream_t stream, fcu_op op); // onto the queue, or into the graph that is being captured
uint64_t drained(int device);                        // when its last piece of work is done
void wait_for(uint64_t when, int type, int device, uint32_t stream, uint32_t event); // the host waits, on record

// --- memory
cudaError_t allocate(void** out, size_t bytes, cudaMemoryType type);
cudaError_t release(void* pointer);
