// What the operators demand of their arguments, and the sentences for those that break it: what came, what was expected.
// checks.py holds the same sentences for the Python twin and for tracing; the tests compare them.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "giou_types.h"

namespace giou {
namespace checks {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// ---- what went wrong -------------------------------------------------------------------------------------------------

template <typename... Parts>
[[noreturn]] void fail(const char* op, const Parts&... parts) {
  std::ostringstream text;
  text << op << ": ";
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

// The first `dims` sizes, as Python writes them.
inline std::string shape_of(const Tensor& tensor, int64_t dims) {
  std::ostringstream text;
  text << '(';
  for (int64_t d = 0; d < dims; ++d) text << (d ? ", " : "") << tensor.size(d);
  text << (dims == 1 ? ",)" : ")");
  return text.str();
}

inline std::string shape_of(const Tensor& tensor) { return shape_of(tensor, tensor.dim()); }

inline std::string device_of(const Tensor& tensor) {
  if (tensor.is_cpu()) return "cpu";
  if (tensor.is_cuda()) return "cuda:" + std::to_string(tensor.get_device_index());
  return "another device";
}

// The name that a person writes after `torch.`.
inline std::string name_of(ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return "float32";
    case ScalarType::Double:
      return "float64";
    case ScalarType::Half:
      return "float16";
    case ScalarType::BFloat16:
      return "bfloat16";
    case ScalarType::Byte:
      return "uint8";
    case ScalarType::Char:
      return "int8";
    case ScalarType::Short:
      return "int16";
    case ScalarType::Int:
      return "int32";
    case ScalarType::Long:
      return "int64";
    case ScalarType::Bool:
      return "bool";
    default:
      return torch::headeronly::toString(type);
  }
}

inline std::optional<DType> dtype_of(ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return DType::kFloat32;
    case ScalarType::Double:
      return DType::kFloat64;
    case ScalarType::Half:
      return DType::kFloat16;
    case ScalarType::BFloat16:
      return DType::kBFloat16;
    case ScalarType::Byte:
      return DType::kUInt8;
    default:
      return std::nullopt;
  }
}

// ---- checked arguments -----------------------------------------------------------------------------------------------

// Predictions and targets after the checks, made contiguous; the types are known to go together.
struct __attribute__((visibility("hidden"))) Arguments {
  Tensor predictions;
  Tensor targets;
  DType prediction_type;
  DType target_type;
  int64_t count;
  int64_t iterations;
};

inline bool same_device(const Tensor& a, const Tensor& b) {
  return a.is_cuda() == b.is_cuda() && a.is_cpu() == b.is_cpu() && a.get_device_index() == b.get_device_index();
}

// Whether `tensor` has the first `dims` sizes of `other` for its shape.
inline bool has_shape(const Tensor& tensor, const Tensor& other, int64_t dims) {
  if (tensor.dim() != dims) return false;
  const auto sizes = tensor.sizes(), expected = other.sizes();
  return std::equal(sizes.begin(), sizes.end(), expected.begin());
}

inline void check_layout(const char* op, const Tensor& predictions, const Tensor& targets, int64_t iterations) {
  const int64_t dim = predictions.dim();
  if (dim < 1 || predictions.size(dim - 1) != 4)
    fail(op, "got predictions of shape ", shape_of(predictions), ", expected (..., 4): x1, y1, x2, y2 of one box a row");
  if (!has_shape(targets, predictions, dim))
    fail(op, "got targets of shape ", shape_of(targets), ", expected the predictions' shape ", shape_of(predictions));
  if (!same_device(predictions, targets))
    fail(op, "got predictions on ", device_of(predictions), " and targets on ", device_of(targets), ", expected one device");
  if (iterations < 1) fail(op, "got iterations=", iterations, ", expected at least 1");
}

inline Tensor dense(const Tensor& tensor) { return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor); }

inline Arguments checked(const char* op, const Tensor& predictions, const Tensor& targets, int64_t iterations) {
  check_layout(op, predictions, targets, iterations);
  const auto p = dtype_of(predictions.scalar_type());
  const auto t = dtype_of(targets.scalar_type());
  if (!p || *p == DType::kUInt8)
    fail(op, "got predictions of dtype ", name_of(predictions.scalar_type()), ", expected float32, bfloat16, float16 or float64");
  if (!t || (*t != *p && *t != DType::kFloat32 && *t != DType::kUInt8))
    fail(op, "got targets of dtype ", name_of(targets.scalar_type()), " with predictions of dtype ",
         name_of(predictions.scalar_type()), ", expected the predictions' dtype, float32 or uint8");
  return {dense(predictions), dense(targets), *p, *t, predictions.numel() / 4, iterations};
}

// The article's kernel knows float32 only; its callers convert.
inline Arguments checked_float32(const char* op, const Tensor& predictions, const Tensor& targets, int64_t iterations) {
  check_layout(op, predictions, targets, iterations);
  if (predictions.scalar_type() != ScalarType::Float || targets.scalar_type() != ScalarType::Float)
    fail(op, "got predictions of dtype ", name_of(predictions.scalar_type()), " and targets of dtype ",
         name_of(targets.scalar_type()), ", expected float32 for both");
  return checked(op, predictions, targets, iterations);
}

// A gradient of a tensor whose shape is the first `dims` sizes of the predictions'.
inline void check_grad(const char* op, const Tensor& grad, int64_t dims, ScalarType type, const Tensor& predictions) {
  if (!has_shape(grad, predictions, dims) || grad.scalar_type() != type || !same_device(grad, predictions))
    fail(op, "got grad of shape ", shape_of(grad), " and dtype ", name_of(grad.scalar_type()), " on ", device_of(grad),
         ", expected ", shape_of(predictions, dims), " and ", name_of(type), " on ", device_of(predictions));
}

inline void check_valid(const char* op, const Tensor& valid, const Tensor& predictions) {
  if (valid.dim() != 0 || valid.scalar_type() != ScalarType::Long || !same_device(valid, predictions))
    fail(op, "got valid of shape ", shape_of(valid), " and dtype ", name_of(valid.scalar_type()), " on ", device_of(valid),
         ", expected () and int64 on ", device_of(predictions));
}

inline ScalarType loss_type(const Arguments& arguments) {
  return arguments.prediction_type == DType::kFloat64 ? ScalarType::Double : ScalarType::Float;
}

// An uninitialised tensor beside `like`, whose shape is the first `dims` sizes of it. Made without the dispatcher, which
// would take longer than the checks together.
inline Tensor new_empty(const Tensor& like, int64_t dims, ScalarType type) {
  const auto sizes = like.sizes();
  std::vector<int64_t> strides(static_cast<size_t>(dims), 1);
  for (int64_t d = dims - 2; d >= 0; --d) strides[d] = strides[d + 1] * (sizes[d + 1] > 1 ? sizes[d + 1] : 1);
  int32_t device_type = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
  const auto code = torch::stable::detail::to<int32_t>(torch::stable::detail::from(type));
  AtenTensorHandle made = nullptr;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(dims, sizes.data(), strides.data(), code, device_type, like.get_device_index(), &made));
  return Tensor(made);
}

}  // namespace checks
}  // namespace giou
