// Storage types bf16 and fp16 with just what streaming kernels need: packed conversion from and to
// float. The full numeric types of CUTLASS cost three seconds of parsing in each kernel.
#pragma once

#include <cute/config.hpp>

namespace cute_attn {

struct bf16 {
  unsigned short bits;
};

struct fp16 {
  unsigned short bits;
};

// Two values rounded to nearest even, `low` in the lower half.
template <class Element>
CUTE_DEVICE unsigned pack(float low, float high);

template <>
CUTE_DEVICE unsigned pack<bf16>(float low, float high) {
  unsigned packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

template <>
CUTE_DEVICE unsigned pack<fp16>(float low, float high) {
  unsigned packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

template <class Element>
CUTE_DEVICE float2 unpack(unsigned packed);

template <>
CUTE_DEVICE float2 unpack<bf16>(unsigned packed) {
  return {__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000u)};
}

template <>
CUTE_DEVICE float2 unpack<fp16>(unsigned packed) {
  float2 value;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2;"
      "  cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
      : "=f"(value.x), "=f"(value.y)
      : "r"(packed));
  return value;
}

// Four values at `source` as float.
template <class Element>
CUTE_DEVICE float4 load4(Element const* source) {
  uint2 const packed = __ldg(reinterpret_cast<uint2 const*>(source));
  float2 const low = unpack<Element>(packed.x);
  float2 const high = unpack<Element>(packed.y);
  return {low.x, low.y, high.x, high.y};
}

template <>
CUTE_DEVICE float4 load4<float>(float const* source) {
  return *reinterpret_cast<float4 const*>(source);
}

template <class Element>
CUTE_DEVICE void store4(Element* target, float4 value) {
  *reinterpret_cast<uint2*>(target) = {pack<Element>(value.x, value.y),
                                       pack<Element>(value.z, value.w)};
}

template <>
CUTE_DEVICE void store4<float>(float* target, float4 value) {
  *reinterpret_cast<float4*>(target) = value;
}

}  // namespace cute_attn
