// Element types of predictions and targets, and the one list of combinations that are supported.
#pragma once

namespace giou {

enum class DType : int { kFloat32, kFloat64, kFloat16, kBFloat16, kUInt8 };

// Predictions stored as P, targets as T, arithmetic in M.
template <typename P, typename T, typename M>
struct Types {
  using Prediction = P;
  using Target = T;
  using Math = M;
};

template <typename P, typename M, typename Run>
bool dispatch_target(bool same, DType target, const Run& run) {
  if (same) {
    run(Types<P, P, M>{});
  } else if (target == DType::kFloat32) {
    run(Types<P, float, M>{});
  } else if (target == DType::kUInt8) {
    run(Types<P, unsigned char, M>{});
  } else {
    return false;
  }
  return true;
}

// Calls run(Types<...>{}) for the two element types; false where the pair is not supported. F16 and BF16 are the 16-bit
// floats of the processor at hand. Arithmetic is float32, for float64 predictions float64.
template <typename F16, typename BF16, typename Run>
bool dispatch(DType prediction, DType target, const Run& run) {
  const bool same = prediction == target;
  switch (prediction) {
    case DType::kFloat32:
      return dispatch_target<float, float>(same, target, run);
    case DType::kFloat64:
      return dispatch_target<double, double>(same, target, run);
    case DType::kFloat16:
      return dispatch_target<F16, float>(same, target, run);
    case DType::kBFloat16:
      return dispatch_target<BF16, float>(same, target, run);
    case DType::kUInt8:
      break;
  }
  return false;
}

}  // namespace giou
