// Matrix products with sums in single precision, for processors with AVX-512.
//
// Of floats as they are, or rounded to bfloat16, where one instruction multiplies 16 pairs of pairs.
// Factors are copied, rounded and rearranged in one pass, which may choose among their rows. Every
// element of a product is summed up in the same order, whatever the number of threads.

#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define DISCORL_PRODUCTS
#include <immintrin.h>

#include <algorithm>

namespace products {

constexpr int64_t kWidth = 64;      // columns of a panel of the second factor: four registers
constexpr int64_t kMaxDepth = 384;  // words: more would not stay in the cache
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

// A matrix of floats: element (i, j) is at data[i * by_row + j * by_column]; one stride is 1. What
// lies in one piece is a line: a row, or a column. With an index, it has only some of them.
struct Matrix {
  const float* data;
  int64_t rows, columns, by_row, by_column;
  const int64_t* index = nullptr;

  bool has_rows() const { return by_column == 1; }
  int64_t place(int64_t line) const { return index ? index[line] : line; }
  const float* line(int64_t i) const { return data + place(i) * (has_rows() ? by_row : by_column); }
};

inline __mmask16 first(int64_t count) {
  return count >= 16 ? 0xffff : count <= 0 ? 0 : static_cast<__mmask16>((1u << count) - 1);
}

// Words of 32 bits that hold one float each.
struct Single {
  static constexpr int64_t kTerms = 1;

  // out <- a row of words from one row of the matrix.
  static void across(const float* x, const float*, int64_t size, uint32_t* out) {
    for (int64_t j = 0; j < size; j += 16) {
      _mm512_storeu_ps(out + j, _mm512_maskz_loadu_ps(first(size - j), x + j));
    }
  }

  // 16 words from neighbours in a row, with zeros beyond its end.
  static __m512i along(const float* x, int64_t size) {
    return _mm512_castps_si512(_mm512_maskz_loadu_ps(first(size), x));
  }

  static __m512 multiply(__m512 sum, __m512i x, __m512i y) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(y), sum);
  }
};

#ifdef __AVX512BF16__
// Words that hold two numbers, rounded to bfloat16: terms that follow each other.
struct Pairs {
  static constexpr int64_t kTerms = 2;

  // 16 floats, rounded, in the lower halves of as many words.
  static __m512i rounded(__m512 x) {
    return _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
  }

  // out <- a row of words from two rows, the second of which may be missing.
  static void across(const float* x, const float* y, int64_t size, uint32_t* out) {
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

  // 16 words from neighbours in a row, with zeros beyond its end.
  static __m512i along(const float* x, int64_t size) {
    const __m512 low = _mm512_maskz_loadu_ps(first(size), x);
    const __m512 high = _mm512_maskz_loadu_ps(first(size - 16), x + 16);
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
  }

  static __m512 multiply(__m512 sum, __m512i x, __m512i y) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(y));
  }
};
#endif

// The second factor [K, N] as words: panel after panel of 64 columns, [words of K, 64] each. Whoever
// makes one has room for them, and packs every panel before it is used.
template <typename Word>
struct Packed {
  int64_t depth, width;
  uint32_t* data;

  int64_t panels() const { return (width + kWidth - 1) / kWidth; }
  int64_t words() const { return (depth + Word::kTerms - 1) / Word::kTerms; }
  int64_t size() const { return panels() * words() * kWidth; }
  uint32_t* at(int64_t panel, int64_t word) const { return data + (panel * words() + word) * kWidth; }

  void pack(const Matrix& b, int64_t panel) const {
    const int64_t column = panel * kWidth, columns = std::min(kWidth, width - column);
    uint32_t* out = at(panel, 0);
    if (columns < kWidth) std::fill_n(out, words() * kWidth, 0u);
    if (b.has_rows()) {
      for (int64_t k = 0; k < words(); ++k) {
        const int64_t term = k * Word::kTerms;
        const float* next = term + 1 < depth ? b.line(term + 1) + column : nullptr;
        Word::across(b.line(term) + column, next, columns, out + k * kWidth);
      }
      return;
    }
    const __m512i places = _mm512_mullo_epi32(
        _mm512_set1_epi32(kWidth),
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    for (int64_t k = 0; k < words(); k += 16) {  // whose places stay in the cache for all columns
      const int64_t term = k * Word::kTerms;
      for (int64_t j = 0; j < columns; ++j) {
        _mm512_mask_i32scatter_epi32(out + k * kWidth + j, first(words() - k), places,
                                     Word::along(b.line(column + j) + term, depth - term), 4);
      }
    }
  }
};

// What becomes of sums when they are complete.
struct Finish {
  const float* bias = nullptr;
  bool then_relu = false;
};

// A tile of R rows and 16 Z columns: c <- c * adds + a @ b over so many words.
template <typename Word, int R, int Z>
inline void tile(const uint32_t* a, int64_t a_row, int64_t a_word, const uint32_t* b, int64_t words,
                 float* const* c, int64_t rows, int64_t columns, bool adds, bool is_last,
                 const Finish& finish) {
  __m512 sums[R][Z];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int z = 0; z < Z; ++z) sums[r][z] = _mm512_setzero_ps();
  }
  for (int64_t k = 0; k < words; ++k, a += a_word, b += kWidth) {
    __m512i right[Z];
#pragma GCC unroll 4
    for (int z = 0; z < Z; ++z) right[z] = _mm512_load_si512(b + 16 * z);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const __m512i left = _mm512_set1_epi32(static_cast<int>(a[r * a_row]));
#pragma GCC unroll 4
      for (int z = 0; z < Z; ++z) sums[r][z] = Word::multiply(sums[r][z], left, right[z]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    if (r >= rows) break;
#pragma GCC unroll 4
    for (int z = 0; z < Z; ++z) {
      const __mmask16 mask = first(columns - 16 * z);
      float* place = c[r] + 16 * z;
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

// c[i] <- a[i] @ b for rows i from `begin` to `end`. Only this thread works on it. If a has an index
// of its rows, they are the rows of c, too.
template <typename Word>
inline void multiply_rows(const Matrix& a, const Packed<Word>& b, float* c, int64_t begin, int64_t end,
                          const Finish& finish = {}) {
  constexpr int64_t kTerms = Word::kTerms, kStride = kRowBlock + kPadding;
  const int64_t num_blocks = (b.words() + kMaxDepth - 1) / kMaxDepth;
  const int64_t block = num_blocks ? (b.words() + num_blocks - 1) / num_blocks : 0;
  const int64_t padded = (block + 15) / 16 * 16;
  const Buffer left = buffer(kStride * padded);
  float* places[kStride];
  for (int64_t top = begin; top < end; top += kRowBlock) {
    const int64_t rows = std::min(kRowBlock, end - top);
    for (int64_t k = 0; k < b.words(); k += block) {
      const int64_t words = std::min(block, b.words() - k), term = k * kTerms;
      const int64_t row = a.has_rows() ? padded : 1, word = a.has_rows() ? 1 : kStride;
      if (a.has_rows()) {
        for (int64_t i = 0; i < rows; ++i) {
          const float* x = a.line(top + i) + term;
          for (int64_t j = 0; j < words; j += 16) {
            const __m512i sixteen = Word::along(x + j * kTerms, b.depth - term - j * kTerms);
            _mm512_store_si512(left.get() + i * padded + j, sixteen);
          }
        }
      } else {
        for (int64_t j = 0; j < words; ++j) {
          const int64_t at = term + j * kTerms;
          const float* next = at + 1 < b.depth ? a.line(at + 1) + top : nullptr;
          Word::across(a.line(at) + top, next, rows, left.get() + j * kStride);
        }
      }
      for (int64_t p = 0; p < b.panels(); ++p) {
        const int64_t column = p * kWidth, columns = std::min(kWidth, b.width - column);
        for (int64_t i = 0; i < rows; ++i) {
          places[i] = c + (a.has_rows() ? a.place(top + i) : top + i) * b.width + column;
        }
        const Finish here{finish.bias ? finish.bias + column : nullptr, finish.then_relu};
        const uint32_t* right = b.at(p, k);
        const bool adds = k > 0, is_last = k + words == b.words();
        const auto each = [&]<int R, int Z>() {
          for (int64_t i = 0; i < rows; i += R) {
            tile<Word, R, Z>(left.get() + i * row, row, word, right, words, places + i, rows - i,
                             columns, adds, is_last, here);
          }
        };
        switch ((columns + 15) / 16) {  // as many sums as there are registers for
          case 1: each.template operator()<12, 1>(); break;
          case 2: each.template operator()<12, 2>(); break;
          case 3: each.template operator()<6, 3>(); break;
          default: rows > 2 ? each.template operator()<6, 4>() : each.template operator()<2, 4>();
        }
      }
    }
  }
}

#ifdef __AVX512BF16__
constexpr int64_t kFewRows = 8;

// c <- a @ w.T for so few rows a [N, D] that packing w [E, D] would take longer.
inline void multiply_few(const float* a, int64_t rows, const float* w, int64_t by_row, int64_t depth,
                         int64_t width, float* c, const float* bias) {
  const auto round = [](__m512 x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(Pairs::rounded(x), 16));
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

#endif

}  // namespace products
#endif
