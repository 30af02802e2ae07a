// The operators steptrace_giou::*, bound through PyTorch's stable ABI: no ATen header, one binary for torch 2.11 and later.
// With USE_CUDA the CUDA half is bound as well.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <tuple>

#include "giou_checks.h"
#include "giou_cpu.h"
#include "giou_types.h"
#ifdef USE_CUDA
#include <torch/csrc/stable/accelerator.h>

#include "giou_launch.h"
#endif

namespace {

using namespace giou::checks;

// ---- CPU -------------------------------------------------------------------------------------------------------------

// A thread is worth waking for eight chunks, 16,384 boxes: some tens of microseconds of work.
constexpr int64_t kChunksPerThread = 8;

constexpr auto kParallelFor = [](int64_t chunks, const auto& body) {
  if (chunks > 0) torch::stable::parallel_for(0, chunks, kChunksPerThread, body);
};

template <typename P, typename T>
giou::cpu::Boxes<P, T> cpu_boxes(const Arguments& a) {
  return {static_cast<const P*>(a.predictions.const_data_ptr()), static_cast<const T*>(a.targets.const_data_ptr()), a.count,
          a.iterations};
}

std::tuple<Tensor, Tensor> giou_loss_cpu(const Tensor& predictions, const Tensor& targets, int64_t iterations) {
  const Arguments a = checked("giou_loss", predictions, targets, iterations);
  Tensor loss = new_empty(a.predictions, 0, loss_type(a));
  Tensor valid = new_empty(a.predictions, 0, ScalarType::Long);
  giou::dispatch<giou::cpu::Half, giou::cpu::BFloat16>(a.prediction_type, a.target_type, [&](auto types) {
    using P = typename decltype(types)::Prediction;
    using T = typename decltype(types)::Target;
    using M = typename decltype(types)::Math;
    giou::cpu::loss_forward<M>(cpu_boxes<P, T>(a), static_cast<M*>(loss.mutable_data_ptr()),
                               static_cast<int64_t*>(valid.mutable_data_ptr()), kParallelFor);
  });
  return {loss, valid};
}

Tensor giou_loss_backward_cpu(const Tensor& grad, const Tensor& predictions, const Tensor& targets, const Tensor& valid,
                              int64_t iterations) {
  const char* op = "giou_loss_backward";
  const Arguments a = checked(op, predictions, targets, iterations);
  check_grad(op, grad, 0, loss_type(a), predictions);
  check_valid(op, valid, predictions);
  Tensor gradient = new_empty(a.predictions, a.predictions.dim(), a.predictions.scalar_type());
  giou::dispatch<giou::cpu::Half, giou::cpu::BFloat16>(a.prediction_type, a.target_type, [&](auto types) {
    using P = typename decltype(types)::Prediction;
    using T = typename decltype(types)::Target;
    using M = typename decltype(types)::Math;
    giou::cpu::loss_backward<M>(cpu_boxes<P, T>(a), *static_cast<const M*>(grad.const_data_ptr()),
                                *static_cast<const int64_t*>(valid.const_data_ptr()),
                                static_cast<P*>(gradient.mutable_data_ptr()), kParallelFor);
  });
  return gradient;
}

giou::cpu::Select selection(bool conditional) {
  return conditional ? giou::cpu::Select::kValid : giou::cpu::Select::kAll;
}

std::tuple<Tensor, Tensor> box_giou_cpu(const Tensor& predictions, const Tensor& targets, bool conditional, int64_t iterations) {
  const Arguments a = checked_float32("box_giou", predictions, targets, iterations);
  Tensor out = new_empty(a.predictions, a.predictions.dim() - 1, ScalarType::Float);
  Tensor valid = new_empty(a.predictions, a.predictions.dim() - 1, ScalarType::Float);
  giou::cpu::box_forward(cpu_boxes<float, float>(a), selection(conditional), static_cast<float*>(out.mutable_data_ptr()),
                         static_cast<float*>(valid.mutable_data_ptr()), kParallelFor);
  return {out, valid};
}

Tensor box_giou_backward_cpu(const Tensor& grad, const Tensor& predictions, const Tensor& targets, bool conditional,
                             int64_t iterations) {
  const char* op = "box_giou_backward";
  const Arguments a = checked_float32(op, predictions, targets, iterations);
  check_grad(op, grad, predictions.dim() - 1, ScalarType::Float, predictions);
  const Tensor dense_grad = dense(grad);  // of a sum it arrives as an expanded scalar
  Tensor gradient = new_empty(a.predictions, a.predictions.dim(), ScalarType::Float);
  giou::cpu::box_backward(cpu_boxes<float, float>(a), selection(conditional), static_cast<const float*>(dense_grad.const_data_ptr()),
                          static_cast<float*>(gradient.mutable_data_ptr()), kParallelFor);
  return gradient;
}

void empty_call_cpu(const Tensor&) {}

// ---- CUDA ------------------------------------------------------------------------------------------------------------

#ifdef USE_CUDA

void raise_if(const char* op, const char* error) {
  if (error) fail(op, "CUDA error: ", error);
}

// Makes the tensors' device current for as long as it lives, and names the stream that torch works on there.
class OnDevice {
 public:
  explicit OnDevice(const Tensor& tensor) : guard_(tensor.get_device_index()), place_{tensor.get_device_index(), nullptr} {
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(place_.device, &place_.stream));
  }
  giou::cuda::Place place() const { return place_; }

 private:
  torch::stable::accelerator::DeviceGuard guard_;
  giou::cuda::Place place_;
};

giou::cuda::Boxes cuda_boxes(const Arguments& a) {
  return {a.predictions.const_data_ptr(), a.targets.const_data_ptr(), a.prediction_type, a.target_type, a.count, a.iterations};
}

// The workspace of one call: the library's, or, once all of those are taken, one that the call zeroes for itself.
class Workspace {
 public:
  Workspace(const char* op, giou::cuda::Place place, const Tensor& like) {
    raise_if(op, giou::cuda::workspace_slot(place, &scratch_.slot));
    if (scratch_.slot >= 0) return;
    const int64_t bytes = giou::cuda::kWorkspaceBytes;
    own_ = torch::stable::new_zeros(like, {&bytes, 1}, ScalarType::Byte);
    scratch_.own = own_->mutable_data_ptr();
  }
  giou::cuda::Scratch scratch() const { return scratch_; }

 private:
  std::optional<Tensor> own_;
  giou::cuda::Scratch scratch_ = {-1, nullptr};
};

std::tuple<Tensor, Tensor> giou_loss_cuda(const Tensor& predictions, const Tensor& targets, int64_t iterations) {
  const char* op = "giou_loss";
  const Arguments a = checked(op, predictions, targets, iterations);
  const OnDevice on(a.predictions);
  Tensor loss = new_empty(a.predictions, 0, loss_type(a));
  Tensor valid = new_empty(a.predictions, 0, ScalarType::Long);
  const Workspace workspace(op, on.place(), a.predictions);
  raise_if(op, giou::cuda::loss_forward(on.place(), cuda_boxes(a), workspace.scratch(), loss.mutable_data_ptr(),
                                        valid.mutable_data_ptr()));
  return {loss, valid};
}

Tensor giou_loss_backward_cuda(const Tensor& grad, const Tensor& predictions, const Tensor& targets, const Tensor& valid,
                               int64_t iterations) {
  const char* op = "giou_loss_backward";
  const Arguments a = checked(op, predictions, targets, iterations);
  const OnDevice on(a.predictions);
  check_grad(op, grad, 0, loss_type(a), predictions);
  check_valid(op, valid, predictions);
  Tensor gradient = new_empty(a.predictions, a.predictions.dim(), a.predictions.scalar_type());
  raise_if(op, giou::cuda::loss_backward(on.place(), cuda_boxes(a), grad.const_data_ptr(), valid.const_data_ptr(),
                                         gradient.mutable_data_ptr()));
  return gradient;
}

std::tuple<Tensor, Tensor> box_giou_cuda(const Tensor& predictions, const Tensor& targets, bool conditional, int64_t iterations) {
  const char* op = "box_giou";
  const Arguments a = checked_float32(op, predictions, targets, iterations);
  const OnDevice on(a.predictions);
  Tensor out = new_empty(a.predictions, a.predictions.dim() - 1, ScalarType::Float);
  Tensor valid = new_empty(a.predictions, a.predictions.dim() - 1, ScalarType::Float);
  raise_if(op, giou::cuda::box_forward(on.place(), cuda_boxes(a), conditional, static_cast<float*>(out.mutable_data_ptr()),
                                       static_cast<float*>(valid.mutable_data_ptr())));
  return {out, valid};
}

Tensor box_giou_backward_cuda(const Tensor& grad, const Tensor& predictions, const Tensor& targets, bool conditional,
                              int64_t iterations) {
  const char* op = "box_giou_backward";
  const Arguments a = checked_float32(op, predictions, targets, iterations);
  const OnDevice on(a.predictions);
  check_grad(op, grad, predictions.dim() - 1, ScalarType::Float, predictions);
  const Tensor dense_grad = dense(grad);
  Tensor gradient = new_empty(a.predictions, a.predictions.dim(), ScalarType::Float);
  raise_if(op, giou::cuda::box_backward(on.place(), cuda_boxes(a), conditional, static_cast<const float*>(dense_grad.const_data_ptr()),
                                        static_cast<float*>(gradient.mutable_data_ptr())));
  return gradient;
}

void empty_call_cuda(const Tensor& like) {
  const OnDevice on(like);
  raise_if("empty_call", giou::cuda::empty_kernel(on.place()));
}

#endif  // USE_CUDA

}  // namespace

STABLE_TORCH_LIBRARY(steptrace_giou, m) {
  m.def("giou_loss(Tensor predictions, Tensor targets, int iterations=1) -> (Tensor loss, Tensor valid)");
  m.def("giou_loss_backward(Tensor grad, Tensor predictions, Tensor targets, Tensor valid, int iterations=1) -> Tensor");
  m.def("box_giou(Tensor predictions, Tensor targets, bool conditional=False, int iterations=1) -> (Tensor giou, Tensor valid)");
  m.def("box_giou_backward(Tensor grad, Tensor predictions, Tensor targets, bool conditional=False, int iterations=1) -> Tensor");
  m.def("empty_call(Tensor like) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(steptrace_giou, CPU, m) {
  m.impl("giou_loss", TORCH_BOX(&giou_loss_cpu));
  m.impl("giou_loss_backward", TORCH_BOX(&giou_loss_backward_cpu));
  m.impl("box_giou", TORCH_BOX(&box_giou_cpu));
  m.impl("box_giou_backward", TORCH_BOX(&box_giou_backward_cpu));
  m.impl("empty_call", TORCH_BOX(&empty_call_cpu));
}

#ifdef USE_CUDA
STABLE_TORCH_LIBRARY_IMPL(steptrace_giou, CUDA, m) {
  m.impl("giou_loss", TORCH_BOX(&giou_loss_cuda));
  m.impl("giou_loss_backward", TORCH_BOX(&giou_loss_backward_cuda));
  m.impl("box_giou", TORCH_BOX(&box_giou_cuda));
  m.impl("box_giou_backward", TORCH_BOX(&box_giou_backward_cuda));
  m.impl("empty_call", TORCH_BOX(&empty_call_cuda));
}
#endif
