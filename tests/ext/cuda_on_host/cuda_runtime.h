// Just enough of CUDA for a host compiler to run giou_kernels.cu: a stack of its own for each thread of a block, one block
// after another. A thread runs until it waits at a barrier or shuffle, then the next one does: a missing barrier shows as a
// wrong sum, in one order of the threads or in the other, and one that not all threads reach ends the process. What this
// cannot show: the order of memory accesses between blocks, divergence within a warp, speed.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <ucontext.h>
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

inline dim3 threadIdx, blockIdx, gridDim;

namespace emulated {

constexpr unsigned kWarp = 32;
constexpr std::size_t kStack = 1 << 18;

struct Barrier {
  unsigned expected, arrived = 0, phase = 0;
};

struct Thread {
  std::unique_ptr<char[]> stack{new char[kStack]};
  ucontext_t start;
  std::jmp_buf here;
  bool started = false, ended = false;
  const Barrier* waits = nullptr;  // as long as it is in `phase`
  unsigned phase = 0;
};

struct Block {
  explicit Block(unsigned threads) : all{threads}, warps(threads / kWarp, Barrier{kWarp}), slots(threads) {}
  Barrier all;
  std::vector<Barrier> warps;
  std::vector<std::uint64_t> slots;
};

inline Block* block = nullptr;
inline std::vector<Thread> team;  // kept from block to block
inline const std::function<void()>* kernel = nullptr;
inline std::jmp_buf scheduler;

// Set by the tests: how many multiprocessors the device claims, and whether blocks and threads run from the last to the first.
inline int processors = 2;
inline bool backwards = false;
inline unsigned long long recording = 0;  // the number of the graph that is being recorded, 0 for none
inline std::int64_t launches = 0;

[[gnu::noinline]] inline void wait_at(Barrier& barrier) {
  if (++barrier.arrived == barrier.expected) {
    barrier.arrived = 0;
    ++barrier.phase;
    return;
  }
  Thread& own = team[threadIdx.x];
  own.waits = &barrier;
  own.phase = barrier.phase;
  if (_setjmp(own.here) == 0) std::longjmp(scheduler, 1);
}

inline void first() {
  (*kernel)();
  team[threadIdx.x].ended = true;
  std::longjmp(scheduler, 1);
}

[[gnu::noinline]] inline void resume(Thread& thread) {
  if (_setjmp(scheduler) != 0) return;  // it waits, or has ended
  if (thread.started) std::longjmp(thread.here, 1);
  thread.started = true;
  setcontext(&thread.start);
}

inline void run(unsigned threads) {
  while (team.size() < threads) team.emplace_back();
  for (unsigned t = 0; t < threads; ++t) {
    Thread& thread = team[t];
    thread.started = thread.ended = false;
    thread.waits = nullptr;
    getcontext(&thread.start);
    thread.start.uc_stack = {thread.stack.get(), 0, kStack};
    thread.start.uc_link = nullptr;
    makecontext(&thread.start, first, 0);
  }
  for (unsigned left = threads; left > 0;) {
    bool moved = false;
    for (unsigned turn = 0; turn < threads; ++turn) {
      const unsigned t = backwards ? threads - 1 - turn : turn;
      Thread& thread = team[t];
      if (thread.ended || (thread.waits != nullptr && thread.waits->phase == thread.phase)) continue;
      moved = true;
      threadIdx.x = t;
      resume(thread);
      left -= thread.ended;
    }
    if (!moved) {
      std::fputs("a barrier that not all threads reach\n", stderr);
      std::abort();
    }
  }
}

}  // namespace emulated

inline void __syncthreads() { emulated::wait_at(emulated::block->all); }
inline void __threadfence() {}

template <typename T>
T __shfl_down_sync(unsigned, T value, int offset) {
  const unsigned thread = threadIdx.x;
  const unsigned source = thread + static_cast<unsigned>(offset);
  auto& warp = emulated::block->warps[thread / emulated::kWarp];
  std::memcpy(&emulated::block->slots[thread], &value, sizeof value);
  emulated::wait_at(warp);
  if (source / emulated::kWarp == thread / emulated::kWarp) std::memcpy(&value, &emulated::block->slots[source], sizeof value);
  emulated::wait_at(warp);
  return value;
}

inline void __syncwarp() { emulated::wait_at(emulated::block->warps[threadIdx.x / emulated::kWarp]); }

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
  const std::function<void()> call = [&] { kernel(arguments...); };
  emulated::kernel = &call;
  gridDim.x = blocks;
  for (unsigned turn = 0; turn < blocks; ++turn) {
    emulated::Block block(threads);
    emulated::block = &block;
    blockIdx.x = emulated::backwards ? blocks - 1 - turn : turn;
    emulated::run(threads);
  }
  return cudaSuccess;
}
