// The devices of the stand-in libcudart, the clock, and the record of a call.
#include "device.h"
#include <ctime>

extern "C" {
fcu_hooks fcu_trace = {};
uint64_t fcu_now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}
uint64_t fcu_waits() { return waits; } // how often the host was made to wait for the device, busy or not
void fcu_wait_until(uint64_t when) {
    const uint64_t spin = 80000;
    for (uint64_t now = fcu_now(); now + spin < when; now = fcu_now()) {
        timespec t = {time_t((when - now - spin) / 1000000000), long((when - now - spin) % 1000000000)};
        nanosleep(&t, nullptr);
    }
    while (fcu_now() < when) __builtin_ia32_pause();
}
}

// --- the record of a call
static std::atomic<uint32_t> correlations{0};
static thread_local int depth = 0;

extern "C" uint32_t fcu_correlation() { return current; }

fcu_call::fcu_call(uint32_t cbid, bool driver) : cbid(cbid), driver(driver), outermost(depth++ == 0) {
    if (outermost && fcu_trace.on) {
        current = correlation = ++correlations;
        fcu_trace.enter(correlation);
        start = fcu_now();
    }
}
fcu_call::~fcu_call() {
    if (--depth == 0) {
        if (start && fcu_trace.on) fcu_trace.api(driver, cbid, start, fcu_now(), correlation, result);
        current = 0;
    }
}

// --- devices
extern "C" void fcu_uuid(int index, char bytes[16]) {
    memcpy(bytes, "fake-cuda-device", 16);
    bytes[15] = '0' + index;
}
std::vector<int>& visible() { // the physical device behind each index, as CUDA_VISIBLE_DEVICES says
    static auto& list = *new std::vector<int>([] {
        std::vector<int> found;
        int all = std::min((int)setting("FAKECUDA_DEVICES", 1), max_devices);
        const char* names = getenv("CUDA_VISIBLE_DEVICES");
        if (!names) {
            for (int i = 0; i < all; i++) found.push_back(i);
            return found;
        }
        std::string text = names;
        for (size_t at = 0; at < text.size();) {
            size_t end = std::min(text.find(',', at), text.size());
            std::string name = text.substr(at, end - at);
            int index = -1;
            if (name.rfind("GPU-", 0) == 0) {
                for (int i = 0; i < all; i++) {
                    char raw[16], full[40];
                    fcu_uuid(i, raw);
                    char* out = full + sprintf(full, "GPU-");
                    for (int k = 0; k < 16; k++)
                        out += sprintf(out, "%02x%s", (unsigned char)raw[k],
                                       k == 3 || k == 5 || k == 7 || k == 9 ? "-" : "");
                    if (strncmp(full, name.c_str(), name.size()) == 0) index = i;
                }
            } else if (!name.empty() && name.find_first_not_of("0123456789 ") == std::string::npos)
                index = atoi(name.c_str());
            if (index < 0 || index >= all) break;
            found.push_back(index);
            at = end + 1;
        }
        return found;
    }());
    return list;
}
extern "C" int fcu_devices() { return visible().size(); }
extern "C" bool fcu_has_context(int index) { return active[index]; }
extern "C" void* fcu_context(int index) {
    if (!active[index]) {
        active[index] = true;
        contexts[index].device = index;
        if (fcu_trace.context) fcu_trace.context(index, &contexts[index]);
    }
    return &contexts[index];
}

void fill(cudaDeviceProp& p, int index) {
    memset(&p, 0, sizeof p);
    snprintf(p.name, sizeof p.name, "NVIDIA H100 80GB HBM3 (stand-in)");
    fcu_uuid(visible()[index], p.uuid.bytes);
    p.totalGlobalMem = total_bytes;
    p.sharedMemPerBlock = 49152;
    p.regsPerBlock = 65536;
    p.warpSize = 32;
    p.memPitch = 2147483647;
    p.maxThreadsPerBlock = 1024;
    p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
    p.maxThreadsDim[2] = 64;
    p.maxGridSize[0] = 2147483647;
    p.maxGridSize[1] = p.maxGridSize[2] = 65535;
    p.totalConstMem = 65536;
    p.major = 9;
    p.minor = 0;
    p.textureAlignment = 512;
    p.texturePitchAlignment = 32;
    p.multiProcessorCount = 132;
    p.canMapHostMemory = 1;
    p.concurrentKernels = 1;
    p.ECCEnabled = 1;
    p.pciBusID = 0x10 + visible()[index];
    p.asyncEngineCount = 3;
    p.unifiedAddressing = 1;
    p.memoryBusWidth = 5120;
    p.l2CacheSize = 52428800;
    p.persistingL2CacheMaxSize = 32768000;
    p.maxThreadsPerMultiProcessor = 2048;
    p.streamPrioritiesSupported = 1;
    p.globalL1CacheSupported = p.localL1CacheSupported = 1;
    p.sharedMemPerMultiprocessor = 233472;
    p.regsPerMultiprocessor = 65536;
    p.managedMemory = 1;
    p.concurrentManagedAccess = 1;
    p.computePreemptionSupported = 1;
    p.canUseHostPointerForRegisteredMem = 1;
    p.cooperativeLaunch = 1;
    p.sharedMemPerBlockOptin = 232448;
    p.maxBlocksPerMultiProcessor = 32;
    p.accessPolicyMaxWindowSize = 134213632;
    p.reservedSharedMemPerBlock = 1024;
    p.hostRegisterSupported = 1;
    p.memoryPoolsSupported = 1;
    p.clusterLaunch = 1;
    p.surfaceAlignment = 512;
}
extern "C" int fcu_attribute(int attribute) {
    static const std::unordered_map<int, int>& table = *new std::unordered_map<int, int>{
        {1, 1024},  {2, 1024},       {3, 1024},        {4, 64},          {5, 2147483647}, {6, 65535},    {7, 65535},
        {8, 49152}, {9, 65536},      {10, 32},         {11, 2147483647}, {12, 65536},     {13, 1980000}, {14, 512},
        {15, 1},    {16, 132},       {19, 1},          {31, 1},          {32, 1},         {33, 0x10},    {36, 2619000},
        {37, 5120}, {38, 52428800},  {39, 2048},       {40, 3},          {41, 1},         {75, 9},       {76, 0},
        {78, 1},    {79, 1},         {80, 1},          {81, 233472},     {82, 65536},     {83, 1},       {89, 1},
        {90, 1},    {91, 1},         {95, 1},          {97, 232448},     {99, 1},         {102, 1},      {103, 1},
        {106, 32},  {108, 32768000}, {109, 134213632}, {111, 1024},      {115, 1},        {120, 1}};
    auto found = table.find(attribute);
    return found == table.end() ? 0 : found->second;
}

extern "C" {
cudaError_t cudaGetDeviceCount(int* count) {
    *count = fcu_devices();
    return *count ? cudaSuccess : fail(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int* index) {
    API(cudaGetDevice);
    *index = device;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int index) {
    API(cudaSetDevice);
    if (index < 0 || index >= fcu_devices()) FAIL(cudaErrorInvalidDevice);
    device = index;
    fcu_context(index);
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int index) {
    API(cudaGetDeviceProperties);
    if (index < 0 || index >= fcu_devices()) FAIL(cudaErrorInvalidDevice);
    fill(*out, index);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int index) {
    API(cudaDeviceGetAttribute);
    *value = attribute == cudaDevAttrPciBusId ? 0x10 + visible()[index] : fcu_attribute(attribute);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* out, int length, int index) {
    snprintf(out, length, "0000:%02X:00.0", 0x10 + visible()[index]);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
    *can = 1;
    return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) {
    *version = 13000;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = 13000;
    return cudaSuccess;
}
cudaError_t cudaGetLastError() {
    API(cudaGetLastError);
    cudaError_t e = last_error;
    last_error = cudaSuccess;
    return e;
}
cudaError_t cudaPeekAtLastError() {
    API(cudaPeekAtLastError);
    return last_error;
}
const char* cudaGetErrorString(cudaError_t e) {
    switch (e) {
    case cudaSuccess:
        return "no error";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInvalidValue:
        return "invalid argument";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
        return "invalid device ordinal";
    case cudaErrorInvalidConfiguration:
        return "invalid configuration argument";
    case cudaErrorNotReady:
        return "device not ready";
    case cudaErrorInvalidResourceHandle:
        return "invalid resource handle";
    case cudaErrorStreamCaptureUnsupported:
        return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
        return "operation failed due to a previous error during capture";
    case cudaErrorNotSupported:
        return "operation not supported (by the stand-in)";
    default:
        return "error of the stand-in CUDA runtime";
    }
}
const char* cudaGetErrorName(cudaError_t e) {
    static thread_local char name[40];
    snprintf(name, sizeof name, "cudaError(%d)", (int)e);
    return e == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : e ? name : "cudaSuccess";
}
}
