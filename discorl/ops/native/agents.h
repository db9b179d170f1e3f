// Products of many small matrices, one pair for each agent, for processors with AVX-512.
//
// MKL copies the factors of a product first, and on processors other than Intel's it takes longer to
// do that than to multiply matrices of a few dozen rows and columns. Here factors are read where they
// lie, except for a second factor that lies in columns. Every element is summed up in the order of its
// terms, whatever the layout and the number of threads.

#pragma once

#include "products.h"

#ifdef DISCORL_PRODUCTS
namespace agents {

using products::Buffer;
using products::first;

constexpr int64_t kWidth = 64;

// A matrix of floats at any strides.
struct Strided {
  const float* data;
  int64_t by_row, by_column;

  Strided at(int64_t row, int64_t column) const {
    return {data ? data + row * by_row + column * by_column : nullptr, by_row, by_column};
  }
};

// c <- a @ b + added for R rows and up to 16 Z columns, the last 16 of them masked. What is added may
// be missing, and lies in rows.
template <int R, int Z>
inline void tile(const Strided& a, const float* b, int64_t by_row, int64_t depth, const Strided& added,
                 float* c, int64_t width, __mmask16 mask) {
  __m512 sums[R][Z];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int z = 0; z < Z; ++z) sums[r][z] = _mm512_setzero_ps();
  }
  const float* left = a.data;
  for (int64_t k = 0; k < depth; ++k, left += a.by_column, b += by_row) {
    __m512 right[Z];
#pragma GCC unroll 4
    for (int z = 0; z < Z - 1; ++z) right[z] = _mm512_loadu_ps(b + 16 * z);
    right[Z - 1] = _mm512_maskz_loadu_ps(mask, b + 16 * (Z - 1));
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const __m512 x = _mm512_set1_ps(left[r * a.by_row]);
#pragma GCC unroll 4
      for (int z = 0; z < Z; ++z) sums[r][z] = _mm512_fmadd_ps(x, right[z], sums[r][z]);
    }
  }
  if (added.data) {
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const float* x = added.data + r * added.by_row;
#pragma GCC unroll 4
      for (int z = 0; z < Z; ++z) {
        const __m512 part = _mm512_maskz_loadu_ps(z < Z - 1 ? 0xffff : mask, x + 16 * z);
        sums[r][z] = _mm512_add_ps(sums[r][z], part);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int z = 0; z < Z - 1; ++z) _mm512_storeu_ps(c + r * width + 16 * z, sums[r][z]);
    _mm512_mask_storeu_ps(c + r * width + 16 * (Z - 1), mask, sums[r][Z - 1]);
  }
}

// The same for any number of rows: tiles of R, then smaller ones for what is left.
template <int R, int Z>
inline void rows(Strided a, int64_t num, const float* b, int64_t by_row, int64_t depth, Strided added,
                 float* c, int64_t width, __mmask16 mask) {
  for (; num >= R; num -= R, a = a.at(R, 0), added = added.at(R, 0), c += R * width) {
    tile<R, Z>(a, b, by_row, depth, added, c, width, mask);
  }
  if constexpr (R > 1) {
    if (num) rows<(R + 1) / 2, Z>(a, num, b, by_row, depth, added, c, width, mask);
  }
}

// out [K, N] <- x, whose columns lie in one piece, in rows.
inline void transpose(const Strided& x, int64_t depth, int64_t width, float* out) {
  int64_t j = 0;
  for (; j + 4 <= width; j += 4) {
    const float* lines[4];
    for (int i = 0; i < 4; ++i) lines[i] = x.data + (j + i) * x.by_column;
    int64_t k = 0;
    for (; k + 4 <= depth; k += 4) {
      __m128 a = _mm_loadu_ps(lines[0] + k), b = _mm_loadu_ps(lines[1] + k);
      __m128 c = _mm_loadu_ps(lines[2] + k), d = _mm_loadu_ps(lines[3] + k);
      _MM_TRANSPOSE4_PS(a, b, c, d);
      float* place = out + k * width + j;
      _mm_storeu_ps(place, a);
      _mm_storeu_ps(place + width, b);
      _mm_storeu_ps(place + 2 * width, c);
      _mm_storeu_ps(place + 3 * width, d);
    }
    for (; k < depth; ++k) {
      for (int i = 0; i < 4; ++i) out[k * width + j + i] = lines[i][k];
    }
  }
  for (; j < width; ++j) {
    for (int64_t k = 0; k < depth; ++k) out[k * width + j] = x.data[j * x.by_column + k];
  }
}

// c [M, N] <- a [M, K] @ b [K, N] + added, where b lies in rows.
inline void multiply(const Strided& a, const float* b, int64_t by_row, const Strided& added, int64_t num,
                     int64_t depth, int64_t width, float* c) {
  for (int64_t j = 0; j < width; j += kWidth) {
    const int64_t columns = std::min(kWidth, width - j);
    const __mmask16 mask = first((columns - 1) % 16 + 1);
    const auto each = [&]<int R, int Z>() {
      rows<R, Z>(a, num, b + j, by_row, depth, added.at(0, j), c + j, width, mask);
    };
    switch ((columns + 15) / 16) {  // as many sums as there are registers for
      case 1: each.template operator()<12, 1>(); break;
      case 2: each.template operator()<12, 2>(); break;
      case 3: each.template operator()<8, 3>(); break;
      default: each.template operator()<6, 4>();
    }
  }
}

}  // namespace agents
#endif
