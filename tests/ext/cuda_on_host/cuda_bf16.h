#pragma once

#include "giou_half.h"

struct __nv_bfloat16 {
  uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 value) { return giou::cpu::to_math<float>(giou::cpu::BFloat16{value.bits}); }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return {giou::cpu::from_math<giou::cpu::BFloat16>(value).bits}; }
