// GIoU on CUDA devices. Needs the toolkit's headers only, so that it compiles where neither torch nor a GPU is.
//
// The fused loss is one launch: a grid-stride loop, a shuffle within the warp, one partial sum a block, and the block that
// draws the last ticket adds the partial sums in the order of their blocks. No atomic addition of floats, hence the same
// bits on every run; no value travels to the host, hence no synchronisation. Predictions of boxes that do not count are
// never loaded.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

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

template <typename S>
constexpr int kQuadAlignment = 4 * sizeof(S) < 16 ? 4 * sizeof(S) : 16;

// The four corners of a box as one access of up to 16 bytes.
template <typename S>
struct alignas(kQuadAlignment<S>) Quad {
  S corner[4];
};

template <typename S>
bool is_aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % kQuadAlignment<S> == 0;
}

// Views may begin at any element; only kAligned ones are read with wide loads.
template <typename M, bool kAligned, typename S>
__device__ __forceinline__ Box<M> load_box(const S* __restrict__ rows, int64_t row) {
  if constexpr (kAligned) {
    const Quad<S> q = reinterpret_cast<const Quad<S>*>(rows)[row];
    return {to_math<M>(q.corner[0]), to_math<M>(q.corner[1]), to_math<M>(q.corner[2]), to_math<M>(q.corner[3])};
  } else {
    const S* q = rows + 4 * row;
    return {to_math<M>(q[0]), to_math<M>(q[1]), to_math<M>(q[2]), to_math<M>(q[3])};
  }
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

// ---- arithmetic ------------------------------------------------------------------------------------------------------

// The compiler must take the box for changed, so that repeated arithmetic is really repeated.
__device__ __forceinline__ void forget(Box<float>& box) {
  asm volatile("" : "+f"(box.x1), "+f"(box.y1), "+f"(box.x2), "+f"(box.y2));
}
__device__ __forceinline__ void forget(Box<double>& box) {
  asm volatile("" : "+d"(box.x1), "+d"(box.y1), "+d"(box.x2), "+d"(box.y2));
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

__device__ __forceinline__ Partial warp_sum(Partial p) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
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
  p = warp_sum(p);
  __syncthreads();  // a former sum may still be read
  if (lane == 0) {
    giou[warp] = p.giou;
    valid[warp] = p.valid;
  }
  __syncthreads();
  if (warp == 0) {
    p.giou = lane < kWarps ? giou[lane] : 0.0;
    p.valid = lane < kWarps ? valid[lane] : 0;
    p = warp_sum(p);
  }
  return p;
}

struct Workspace {
  unsigned* ticket;
  double* giou;
  long long* valid;

  __host__ explicit Workspace(void* base)
      : ticket(static_cast<unsigned*>(base)),
        giou(reinterpret_cast<double*>(static_cast<char*>(base) + 16)),
        valid(reinterpret_cast<long long*>(static_cast<char*>(base) + 16 + 8 * kMaxBlocks)) {}
};

// Leaves the block's partial sum in the workspace. True, for the whole block, in the block that came last.
__device__ __forceinline__ bool leave_partial(const Workspace& workspace, const Partial& p) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    workspace.giou[blockIdx.x] = p.giou;
    workspace.valid[blockIdx.x] = p.valid;
    __threadfence();
    // atomicInc wraps: the last ticket leaves 0 behind for the next launch.
    last = atomicInc(workspace.ticket, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last) __threadfence();
  return last;
}

// ---- kernels ---------------------------------------------------------------------------------------------------------

template <typename P, typename T, typename M, bool kAligned>
__global__ void __launch_bounds__(kThreads, kResident<M>)
    loss_forward_kernel(const P* predictions, const T* targets, int64_t boxes, int64_t iterations, Workspace workspace,
                        M* loss, int64_t* valid) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  const M share = M(1) / static_cast<M>(iterations);
  M sum = M(0);
  unsigned count = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < boxes; i += stride) {
    const Box<M> t = load_box<M, kAligned>(targets, i);
    if (!is_valid(t.y2)) continue;
    sum += repeated_giou(load_box<M, kAligned>(predictions, i), t, iterations, share);
    ++count;
  }
  Partial p = block_sum({static_cast<double>(sum), static_cast<long long>(count)});
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

template <typename P, typename T, typename M, bool kAligned>
__global__ void __launch_bounds__(kThreads, kResident<M>)
    loss_backward_kernel(const P* predictions, const T* targets, int64_t boxes, int64_t iterations, const M* grad,
                         const int64_t* valid, P* gradient) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  const M scale = -*grad / static_cast<M>(*valid > 0 ? *valid : 1) / static_cast<M>(iterations);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < boxes; i += stride) {
    const Box<M> t = load_box<M, kAligned>(targets, i);
    Box<M> g = {M(0), M(0), M(0), M(0)};
    if (is_valid(t.y2)) g = repeated_gradient(load_box<M, kAligned>(predictions, i), t, iterations, scale);
    store_box(gradient, i, g);
  }
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
    const Box<float> t = load_box<float, false>(targets, i);
    result = repeated_giou(load_box<float, false>(predictions, i), t, iterations, share);
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
    const Box<float> t = load_box<float, false>(targets, i);
    g = repeated_gradient(load_box<float, false>(predictions, i), t, iterations, grad[i] / static_cast<float>(iterations));
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

const char* resident_blocks(Place place, int64_t boxes, int64_t* blocks) {
  int processors = 0;
  if (const char* error = text_of(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, place.device))) return error;
  int64_t most = static_cast<int64_t>(processors) * kBlocksPerProcessor;
  if (most > kMaxBlocks) most = kMaxBlocks;
  *blocks = covering(boxes) < most ? covering(boxes) : most;
  return nullptr;
}

constexpr const char* kUnsupported = "unsupported pair of element types";

}  // namespace

const char* loss_forward(Place place, const Boxes& boxes, void* workspace, void* loss, void* valid) {
  int64_t blocks = 0;
  if (const char* error = resident_blocks(place, boxes.count, &blocks)) return error;
  const char* error = nullptr;
  const bool known = dispatch<__half, __nv_bfloat16>(boxes.prediction_type, boxes.target_type, [&](auto types) {
    using P = typename decltype(types)::Prediction;
    using T = typename decltype(types)::Target;
    using M = typename decltype(types)::Math;
    const bool aligned = is_aligned<P>(boxes.predictions) && is_aligned<T>(boxes.targets);
    error = launch(place, blocks, aligned ? loss_forward_kernel<P, T, M, true> : loss_forward_kernel<P, T, M, false>,
                   static_cast<const P*>(boxes.predictions), static_cast<const T*>(boxes.targets), boxes.count,
                   boxes.iterations, Workspace(workspace), static_cast<M*>(loss), static_cast<int64_t*>(valid));
  });
  return known ? error : kUnsupported;
}

const char* loss_backward(Place place, const Boxes& boxes, const void* grad, const void* valid, void* gradient) {
  if (boxes.count == 0) return nullptr;
  int64_t blocks = 0;
  if (const char* error = resident_blocks(place, boxes.count, &blocks)) return error;
  const char* error = nullptr;
  const bool known = dispatch<__half, __nv_bfloat16>(boxes.prediction_type, boxes.target_type, [&](auto types) {
    using P = typename decltype(types)::Prediction;
    using T = typename decltype(types)::Target;
    using M = typename decltype(types)::Math;
    const bool aligned = is_aligned<P>(boxes.predictions) && is_aligned<T>(boxes.targets);
    error = launch(place, blocks, aligned ? loss_backward_kernel<P, T, M, true> : loss_backward_kernel<P, T, M, false>,
                   static_cast<const P*>(boxes.predictions), static_cast<const T*>(boxes.targets), boxes.count,
                   boxes.iterations, static_cast<const M*>(grad), static_cast<const int64_t*>(valid),
                   static_cast<P*>(gradient));
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
