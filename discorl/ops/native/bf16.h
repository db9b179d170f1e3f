// Matrix products of factors that are rounded to bfloat16, with sums in single precision.
//
// For processors with AVX-512 BF16, whose one instruction multiplies 16 pairs of pairs. Factors are
// rounded as they are packed, so that they pass through memory once. Every element of a product is
// summed up in the same order, whatever the number of threads and wherever its rows are.

#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#ifdef __AVX512BF16__
#define DISCORL_BF16
#include <immintrin.h>

#include <algorithm>

namespace bf16 {

constexpr int64_t kWidth = 64;      // columns of a panel of the second factor: four registers
constexpr int64_t kMaxDepth = 640;  // pairs of terms twice that would not stay in the cache
constexpr int64_t kRowBlock = 96;   // rows of the first factor that are packed at a time
constexpr int64_t kPadding = 12;    // rows that the largest tile may go beyond them

// Memory that begins where registers' worth of it does.
struct Free {
  void operator()(uint32_t* x) const { std::free(x); }
};
using Buffer = std::unique_ptr<uint32_t[], Free>;

inline Buffer buffer(int64_t size) {
  auto* memory = static_cast<uint32_t*>(std::aligned_alloc(64, (size * 4 + 63) / 64 * 64));
  if (!memory) throw std::bad_alloc();
  return Buffer(memory);
}

// A matrix of floats: element (i, j) is at data[i * by_row + j * by_column]; one stride is 1.
struct Matrix {
  const float* data;
  int64_t rows, columns, by_row, by_column;
};

inline __mmask16 first(int64_t count) {
  return count >= 16 ? 0xffff : count <= 0 ? 0 : static_cast<__mmask16>((1u << count) - 1);
}

// 16 floats, rounded, in the lower halves of as many words.
inline __m512i rounded(__m512 x) {
  return _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
}

// out <- pairs (x, y) of two rows, the second of which may be missing.
inline void interleave(const float* x, const float* y, int64_t size, uint32_t* out) {
  for (int64_t j = 0; j < size; j += 16) {
    const __mmask16 mask = first(size - j);
    __m512i pairs = rounded(_mm512_maskz_loadu_ps(mask, x + j));
    if (y) {
      const __m512i upper = rounded(_mm512_maskz_loadu_ps(mask, y + j));
      pairs = _mm512_or_si512(pairs, _mm512_slli_epi32(upper, 16));
    }
    _mm512_storeu_si512(out + j, pairs);
  }
}

// out <- pairs of neighbours in a row, the last with 0 if it has none, and zeros up to `width` pairs.
inline void pair_up(const float* x, int64_t size, int64_t width, uint32_t* out) {
  for (int64_t j = 0; j < 2 * width; j += 32) {
    const __m512 low = _mm512_maskz_loadu_ps(first(size - j), x + j);
    const __m512 high = _mm512_maskz_loadu_ps(first(size - j - 16), x + j + 16);
    const auto pairs = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
    _mm512_mask_storeu_epi32(out + j / 2, first(width - j / 2), pairs);
  }
}

// The second factor [K, N], as pairs of its rows: panel after panel of 64 columns, [K / 2, 64] each.
// Every panel has to be packed before it is used.
class Packed {
 public:
  explicit Packed(const Matrix& b)
      : depth(b.rows),
        width(b.columns),
        b_(b),
        pairs_((depth + 1) / 2),
        data_(buffer(panels() * pairs_ * kWidth)) {}

  int64_t panels() const { return (width + kWidth - 1) / kWidth; }
  const uint32_t* at(int64_t panel, int64_t pair) const {
    return data_.get() + (panel * pairs_ + pair) * kWidth;
  }

  void pack(int64_t panel) {
    const Matrix& b = b_;
    const int64_t column = panel * kWidth, columns = std::min(kWidth, width - column);
    uint32_t* out = data_.get() + panel * pairs_ * kWidth;
    if (columns < kWidth) std::fill_n(out, pairs_ * kWidth, 0u);
    if (b.by_column == 1) {
      for (int64_t k = 0; k < pairs_; ++k) {
        const float* x = b.data + 2 * k * b.by_row + column;
        interleave(x, 2 * k + 1 < depth ? x + b.by_row : nullptr, columns, out + k * kWidth);
      }
      return;
    }
    const __m512i places = _mm512_mullo_epi32(
        _mm512_set1_epi32(kWidth),
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    for (int64_t j = 0; j < columns; ++j) {
      const float* x = b.data + (column + j) * b.by_column;
      for (int64_t k = 0; k < pairs_; k += 16) {
        alignas(64) uint32_t sixteen[16];
        pair_up(x + 2 * k, depth - 2 * k, 16, sixteen);
        _mm512_mask_i32scatter_epi32(out + k * kWidth + j, first(pairs_ - k), places,
                                     _mm512_load_si512(sixteen), 4);
      }
    }
  }

  const int64_t depth, width;

 private:
  const Matrix b_;
  const int64_t pairs_;
  const Buffer data_;
};

// What becomes of sums when they are complete.
struct Finish {
  const float* bias = nullptr;
  bool then_relu = false;
};

// A tile of R rows and 16 Z columns: c <- c * adds + a @ b over `pairs` pairs of terms.
template <int R, int Z>
inline void tile(const uint32_t* a, int64_t a_row, int64_t a_pair, const uint32_t* b, int64_t pairs,
                 float* c, int64_t c_row, int64_t rows, int64_t columns, bool adds, bool is_last,
                 const Finish& finish) {
  __m512 sums[R][Z];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int z = 0; z < Z; ++z) sums[r][z] = _mm512_setzero_ps();
  }
  for (int64_t k = 0; k < pairs; ++k, a += a_pair, b += kWidth) {
    __m512bh right[Z];
#pragma GCC unroll 4
    for (int z = 0; z < Z; ++z) {
      right[z] = reinterpret_cast<__m512bh>(_mm512_load_si512(b + 16 * z));
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const auto left = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(a[r * a_row])));
#pragma GCC unroll 4
      for (int z = 0; z < Z; ++z) sums[r][z] = _mm512_dpbf16_ps(sums[r][z], left, right[z]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    if (r >= rows) break;
#pragma GCC unroll 4
    for (int z = 0; z < Z; ++z) {
      const __mmask16 mask = first(columns - 16 * z);
      float* place = c + r * c_row + 16 * z;
      __m512 sum = sums[r][z];
      if (adds) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, place));
      if (is_last && finish.bias) {
        sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, finish.bias + 16 * z));
      }
      // A comparison, so that NaN stays.
      if (is_last && finish.then_relu) {
        const __m512 zero = _mm512_setzero_ps();
        sum = _mm512_mask_mov_ps(sum, _mm512_cmp_ps_mask(sum, zero, _CMP_LT_OQ), zero);
      }
      _mm512_mask_storeu_ps(place, mask, sum);
    }
  }
}

// c[begin:end] <- (a @ b)[begin:end]. Only this thread works on it.
inline void multiply_rows(const Matrix& a, const Packed& b, float* c, int64_t begin, int64_t end,
                          const Finish& finish = {}) {
  const int64_t depth = b.depth, num_blocks = (depth + kMaxDepth - 1) / kMaxDepth;
  const int64_t block = num_blocks ? ((depth + num_blocks - 1) / num_blocks + 1) / 2 * 2 : 0;
  const bool by_row = a.by_column == 1;
  const Buffer left = buffer((kRowBlock + kPadding) * ((block + 1) / 2 + 16));
  for (int64_t top = begin; top < end; top += kRowBlock) {
    const int64_t rows = std::min(kRowBlock, end - top);
    for (int64_t k = 0; k < depth; k += block) {
      const int64_t terms = std::min(block, depth - k), pairs = (terms + 1) / 2;
      const int64_t row = by_row ? pairs : 1, pair = by_row ? 1 : kRowBlock + kPadding;
      if (by_row) {
        for (int64_t i = 0; i < rows; ++i) {
          pair_up(a.data + (top + i) * a.by_row + k, terms, pairs, left.get() + i * pairs);
        }
        std::fill_n(left.get() + rows * pairs, kPadding * pairs, 0u);
      } else {
        for (int64_t j = 0; j < pairs; ++j) {
          const float* x = a.data + (k + 2 * j) * a.by_column + top;
          interleave(x, 2 * j + 1 < terms ? x + a.by_column : nullptr, rows, left.get() + j * pair);
        }
      }
      for (int64_t p = 0; p < b.panels(); ++p) {
        const int64_t column = p * kWidth, columns = std::min(kWidth, b.width - column);
        const Finish here{finish.bias ? finish.bias + column : nullptr, finish.then_relu};
        const uint32_t *l = left.get(), *r = b.at(p, k / 2);
        float* out = c + top * b.width + column;
        const bool adds = k > 0, is_last = k + terms == depth;
        const auto each = [&]<int R, int Z>() {
          for (int64_t i = 0; i < rows; i += R) {
            tile<R, Z>(l + i * row, row, pair, r, pairs, out + i * b.width, b.width, rows - i,
                       columns, adds, is_last, here);
          }
        };
        switch ((columns + 15) / 16) {  // as many sums as there are registers for
          case 1: each.template operator()<12, 1>(); break;
          case 2: each.template operator()<12, 2>(); break;
          case 3: each.template operator()<6, 3>(); break;
          default: each.template operator()<6, 4>();
        }
      }
    }
  }
}

constexpr int64_t kFewRows = 8;

// c <- a @ w.T for so few rows a [N, D] that packing w [E, D] would take longer.
inline void multiply_few(const float* a, int64_t rows, const float* w, int64_t by_row, int64_t depth,
                         int64_t width, float* c, const float* bias) {
  const auto round = [](__m512 x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(rounded(x), 16));
  };
  const int64_t padded = (depth + 15) / 16 * 16;
  const Buffer memory = buffer(rows * padded);
  float* left = reinterpret_cast<float*>(memory.get());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t k = 0; k < depth; k += 16) {
      const __m512 x = _mm512_maskz_loadu_ps(first(depth - k), a + i * depth + k);
      _mm512_store_ps(left + i * padded + k, round(x));
    }
  }
  for (int64_t j = 0; j < width; ++j) {
    __m512 sums[kFewRows];
    for (auto& sum : sums) sum = _mm512_setzero_ps();
    for (int64_t k = 0; k < depth; k += 16) {
      const __m512 x = round(_mm512_maskz_loadu_ps(first(depth - k), w + j * by_row + k));
      for (int64_t i = 0; i < rows; ++i) {
        sums[i] = _mm512_fmadd_ps(x, _mm512_load_ps(left + i * padded + k), sums[i]);
      }
    }
    for (int64_t i = 0; i < rows; ++i) {
      c[i * width + j] = _mm512_reduce_add_ps(sums[i]) + (bias ? bias[j] : 0.0f);
    }
  }
}

}  // namespace bf16
#endif
