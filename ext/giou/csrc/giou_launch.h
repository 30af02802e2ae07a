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

// The sum over blocks needs a workspace: a ticket that is 0 before the kernel and 0 again after it, and a sum and a count
// for each block. The library has kWorkspaces of them, 4 MB on each device that a kernel of it runs on.
constexpr int kMaxBlocks = 1024;
constexpr int64_t kWorkspaceBytes = 8 + 16 * static_cast<int64_t>(kMaxBlocks);
constexpr int kWorkspaces = 256;

// One of the library's workspaces, or, where `own` is no null pointer, kWorkspaceBytes of zeros that the caller brings.
struct Scratch {
  int slot;
  void* own;
};

// Every function returns nullptr, or a static text that says what CUDA refused.

// The workspace of the place: each (device, stream) has one, since kernels of one stream never overlap, and so has each
// stream of each CUDA graph being recorded, since a graph may be replayed on any stream, but never beside itself. A slot
// is never given back; *slot is -1 once all are taken.
const char* workspace_slot(Place place, int* slot);

// Writes the loss (float, or double for float64 predictions) and the number of valid boxes (int64).
const char* loss_forward(Place place, const Boxes& boxes, Scratch scratch, void* loss, void* valid);

// Writes d loss / d predictions times *grad, both `grad` and `valid` being read on the device. `gradient` is 16-byte aligned.
const char* loss_backward(Place place, const Boxes& boxes, const void* grad, const void* valid, void* gradient);

// The article's kernels: float32 only, one thread a box; the sums are left to the caller.
const char* box_forward(Place place, const Boxes& boxes, bool conditional, float* giou, float* valid);
const char* box_backward(Place place, const Boxes& boxes, bool conditional, const float* grad, float* gradient);

// A kernel that does nothing: the least that any launch costs.
const char* empty_kernel(Place place);

}  // namespace cuda
}  // namespace giou
