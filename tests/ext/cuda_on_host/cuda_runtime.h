// Just enough of CUDA for a host compiler to run giou_kernels.cu: one thread of the host for each thread of a block, one
// block after another. Barriers and shuffles are real, so a missing one shows as a wrong sum or as a hang. What this cannot
// show: the order of memory accesses between blocks, divergence within a warp, speed.
#pragma once

#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static  // blocks run one after another, so one copy serves them all
#define __launch_bounds__(...)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3() = default;
  explicit dim3(unsigned size) : x(size) {}
};

inline thread_local dim3 threadIdx, blockIdx, gridDim;

namespace emulated {

constexpr unsigned kWarp = 32;

struct Block {
  explicit Block(unsigned threads) : all(static_cast<std::ptrdiff_t>(threads)), slots(threads) {
    for (unsigned w = 0; w < threads / kWarp; ++w) warps.push_back(std::make_unique<std::barrier<>>(kWarp));
  }
  std::barrier<> all;
  std::vector<std::unique_ptr<std::barrier<>>> warps;
  std::vector<std::uint64_t> slots;
};

inline thread_local Block* block = nullptr;

// Set by the tests: how many multiprocessors the device claims, and whether blocks run from the last to the first.
inline int processors = 2;
inline bool backwards = false;
inline unsigned long long recording = 0;  // the number of the graph that is being recorded, 0 for none
inline std::int64_t launches = 0;

}  // namespace emulated

inline void __syncthreads() { emulated::block->all.arrive_and_wait(); }
inline void __threadfence() {}

template <typename T>
T __shfl_down_sync(unsigned, T value, int offset) {
  const unsigned thread = threadIdx.x;
  const unsigned source = thread + static_cast<unsigned>(offset);
  auto& warp = *emulated::block->warps[thread / emulated::kWarp];
  std::memcpy(&emulated::block->slots[thread], &value, sizeof value);
  warp.arrive_and_wait();
  if (source / emulated::kWarp == thread / emulated::kWarp) std::memcpy(&value, &emulated::block->slots[source], sizeof value);
  warp.arrive_and_wait();
  return value;
}

inline void __syncwarp() { emulated::block->warps[threadIdx.x / emulated::kWarp]->arrive_and_wait(); }

template <typename T>
T __ldcg(const T* pointer) {
  return *pointer;
}
template <typename T>
T __ldg(const T* pointer) {
  return *pointer;
}

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

inline unsigned atomicInc(unsigned* address, unsigned limit) {
  const unsigned old = *address;
  *address = old >= limit ? 0 : old + 1;
  return old;
}

using cudaError_t = int;
using cudaStream_t = void*;
constexpr cudaError_t cudaSuccess = 0;
constexpr int cudaDevAttrMultiProcessorCount = 16;

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "emulated error"; }
inline cudaError_t cudaDeviceGetAttribute(int* value, int, int) {
  *value = emulated::processors;
  return cudaSuccess;
}

using cudaStreamCaptureStatus = int;
constexpr int cudaStreamCaptureStatusNone = 0;

inline cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* id) {
  *status = emulated::recording != 0 ? 1 : cudaStreamCaptureStatusNone;
  *id = emulated::recording;
  return cudaSuccess;
}

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  cudaStream_t stream = nullptr;
};

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...), Arguments&&... arguments) {
  const unsigned blocks = config->gridDim.x, threads = config->blockDim.x;
  ++emulated::launches;
  for (unsigned turn = 0; turn < blocks; ++turn) {
    const unsigned index = emulated::backwards ? blocks - 1 - turn : turn;
    emulated::Block block(threads);
    std::vector<std::thread> team;
    for (unsigned t = 0; t < threads; ++t) {
      team.emplace_back([&, t] {
        threadIdx.x = t;
        blockIdx.x = index;
        gridDim.x = blocks;
        emulated::block = &block;
        kernel(arguments...);
      });
    }
    for (std::thread& thread : team) thread.join();
  }
  return cudaSuccess;
}
