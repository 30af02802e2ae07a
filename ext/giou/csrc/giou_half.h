// 16-bit floats on the host as plain bits, converted by integer arithmetic that compilers vectorise; round to nearest even.
#pragma once

#include <cstdint>
#include <cstring>

namespace giou {
namespace cpu {

struct Half {
  uint16_t bits;
};

struct BFloat16 {
  uint16_t bits;
};

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <typename M, typename S>
inline M to_math(S value) {
  return static_cast<M>(value);
}

template <>
inline float to_math<float, BFloat16>(BFloat16 value) {
  return float_of(static_cast<uint32_t>(value.bits) << 16);
}

template <>
inline float to_math<float, Half>(Half value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude >= 0x0400u) return float_of(sign | ((magnitude << 13) + (112u << 23)));
  const float subnormal = static_cast<float>(magnitude) * float_of(0x33800000u);  // times 2^-24, exact
  return float_of(sign | bits_of(subnormal));
}

template <typename S, typename M>
inline S from_math(M value) {
  return static_cast<S>(value);
}

template <>
inline BFloat16 from_math<BFloat16, float>(float value) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fc0u};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

template <>
inline Half from_math<Half, float>(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // rounds to 65520 or more
  if (magnitude < 0x38800000u) {
    // Below the smallest normal number: adding 0.5 leaves the rounded subnormal in the low bits of the sum.
    const uint32_t rounded = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    return {static_cast<uint16_t>(sign | rounded)};
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23);
  return {static_cast<uint16_t>(sign | (rounded >> 13))};
}

}  // namespace cpu
}  // namespace giou
