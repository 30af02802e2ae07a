// What the operators demand of their arguments, and the sentences for those that break it: what came, what was expected.
// checks.py holds the same sentences for the Python twin and for tracing; the tests compare them.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

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

inline std::string shape_of(const Tensor& tensor) {
  std::ostringstream text;
  text << '(';
  for (int64_t d = 0; d < tensor.dim(); ++d) text << (d ? ", " : "") << tensor.size(d);
  text << (tensor.dim() == 1 ? ",)" : ")");
  return text.str();
}

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

inline void check_layout(const char* op, const Tensor& predictions, const Tensor& targets, int64_t iterations) {
  const int64_t dim = predictions.dim();
  if (dim < 1 || predictions.size(dim - 1) != 4)
    fail(op, "got predictions of shape ", shape_of(predictions), ", expected (..., 4): x1, y1, x2, y2 of one box a row");
  if (shape_of(predictions) != shape_of(targets))
    fail(op, "got targets of shape ", shape_of(targets), ", expected the predictions' shape ", shape_of(predictions));
  if (device_of(predictions) != device_of(targets))
    fail(op, "got predictions on ", device_of(predictions), " and targets on ", device_of(targets), ", expected one device");
  if (iterations < 1) fail(op, "got iterations=", iterations, ", expected at least 1");
}

inline Arguments checked(const char* op, const Tensor& predictions, const Tensor& targets, int64_t iterations) {
  check_layout(op, predictions, targets, iterations);
  const auto p = dtype_of(predictions.scalar_type());
  const auto t = dtype_of(targets.scalar_type());
  if (!p || *p == DType::kUInt8)
    fail(op, "got predictions of dtype ", name_of(predictions.scalar_type()), ", expected float32, bfloat16, float16 or float64");
  if (!t || (*t != *p && *t != DType::kFloat32 && *t != DType::kUInt8))
    fail(op, "got targets of dtype ", name_of(targets.scalar_type()), " with predictions of dtype ",
         name_of(predictions.scalar_type()), ", expected the predictions' dtype, float32 or uint8");
  return {torch::stable::contiguous(predictions), torch::stable::contiguous(targets), *p, *t, predictions.numel() / 4, iterations};
}

// The article's kernel knows float32 only; its callers convert.
inline Arguments checked_float32(const char* op, const Tensor& predictions, const Tensor& targets, int64_t iterations) {
  check_layout(op, predictions, targets, iterations);
  if (predictions.scalar_type() != ScalarType::Float || targets.scalar_type() != ScalarType::Float)
    fail(op, "got predictions of dtype ", name_of(predictions.scalar_type()), " and targets of dtype ",
         name_of(targets.scalar_type()), ", expected float32 for both");
  return checked(op, predictions, targets, iterations);
}

inline void check_grad(const char* op, const Tensor& grad, const std::string& shape, ScalarType type, const Tensor& predictions) {
  if (shape_of(grad) != shape || grad.scalar_type() != type || device_of(grad) != device_of(predictions))
    fail(op, "got grad of shape ", shape_of(grad), " and dtype ", name_of(grad.scalar_type()), " on ", device_of(grad),
         ", expected ", shape, " and ", name_of(type), " on ", device_of(predictions));
}

inline void check_valid(const char* op, const Tensor& valid, const Tensor& predictions) {
  if (valid.dim() != 0 || valid.scalar_type() != ScalarType::Long || device_of(valid) != device_of(predictions))
    fail(op, "got valid of shape ", shape_of(valid), " and dtype ", name_of(valid.scalar_type()), " on ", device_of(valid),
         ", expected () and int64 on ", device_of(predictions));
}

inline ScalarType loss_type(const Arguments& arguments) {
  return arguments.prediction_type == DType::kFloat64 ? ScalarType::Double : ScalarType::Float;
}

// The shape of one number a box.
inline std::vector<int64_t> box_shape(const Tensor& predictions) {
  std::vector<int64_t> shape;
  for (int64_t d = 0; d + 1 < predictions.dim(); ++d) shape.push_back(predictions.size(d));
  return shape;
}

inline std::string text_of(const std::vector<int64_t>& shape) {
  std::ostringstream text;
  text << '(';
  for (size_t d = 0; d < shape.size(); ++d) text << (d ? ", " : "") << shape[d];
  text << (shape.size() == 1 ? ",)" : ")");
  return text.str();
}

inline Tensor new_empty(const Tensor& like, const std::vector<int64_t>& shape, ScalarType type) {
  return torch::stable::new_empty(like, {shape.data(), shape.size()}, type);
}

inline std::vector<int64_t> sizes_of(const Tensor& tensor) {
  std::vector<int64_t> shape = box_shape(tensor);
  shape.push_back(4);
  return shape;
}

}  // namespace checks
}  // namespace giou
