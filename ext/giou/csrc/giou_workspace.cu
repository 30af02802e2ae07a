// Where the fused loss keeps its ticket and its partial sums.
//
// The memory comes from cudaMalloc and not from torch: torch's CUDA graph trees run a warm-up in a private pool and refuse
// allocations that outlive it. It is never freed, 32 KB a stream, since at exit the driver may be gone before us.
#include <cuda_runtime.h>

#include <map>
#include <mutex>
#include <utility>

#include "giou_launch.h"

namespace giou {
namespace cuda {
namespace {

const char* text_of(cudaError_t error) {
  if (error == cudaSuccess) return nullptr;
  (void)cudaGetLastError();
  return cudaGetErrorString(error);
}

const char* zeroed(Place place, void** memory) {
  // Another thread may be recording a graph, during which cudaMalloc is refused everywhere unless this thread opts out.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  if (const char* error = text_of(cudaThreadExchangeStreamCaptureMode(&mode))) return error;
  cudaError_t status = cudaMalloc(memory, static_cast<size_t>(kWorkspaceBytes));
  const char* error = text_of(status);
  if (!error) error = text_of(cudaMemsetAsync(*memory, 0, static_cast<size_t>(kWorkspaceBytes), static_cast<cudaStream_t>(place.stream)));
  const char* restored = text_of(cudaThreadExchangeStreamCaptureMode(&mode));
  return error ? error : restored;
}

}  // namespace

const char* is_capturing(Place place, bool* capturing) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const char* error = text_of(cudaStreamIsCapturing(static_cast<cudaStream_t>(place.stream), &status));
  *capturing = status != cudaStreamCaptureStatusNone;
  return error;
}

const char* cached_workspace(Place place, void** workspace) {
  static std::mutex mutex;
  static auto* const cache = new std::map<std::pair<int, void*>, void*>();
  const std::lock_guard<std::mutex> guard(mutex);
  void*& entry = (*cache)[{place.device, place.stream}];
  if (entry == nullptr) {
    void* memory = nullptr;
    if (const char* error = zeroed(place, &memory)) return error;
    entry = memory;
  }
  *workspace = entry;
  return nullptr;
}

}  // namespace cuda
}  // namespace giou
