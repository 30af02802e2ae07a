// Stand-in for libnvidia-ml.so.1, as far as PyTorch, pynvml and their users ask it.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <unistd.h>

static int devices() {
    const char* text = getenv("FAKECUDA_DEVICES");
    return text && *text ? atoi(text) : 1;
}
typedef struct {
    int index;
}* Device;
static struct {
    int index;
} all[16];
static Device device(int index) {
    all[index].index = index;
    return (Device)&all[index];
}
static void uuid(int index, char* out) { // as fcu_uuid in cudart.cpp says it
    const char raw[17] = "fake-cuda-device";
    out += sprintf(out, "GPU-");
    for (int k = 0; k < 16; k++)
        out += sprintf(out, "%02x%s", k == 15 ? '0' + index : raw[k], k == 3 || k == 5 || k == 7 || k == 9 ? "-" : "");
}
static const int not_supported = 3, not_found = 6;

extern "C" {
int nvmlInit_v2() { return 0; }
int nvmlInitWithFlags(unsigned) { return 0; }
int nvmlShutdown() { return 0; }
const char* nvmlErrorString(int code) {
    return code == not_supported ? "Not Supported" : code == not_found ? "Not Found" : code ? "Error" : "Success";
}
int nvmlSystemGetDriverVersion(char* out, unsigned size) {
    snprintf(out, size, "580.00.00");
    return 0;
}
int nvmlSystemGetNVMLVersion(char* out, unsigned size) {
    snprintf(out, size, "13.580.00");
    return 0;
}
int nvmlSystemGetCudaDriverVersion(int* out) {
    *out = 13000;
    return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int* out) {
    *out = 13000;
    return 0;
}
int nvmlDeviceGetCount_v2(unsigned* out) {
    *out = devices();
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device* out) {
    if ((int)index >= devices()) return 2;
    *out = device(index);
    return 0;
}
int nvmlDeviceGetHandleByUUID(const char* name, Device* out) {
    for (int i = 0; i < devices(); i++) {
        char own[48];
        uuid(i, own);
        if (!strncmp(own, name, strlen(name))) {
            *out = device(i);
            return 0;
        }
    }
    return not_found;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, Device* out) {
    unsigned domain, number;
    if (sscanf(bus, "%x:%x", &domain, &number) != 2 || number < 0x10 || (int)number >= 0x10 + devices())
        return not_found;
    *out = device(number - 0x10);
    return 0;
}
int nvmlDeviceGetUUID(Device d, char* out, unsigned size) {
    char own[48];
    uuid(d->index, own);
    snprintf(out, size, "%s", own);
    return 0;
}
int nvmlDeviceGetIndex(Device d, unsigned* out) {
    *out = d->index;
    return 0;
}
int nvmlDeviceGetName(Device, char* out, unsigned size) {
    snprintf(out, size, "NVIDIA H100 80GB HBM3 (stand-in)");
    return 0;
}
int nvmlDeviceGetUtilizationRates(Device, unsigned* out) {
    out[0] = 42;
    out[1] = 7;
    return 0;
}
int nvmlDeviceGetMemoryInfo(Device, unsigned long long* out) {
    out[0] = 85000000000ull;
    out[1] = 84000000000ull;
    out[2] = 1000000000ull;
    return 0;
}
int nvmlDeviceGetMemoryInfo_v2(Device, unsigned long long* out) {
    out[1] = 85000000000ull;
    out[2] = 500000000ull;
    out[3] = 83500000000ull;
    out[4] = 1000000000ull;
    return 0;
}
int nvmlDeviceGetClockInfo(Device, int type, unsigned* out) {
    *out = type == 2 ? 2619 : 1755;
    return 0;
}
int nvmlDeviceGetMaxClockInfo(Device, int type, unsigned* out) {
    *out = type == 2 ? 2619 : 1980;
    return 0;
}
int nvmlDeviceGetTemperature(Device, int, unsigned* out) {
    *out = 45;
    return 0;
}
int nvmlDeviceGetPowerUsage(Device, unsigned* out) {
    *out = 250000;
    return 0;
}
int nvmlDeviceGetEnforcedPowerLimit(Device, unsigned* out) {
    *out = 700000;
    return 0;
}
int nvmlDeviceGetCurrentClocksEventReasons(Device, unsigned long long* out) {
    *out = 0;
    return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Device, unsigned long long* out) {
    *out = 0;
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(Device, int* major, int* minor) {
    *major = 9;
    *minor = 0;
    return 0;
}
int nvmlDeviceGetP2PStatus(Device, Device, int, int* out) {
    *out = 0;
    return 0;
}
int nvmlDeviceGetNvLinkState(Device, unsigned, unsigned* out) {
    *out = 0;
    return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(Device, unsigned, int*) { return not_supported; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device, unsigned, void*) { return not_supported; }
int nvmlDeviceGetGpuFabricInfoV(Device, void*) { return not_supported; }
// One process uses the device: this one.
struct Process {
    unsigned pid;
    unsigned long long bytes;
    unsigned a, b;
};
static int processes(unsigned* count, Process* out) {
    unsigned room = *count;
    *count = 1;
    if (room < 1) return 7;
    *out = {(unsigned)getpid(), 1000000000ull, ~0u, ~0u};
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses(Device, unsigned* count, Process* out) { return processes(count, out); }
int nvmlDeviceGetComputeRunningProcesses_v2(Device, unsigned* count, Process* out) { return processes(count, out); }
int nvmlDeviceGetComputeRunningProcesses_v3(Device, unsigned* count, Process* out) { return processes(count, out); }
}
