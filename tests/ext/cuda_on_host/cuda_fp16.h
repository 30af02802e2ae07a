#pragma once

#include "giou_half.h"

struct __half {
  uint16_t bits;
};

inline float __half2float(__half value) { return giou::cpu::to_math<float>(giou::cpu::Half{value.bits}); }
inline __half __float2half_rn(float value) { return {giou::cpu::from_math<giou::cpu::Half>(value).bits}; }
