// What the CUDA half offers to the binding: plain pointers, a stream as void*, no CUDA and no torch header. The binding can
// thus be type-checked without a CUDA toolkit, and the kernels compiled without torch.
#pragma once

#include <cstdint>

#include "giou_types.h"

namespace giou {
namespace cuda {

// Where to run. The caller has made `device` current; `stream` is a cudaStream_t.
struct Place {
  int device;
  void* stream;
};

// Contiguous rows of four; `count` boxes. The pointers need the alignment of one element, no more.
struct Boxes {
  const void* predictions;
  const void* targets;
  DType prediction_type;
  DType target_type;
  int64_t count;
  int64_t iterations;
};

// The sum over blocks needs a few kilobytes whose first word, the ticket, is 0 before the kernel and 0 again after it.
constexpr int kMaxBlocks = 2048;
constexpr int64_t kWorkspaceBytes = 16 + 16 * static_cast<int64_t>(kMaxBlocks);

// Every function returns nullptr, or a static text that says what CUDA refused.

// Whether work given to the stream is being recorded in a CUDA graph.
const char* is_capturing(Place place, bool* capturing);

// A workspace that lives as long as the process, one per (device, stream): kernels of one stream never overlap. Not for use
// under capture, since a graph may be replayed on another stream.
const char* cached_workspace(Place place, void** workspace);

// Writes the loss (float, or double for float64 predictions) and the number of valid boxes (int64).
const char* loss_forward(Place place, const Boxes& boxes, void* workspace, void* loss, void* valid);

// Writes d loss / d predictions times *grad, both `grad` and `valid` being read on the device. `gradient` is 16-byte aligned.
const char* loss_backward(Place place, const Boxes& boxes, const void* grad, const void* valid, void* gradient);

// The article's kernels: float32 only, one thread a box; the sums are left to the caller.
const char* box_forward(Place place, const Boxes& boxes, bool conditional, float* giou, float* valid);
const char* box_backward(Place place, const Boxes& boxes, bool conditional, const float* grad, float* gradient);

// A kernel that does nothing: the least that any launch costs.
const char* empty_kernel(Place place);

}  // namespace cuda
}  // namespace giou
