// IMPALA's pooling: the largest of 3 x 3 pixels around every second one, for processors with AVX-512.
// As in torch, pixels beyond the edge do not take part, the first of equals wins, and NaN wins.

#pragma once

#include "vectors.h"

#ifdef DISCORL_PRODUCTS
#include <algorithm>
#include <cmath>
#include <cstdint>

namespace pooling {

using namespace vectors;

struct Pool {
  int64_t height, width, channels;  // of an image [H, W, C]
  float* pooled;                    // images of half the size, or their gradients
  uint8_t* winners;                 // which of the nine it was, for each number of `pooled`

  int64_t high() const { return (height + 1) / 2; }
  int64_t wide() const { return (width + 1) / 2; }
  int64_t size() const { return high() * wide() * channels; }

  // Image -> the n-th of the pooled ones.
  void forward(const float* image, int64_t n) const {
    for (int64_t y = 0; y < high(); ++y) {
      const int64_t top = std::max<int64_t>(2 * y - 1, 0), bottom = std::min(2 * y + 2, height);
      for (int64_t x = 0; x < wide(); ++x) {
        const int64_t left = std::max<int64_t>(2 * x - 1, 0), right = std::min(2 * x + 2, width);
        const int64_t place = n * size() + (y * wide() + x) * channels;
        for (int64_t c = 0; c < channels; c += 16) {
          const __mmask16 mask = first(channels - c);
          __m512 best = _mm512_set1_ps(-INFINITY);
          __m512i winner = _mm512_set1_epi32(code(top, left));
          for (int64_t i = top; i < bottom; ++i) {
            for (int64_t j = left; j < right; ++j) {
              const __m512 v = _mm512_maskz_loadu_ps(mask, image + (i * width + j) * channels + c);
              const __mmask16 wins = _mm512_cmp_ps_mask(v, best, _CMP_GT_OQ) |
                                     _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
              best = _mm512_mask_mov_ps(best, wins, v);
              winner = _mm512_mask_mov_epi32(winner, wins, _mm512_set1_epi32(code(i, j)));
            }
          }
          _mm512_mask_storeu_ps(pooled + place + c, mask, best);
          _mm512_mask_cvtepi32_storeu_epi8(winners + place + c, mask, winner);
        }
      }
    }
  }

  // The gradient of the n-th pooled image -> that of the image.
  void backward(int64_t n, float* image) const {
    for (int64_t i = 0; i < height; ++i) {
      const int64_t bottom = std::min((i + 1) / 2, high() - 1);
      for (int64_t j = 0; j < width; ++j, image += channels) {
        const int64_t right = std::min((j + 1) / 2, wide() - 1);
        const __m512i own = _mm512_set1_epi32(code(i, j));
        for (int64_t c = 0; c < channels; c += 16) {
          const __mmask16 mask = first(channels - c);
          __m512 sum = _mm512_setzero_ps();
          for (int64_t y = i / 2; y <= bottom; ++y) {
            for (int64_t x = j / 2; x <= right; ++x) {
              const int64_t place = n * size() + (y * wide() + x) * channels + c;
              const __m512i winner =
                  _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, winners + place));
              const __mmask16 won = _mm512_mask_cmpeq_epi32_mask(mask, winner, own);
              sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(won, pooled + place));
            }
          }
          _mm512_mask_storeu_ps(image + c, mask, sum);
        }
      }
    }
  }

 private:
  // Tells a pixel from the others in any 3 x 3 that it is part of.
  static int code(int64_t i, int64_t j) { return static_cast<int>(i % 3 * 3 + j % 3); }
};

}  // namespace pooling
#endif
