// Registers of 16 floats, and memory for them, for processors with AVX-512.

#pragma once

#include "products.h"

#ifdef DISCORL_PRODUCTS
#include <cstdint>

namespace vectors {

using products::first;
using Vector = float __attribute__((vector_size(64)));

inline Vector load(const float* x, __mmask16 mask = 0xffff) {
  return reinterpret_cast<Vector>(_mm512_maskz_loadu_ps(mask, x));
}
inline void store(float* x, Vector value, __mmask16 mask = 0xffff) {
  _mm512_mask_storeu_ps(x, mask, reinterpret_cast<__m512>(value));
}
inline Vector relu(Vector x) {  // NaN stays
  const __m512 v = reinterpret_cast<__m512>(x), zero = _mm512_setzero_ps();
  return reinterpret_cast<Vector>(
      _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(v, zero, _CMP_LT_OQ), zero));
}
// x where `gate` is positive, or NaN.
inline Vector gated(Vector x, Vector gate) {
  const __m512 zero = _mm512_setzero_ps();
  const auto open = _mm512_cmp_ps_mask(reinterpret_cast<__m512>(gate), zero, _CMP_NLE_UQ);
  return reinterpret_cast<Vector>(_mm512_maskz_mov_ps(open, reinterpret_cast<__m512>(x)));
}

inline int64_t sixteens(int64_t size) { return (size + 15) / 16 * 16; }

class Floats {
 public:
  explicit Floats(int64_t size, bool zero = false) : memory_(products::buffer(size + 16)) {
    if (zero) std::fill_n(data(), size, 0.0f);
  }
  float* data() const { return reinterpret_cast<float*>(memory_.get()); }

 private:
  products::Buffer memory_;
};

}  // namespace vectors
#endif
