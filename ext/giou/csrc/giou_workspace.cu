// Which workspace a launch of the fused loss uses.
#include <cuda_runtime.h>

#include <map>
#include <mutex>
#include <tuple>

#include "giou_launch.h"

namespace giou {
namespace cuda {

const char* workspace_slot(Place place, int* slot) {
  // Outside of a recording the number stays 0, which is no recording's.
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long recording = 0;
  const cudaError_t error = cudaStreamGetCaptureInfo(static_cast<cudaStream_t>(place.stream), &status, &recording);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    return cudaGetErrorString(error);
  }
  if (status == cudaStreamCaptureStatusNone) recording = 0;

  static std::mutex mutex;
  static auto* const slots = new std::map<std::tuple<int, void*, unsigned long long>, int>();
  const std::lock_guard<std::mutex> guard(mutex);
  const auto key = std::make_tuple(place.device, place.stream, recording);
  const auto found = slots->find(key);
  if (found != slots->end()) {
    *slot = found->second;
  } else if (slots->size() < kWorkspaces) {
    *slot = static_cast<int>(slots->size());
    slots->emplace(key, *slot);
  } else {
    *slot = -1;
  }
  return nullptr;
}

}  // namespace cuda
}  // namespace giou
