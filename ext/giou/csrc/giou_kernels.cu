// GIoU on CUDA devices. Needs the toolkit's headers only, so that it compiles where neither torch nor a GPU is.
//
// The fused loss is one launch. A warp takes tiles of 512 bytes of targets (128 boxes in uint8), each lane 16 bytes of a
// tile, four tiles in flight before the first is used; README.md works out why that suffices. Each lane then takes one box
// of 32 that lie side by side, so that predictions and gradients move in whole lines too. Sums go from box to lane to warp
// to block, and the block that draws the last ticket adds the partial sums in the order of their blocks: no atomic addition
// of floats, hence the same bits on every run, whatever the pointers' alignment; no value travels to the host, hence no
// sync. Predictions of boxes that do not count are never loaded.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstring>

#include "giou_launch.h"
#include "giou_math.h"

namespace giou {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBlocksPerProcessor = 4;  // 1024 threads on each multiprocessor; more blocks only lengthen the last sum
// What the register allocator must leave room for. Gradients in float64 need more than the 64 registers of four blocks.
template <typename M>
constexpr int kResident = sizeof(M) == 8 ? 2 : kBlocksPerProcessor;
constexpr unsigned kAllLanes = 0xffffffffu;

// ---- memory ----------------------------------------------------------------------------------------------------------

template <typename M, typename S>
__device__ __forceinline__ M to_math(S value) {
  return static_cast<M>(value);
}
template <>
__device__ __forceinline__ float to_math<float, __half>(__half value) {
  return __half2float(value);
}
template <>
__device__ __forceinline__ float to_math<float, __nv_bfloat16>(__nv_bfloat16 value) {
  return __bfloat162float(value);
}

template <typename S, typename M>
__device__ __forceinline__ S from_math(M value) {
  return static_cast<S>(value);
}
template <>
__device__ __forceinline__ __half from_math<__half, float>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_math<__nv_bfloat16, float>(float value) {
  return __float2bfloat16_rn(value);
}

// The four corners of a box. In `Access::kElement` they lie anywhere, else at a multiple of their size (at most 16).
template <typename S>
constexpr int kQuadAlignment = 4 * sizeof(S) < 16 ? 4 * sizeof(S) : 16;

template <typename S>
struct alignas(kQuadAlignment<S>) Quad {
  S corner[4];
};

template <typename M, typename S>
__device__ __forceinline__ Box<M> box_of(const Quad<S>& q) {
  return {to_math<M>(q.corner[0]), to_math<M>(q.corner[1]), to_math<M>(q.corner[2]), to_math<M>(q.corner[3])};
}

template <typename M, typename S>
__device__ __forceinline__ bool counts(const Quad<S>& target) {
  if constexpr (sizeof(S) == 1) {
    return is_valid(target.corner[3]);  // without a conversion
  } else {
    return is_valid(to_math<M>(target.corner[3]));
  }
}

// How boxes are read, by the alignment of both pointers: views may begin at any element.
enum class Access {
  kTile,     // targets 16 bytes a lane, for types of which 16 bytes hold several boxes
  kBox,      // a box a lane, of up to 16 bytes an access
  kElement,  // a corner a lane
};

template <Access kAccess, typename S>
__device__ __forceinline__ Quad<S> load_box(const S* rows, int64_t row) {
  Quad<S> q;
  if constexpr (kAccess == Access::kElement) {
    for (int c = 0; c < 4; ++c) q.corner[c] = rows[4 * row + c];
  } else if constexpr (sizeof(q) == 4) {
    const unsigned raw = __ldg(reinterpret_cast<const unsigned*>(rows) + row);
    memcpy(&q, &raw, sizeof raw);
  } else if constexpr (sizeof(q) == 8) {
    const uint2 raw = __ldg(reinterpret_cast<const uint2*>(rows) + row);
    memcpy(&q, &raw, sizeof raw);
  } else {
    constexpr int kParts = sizeof(q) / sizeof(uint4);
    uint4 raw[kParts];
    for (int k = 0; k < kParts; ++k) raw[k] = __ldg(reinterpret_cast<const uint4*>(rows) + kParts * row + k);
    memcpy(&q, raw, sizeof raw);
  }
  return q;
}

template <typename S, typename M>
__device__ __forceinline__ void store_box(S* rows, int64_t row, const Box<M>& box) {
  Quad<S> q;
  q.corner[0] = from_math<S>(box.x1);
  q.corner[1] = from_math<S>(box.y1);
  q.corner[2] = from_math<S>(box.x2);
  q.corner[3] = from_math<S>(box.y2);
  reinterpret_cast<Quad<S>*>(rows)[row] = q;
}

// ---- tiles of targets ------------------------------------------------------------------------------------------------

// Rows of 32 boxes that lie side by side in memory, one box a lane. A tile is as many rows as 16 bytes a lane hold, at
// least one; up to kTiles tiles, 64 bytes a lane, are on their way at once, and as many bytes of predictions.
template <typename S>
constexpr int kBytes = static_cast<int>(sizeof(Quad<S>));
template <typename T>
constexpr int kTileRows = kBytes<T> < 16 ? 16 / kBytes<T> : 1;
template <typename T>
constexpr int kTileBoxes = kWarp * kTileRows<T>;
template <typename T>
constexpr int kRows = 64 / kBytes<T>;
template <typename T>
constexpr int kTiles = kRows<T> / kTileRows<T>;
template <typename P, typename T>
constexpr int kRowsAhead = 64 / kBytes<P> < kRows<T> ? 64 / kBytes<P> : kRows<T>;

// Where a warp puts what has come. From there the arithmetic takes box after box in one small loop; out of registers it
// would have to be unrolled, and spill.
template <typename P, typename T>
struct alignas(16) Stage {
  Quad<T> target[kRows<T>][kWarp];
  Quad<P> prediction[kRowsAhead<P, T>][kWarp];
};

// Puts `count` rows there, with zeros, which do not count, in place of boxes from `left` on.
template <Access kAccess, int kCount, typename S>
__device__ __forceinline__ void fetch_rows(Quad<S> (*rows)[kWarp], const S* boxes, int lane, int left) {
  Quad<S> q[kCount] = {};
#pragma unroll
  for (int r = 0; r < kCount; ++r)
    if (kWarp * r + lane < left) q[r] = load_box<kAccess>(boxes, kWarp * r + lane);
#pragma unroll
  for (int r = 0; r < kCount; ++r) rows[r][lane] = q[r];
}

// Puts the first `left` targets of a group there. All loads are under way before the first is used.
template <Access kAccess, typename T>
__device__ __forceinline__ void fetch_targets(Quad<T> (&rows)[kRows<T>][kWarp], const T* targets, int lane, int left) {
  __syncwarp();  // what was there may still be read
  if constexpr (kAccess == Access::kTile) {
    uint4 raw[kTiles<T>] = {};
#pragma unroll
    for (int k = 0; k < kTiles<T>; ++k)
      if ((k + 1) * kTileBoxes<T> <= left) raw[k] = __ldg(reinterpret_cast<const uint4*>(targets) + k * kWarp + lane);
#pragma unroll
    for (int k = 0; k < kTiles<T>; ++k) reinterpret_cast<uint4*>(rows[k * kTileRows<T>])[lane] = raw[k];
    const int whole = left / kTileBoxes<T> * kTileBoxes<T>;
    if (whole < left) {
      __syncwarp();  // the zeros of other lanes go first
      fetch_rows<Access::kBox, kTileRows<T>>(rows + whole / kWarp, targets + 4 * whole, lane, left - whole);
    }
  } else {
    // More, smaller loads for the same bytes: some at a time, for want of registers.
    constexpr int kMost = kAccess == Access::kBox ? 8 : 4;
    constexpr int kCount = kRows<T> < kMost ? kRows<T> : kMost;
#pragma unroll 1
    for (int r = 0; r < kRows<T>; r += kCount)
      fetch_rows<kAccess, kCount>(rows + r, targets + 4 * kWarp * r, lane, left - kWarp * r);
  }
  __syncwarp();
}

// Calls body(box, counts, prediction, target) for the boxes of this lane; the prediction of a box that does not count is
// not read. A warp takes groups of `tiles` tiles; prepare() is called before the first of a group.
template <Access kAccess, typename M, typename P, typename T, typename Prepare, typename Body>
__device__ __forceinline__ void for_each_box(const P* predictions, const T* targets, int64_t boxes, int tiles, const Prepare& prepare,
                                             const Body& body) {
  __shared__ Stage<P, T> stages[kWarps];
  Stage<P, T>& stage = stages[threadIdx.x / kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t group = static_cast<int64_t>(tiles) * kTileBoxes<T>;
  for (int64_t start = (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp) * group; start < boxes;
       start += gridDim.x * kWarps * group) {
    const int left = static_cast<int>(boxes - start < group ? boxes - start : group);
    fetch_targets<kAccess>(stage.target, targets + 4 * start, lane, left);
    prepare();
#pragma unroll 1
    for (int first = 0; kWarp * first < left; first += kRowsAhead<P, T>) {
      Quad<P> p[kRowsAhead<P, T>] = {};
#pragma unroll
      for (int r = 0; r < kRowsAhead<P, T>; ++r)
        if (counts<M>(stage.target[first + r][lane])) p[r] = load_box<kAccess>(predictions + 4 * start, kWarp * (first + r) + lane);
#pragma unroll
      for (int r = 0; r < kRowsAhead<P, T>; ++r)
        if (counts<M>(stage.target[first + r][lane])) stage.prediction[r][lane] = p[r];
#pragma unroll 1
      for (int r = 0; r < kRowsAhead<P, T>; ++r) {
        const int box = kWarp * (first + r) + lane;
        const Quad<T> t = stage.target[first + r][lane];
        if (box < left) body(start + box, counts<M>(t), stage.prediction[r][lane], t);
      }
    }
  }
}

// ---- arithmetic ------------------------------------------------------------------------------------------------------

// The compiler must take the value for changed, so that what hangs on it is computed here, and each time.
__device__ __forceinline__ void forget(float& value) { asm volatile("" : "+f"(value)); }
__device__ __forceinline__ void forget(double& value) { asm volatile("" : "+d"(value)); }
template <typename M>
__device__ __forceinline__ void forget(Box<M>& box) {
  forget(box.x1);
  forget(box.y1);
  forget(box.x2);
  forget(box.y2);
}

template <typename M>
__device__ __forceinline__ M repeated_giou(Box<M> p, const Box<M>& t, int64_t iterations, M share) {
  M sum = M(0);
  for (int64_t k = 0; k < iterations; ++k) {
    forget(p);
    sum += giou(p, t) * share;
  }
  return sum;
}

template <typename M>
__device__ __forceinline__ Box<M> repeated_gradient(Box<M> p, const Box<M>& t, int64_t iterations, M scale) {
  Box<M> sum = {M(0), M(0), M(0), M(0)};
  for (int64_t k = 0; k < iterations; ++k) {
    forget(p);
    const Box<M> g = giou_gradient(p, t);
    sum.x1 += g.x1 * scale;
    sum.y1 += g.y1 * scale;
    sum.x2 += g.x2 * scale;
    sum.y2 += g.y2 * scale;
  }
  return sum;
}

// ---- sums ------------------------------------------------------------------------------------------------------------

struct Partial {
  double giou;
  long long valid;
};

// Sum over the first kLanes lanes, in lane 0.
template <int kLanes>
__device__ __forceinline__ Partial warp_sum(Partial p) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    p.giou += __shfl_down_sync(kAllLanes, p.giou, offset);
    p.valid += __shfl_down_sync(kAllLanes, p.valid, offset);
  }
  return p;
}

// Sum over the block, in thread 0. All threads of the block take part.
__device__ __forceinline__ Partial block_sum(Partial p) {
  __shared__ double giou[kWarps];
  __shared__ long long valid[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  p = warp_sum<kWarp>(p);
  __syncthreads();  // a former sum may still be read
  if (lane == 0) {
    giou[warp] = p.giou;
    valid[warp] = p.valid;
  }
  __syncthreads();
  if (warp == 0) {
    p.giou = lane < kWarps ? giou[lane] : 0.0;
    p.valid = lane < kWarps ? valid[lane] : 0;
    p = warp_sum<kWarps>(p);
  }
  return p;
}

// Memory that is 0 when the library is loaded, on each device: a workspace needs no allocation and no memset, in a graph
// neither.
struct Workspace {
  unsigned ticket;  // 0 before a launch, and 0 again after it
  double giou[kMaxBlocks];
  long long valid[kMaxBlocks];
};
static_assert(sizeof(Workspace) == kWorkspaceBytes);

__device__ Workspace workspaces[kWorkspaces];

// Leaves the block's partial sum in the workspace. True, for the whole block, in the block that came last.
__device__ __forceinline__ bool leave_partial(Workspace& workspace, const Partial& p) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    workspace.giou[blockIdx.x] = p.giou;
    workspace.valid[blockIdx.x] = p.valid;
    __threadfence();
    // atomicInc wraps: the last ticket leaves 0 behind for the next launch.
    last = atomicInc(&workspace.ticket, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last) __threadfence();
  return last;
}

// ---- kernels ---------------------------------------------------------------------------------------------------------

template <typename P, typename T, typename M, Access kAccess>
__global__ void __launch_bounds__(kThreads, kResident<M>)
    loss_forward_kernel(const P* predictions, const T* targets, int64_t boxes, int tiles, int64_t iterations, Workspace* own, int slot,
                        M* loss, int64_t* valid) {
  const M part = M(1) / static_cast<M>(iterations);
  M sum = M(0);
  unsigned count = 0;
  const auto add = [&](int64_t, bool counts, const Quad<P>& p, const Quad<T>& t) {
    if (!counts) return;
    sum += repeated_giou(box_of<M>(p), box_of<M>(t), iterations, part);
    ++count;
  };
  for_each_box<kAccess, M>(predictions, targets, boxes, tiles, [] {}, add);
  Partial p = block_sum({static_cast<double>(sum), static_cast<long long>(count)});
  Workspace& workspace = own ? *own : workspaces[slot];
  if (!leave_partial(workspace, p)) return;

  p = {0.0, 0};
  for (unsigned b = threadIdx.x; b < gridDim.x; b += kThreads) {
    p.giou += __ldcg(workspace.giou + b);
    p.valid += __ldcg(workspace.valid + b);
  }
  p = block_sum(p);
  if (threadIdx.x == 0) {
    *loss = static_cast<M>(1.0 - p.giou / static_cast<double>(p.valid > 0 ? p.valid : 1));
    *valid = p.valid;
  }
}

template <typename P, typename T, typename M, Access kAccess>
__global__ void __launch_bounds__(kThreads, kResident<M>)
    loss_backward_kernel(const P* predictions, const T* targets, int64_t boxes, int tiles, int64_t iterations, const M* grad,
                         const int64_t* valid, P* gradient) {
  M from_above = -*grad;
  const M count = static_cast<M>(*valid > 0 ? *valid : 1);
  M scale = M(0);
  // Not sooner: the divisions would have the targets wait until grad and valid have come.
  const auto prepare = [&] {
    forget(from_above);
    scale = from_above / count / static_cast<M>(iterations);
  };
  const auto store = [&](int64_t box, bool counts, const Quad<P>& p, const Quad<T>& t) {
    Box<M> g = {M(0), M(0), M(0), M(0)};
    if (counts) g = repeated_gradient(box_of<M>(p), box_of<M>(t), iterations, scale);
    store_box(gradient, box, g);
  };
  for_each_box<kAccess, M>(predictions, targets, boxes, tiles, prepare, store);
}

// The article's two kernels: scalar loads, one thread a box, nothing summed. kConditional is the only difference.
template <bool kConditional>
__global__ void __launch_bounds__(kThreads)
    box_forward_kernel(const float* predictions, const float* targets, int64_t boxes, int64_t iterations, float* out,
                       float* valid) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= boxes) return;
  const float share = 1.0f / static_cast<float>(iterations);
  const bool counts = is_valid(targets[4 * i + 3]);
  float result = 0.0f;
  if (!kConditional || counts) {
    const Box<float> t = box_of<float>(load_box<Access::kElement>(targets, i));
    result = repeated_giou(box_of<float>(load_box<Access::kElement>(predictions, i)), t, iterations, share);
  }
  out[i] = counts ? result : 0.0f;
  valid[i] = counts ? 1.0f : 0.0f;
}

template <bool kConditional>
__global__ void __launch_bounds__(kThreads)
    box_backward_kernel(const float* predictions, const float* targets, int64_t boxes, int64_t iterations, const float* grad,
                        float* gradient) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= boxes) return;
  const bool counts = is_valid(targets[4 * i + 3]);
  Box<float> g = {0.0f, 0.0f, 0.0f, 0.0f};
  if (!kConditional || counts) {
    const Box<float> t = box_of<float>(load_box<Access::kElement>(targets, i));
    g = repeated_gradient(box_of<float>(load_box<Access::kElement>(predictions, i)), t, iterations, grad[i] / static_cast<float>(iterations));
  }
  if (!counts) g = {0.0f, 0.0f, 0.0f, 0.0f};
  store_box(gradient, i, g);
}

__global__ void nothing_kernel() {}

// ---- launching -------------------------------------------------------------------------------------------------------

const char* text_of(cudaError_t error) {
  if (error == cudaSuccess) return nullptr;
  (void)cudaGetLastError();  // the caller reports it; the next launch must not find it again
  return cudaGetErrorString(error);
}

template <typename... Parameters, typename... Arguments>
const char* launch(Place place, int64_t blocks, void (*kernel)(Parameters...), Arguments... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kThreads);
  config.stream = static_cast<cudaStream_t>(place.stream);
  return text_of(cudaLaunchKernelEx(&config, kernel, arguments...));
}

// Blocks that cover the boxes at one box a thread; at least one, since no boxes also have a loss.
int64_t covering(int64_t boxes) { return boxes <= kThreads ? 1 : (boxes + kThreads - 1) / kThreads; }

// How a launch shares the boxes out: as many blocks as are resident at once, at most, and groups of so many tiles that the
// last turn of the warps is as full as the others.
struct Shape {
  int64_t blocks;
  int tiles;
};

template <typename T>
const char* shape_of(Place place, int64_t boxes, Shape* shape) {
  int processors = 0;
  if (const char* error = text_of(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, place.device))) return error;
  int64_t most = static_cast<int64_t>(processors) * kBlocksPerProcessor;
  if (most > kMaxBlocks) most = kMaxBlocks;
  const int64_t blocks = covering((boxes + kTileRows<T> - 1) / kTileRows<T>);
  const int64_t tiles = (blocks + most - 1) / most;
  const int64_t turns = (tiles + kTiles<T> - 1) / kTiles<T>;
  *shape = {blocks < most ? blocks : most, static_cast<int>((tiles + turns - 1) / turns)};
  return nullptr;
}

bool is_aligned(const void* pointer, size_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

// Calls run(the access) with the widest access that both pointers allow, as a type.
template <Access kAccess>
struct Chosen {
  static constexpr Access access = kAccess;
};

template <typename P, typename T, typename Run>
void with_access(const Boxes& boxes, const Run& run) {
  if (!is_aligned(boxes.predictions, alignof(Quad<P>)) || !is_aligned(boxes.targets, alignof(Quad<T>))) {
    run(Chosen<Access::kElement>{});
  } else if (kTileRows<T> == 1 || !is_aligned(boxes.targets, sizeof(uint4))) {
    run(Chosen<Access::kBox>{});
  } else if constexpr (kTileRows<T> > 1) {
    run(Chosen<Access::kTile>{});
  }
}

constexpr const char* kUnsupported = "unsupported pair of element types";

}  // namespace

const char* loss_forward(Place place, const Boxes& boxes, Scratch scratch, void* loss, void* valid) {
  const char* error = nullptr;
  const bool known = dispatch<__half, __nv_bfloat16>(boxes.prediction_type, boxes.target_type, [&](auto types) {
    using P = typename decltype(types)::Prediction;
    using T = typename decltype(types)::Target;
    using M = typename decltype(types)::Math;
    Shape shape = {};
    error = shape_of<T>(place, boxes.count, &shape);
    if (error) return;
    with_access<P, T>(boxes, [&](auto chosen) {
      error = launch(place, shape.blocks, loss_forward_kernel<P, T, M, decltype(chosen)::access>,
                     static_cast<const P*>(boxes.predictions), static_cast<const T*>(boxes.targets), boxes.count,
                     shape.tiles, boxes.iterations, static_cast<Workspace*>(scratch.own), scratch.slot, static_cast<M*>(loss),
                     static_cast<int64_t*>(valid));
    });
  });
  return known ? error : kUnsupported;
}

const char* loss_backward(Place place, const Boxes& boxes, const void* grad, const void* valid, void* gradient) {
  if (boxes.count == 0) return nullptr;
  const char* error = nullptr;
  const bool known = dispatch<__half, __nv_bfloat16>(boxes.prediction_type, boxes.target_type, [&](auto types) {
    using P = typename decltype(types)::Prediction;
    using T = typename decltype(types)::Target;
    using M = typename decltype(types)::Math;
    Shape shape = {};
    error = shape_of<T>(place, boxes.count, &shape);
    if (error) return;
    with_access<P, T>(boxes, [&](auto chosen) {
      error = launch(place, shape.blocks, loss_backward_kernel<P, T, M, decltype(chosen)::access>,
                     static_cast<const P*>(boxes.predictions), static_cast<const T*>(boxes.targets), boxes.count,
                     shape.tiles, boxes.iterations, static_cast<const M*>(grad), static_cast<const int64_t*>(valid),
                     static_cast<P*>(gradient));
    });
  });
  return known ? error : kUnsupported;
}

const char* box_forward(Place place, const Boxes& boxes, bool conditional, float* giou, float* valid) {
  if (boxes.count == 0) return nullptr;
  return launch(place, covering(boxes.count), conditional ? box_forward_kernel<true> : box_forward_kernel<false>,
                static_cast<const float*>(boxes.predictions), static_cast<const float*>(boxes.targets), boxes.count,
                boxes.iterations, giou, valid);
}

const char* box_backward(Place place, const Boxes& boxes, bool conditional, const float* grad, float* gradient) {
  if (boxes.count == 0) return nullptr;
  return launch(place, covering(boxes.count), conditional ? box_backward_kernel<true> : box_backward_kernel<false>,
                static_cast<const float*>(boxes.predictions), static_cast<const float*>(boxes.targets), boxes.count,
                boxes.iterations, grad, gradient);
}

const char* empty_kernel(Place place) { return launch(place, 1, nothing_kernel); }

}  // namespace cuda
}  // namespace giou
