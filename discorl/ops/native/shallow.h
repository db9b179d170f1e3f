// Convolutions of images with few channels by 3 x 3 kernels, multiplied out, for processors with
// AVX-512. They come first in a network: there are no gradients of the images.

#pragma once

#include "winograd.h"

#ifdef DISCORL_PRODUCTS
namespace shallow {

using namespace vectors;
using pooling::Pool;
using winograd::Shape;

constexpr int64_t kPixels = 12;  // neighbours in a row that are worked on at a time
constexpr int64_t kTaps = 9;

// An image with its padding as planes [C, H, W], and room for the last pixels of a row that is not a
// multiple of `kPixels`.
struct Planes {
  explicit Planes(const Shape& s)
      : high(s.height + 2 * s.padding),
        wide(s.width + 2 * s.padding),
        memory(s.channels * high * wide + kPixels, /*zero=*/true) {}

  template <typename Pixel>
  void fill(const Shape& s, const Pixel* image) {
    const int64_t by_channel = s.planes ? s.height * s.width : 1;
    const int64_t by_pixel = s.planes ? 1 : s.channels;
    for (int64_t c = 0; c < s.channels; ++c) {
      for (int64_t y = 0; y < s.height; ++y) {
        const Pixel* x = image + c * by_channel + y * s.width * by_pixel;
        float* out = memory.data() + (c * high + y + s.padding) * wide + s.padding;
        for (int64_t j = 0; j < s.width; ++j) out[j] = number(x[j * by_pixel]);
      }
    }
  }

  static float number(float x) { return x; }
  static float number(uint8_t x) { return x / 255.0f; }

  const int64_t high, wide;
  const Floats memory;
};

// [O, C, 3, 3] -> [C, 9, O in sixteens]
inline Floats arranged(const Shape& s, const float* weight) {
  Floats result(s.channels * kTaps * s.out_row(), /*zero=*/true);
  for (int64_t o = 0; o < s.outputs; ++o) {
    for (int64_t k = 0; k < s.channels * kTaps; ++k) {
      result.data()[k * s.out_row() + o] = weight[o * s.channels * kTaps + k];
    }
  }
  return result;
}

inline void gather_weights(const Shape& s, const float* from, float* weight) {
  for (int64_t o = 0; o < s.outputs; ++o) {
    for (int64_t k = 0; k < s.channels * kTaps; ++k) {
      weight[o * s.channels * kTaps + k] = from[k * s.out_row() + o];
    }
  }
}

// Outputs of images from `begin` to `end`, by this thread alone; or what `pool` makes of them.
template <typename Pixel>
void forward(const Shape& s, const Pixel* images, const float* weight, const float* bias,
             bool then_relu, float* outputs, const Pool* pool, int64_t begin, int64_t end) {
  Planes planes(s);
  const Floats whole(pool ? s.out_size() : 0);
  const int64_t row = s.out_row();
  for (int64_t n = begin; n < end; ++n) {
    planes.fill(s, images + n * s.in_size());
    float* image = pool ? whole.data() : outputs + n * s.out_size();
    for (int64_t y = 0; y < s.out_height; ++y) {
      for (int64_t x = 0; x < s.out_width; x += kPixels) {
        const int64_t pixels = std::min(kPixels, s.out_width - x);
        for (int64_t o = 0; o < row; o += 16) {
          Vector sums[kPixels];
          for (auto& sum : sums) sum = load(bias + o);
          for (int64_t c = 0; c < s.channels; ++c) {
            for (int64_t i = 0; i < 3; ++i) {
              const float* in = planes.memory.data() + (c * planes.high + y + i) * planes.wide + x;
              const float* w = weight + (c * kTaps + 3 * i) * row + o;
#pragma GCC unroll 3
              for (int64_t j = 0; j < 3; ++j) {
                const Vector right = load(w + j * row);
#pragma GCC unroll 12
                for (int64_t p = 0; p < kPixels; ++p) sums[p] += in[p + j] * right;
              }
            }
          }
          float* out = image + (y * s.out_width + x) * s.outputs + o;
          const __mmask16 mask = first(s.outputs - o);
#pragma GCC unroll 12
          for (int64_t p = 0; p < kPixels; ++p) {
            if (p >= pixels) break;
            store(out + p * s.outputs, then_relu ? relu(sums[p]) : sums[p], mask);
          }
        }
      }
    }
    if (pool) pool->forward(image, n);
  }
}

// Adds to the gradients of weights [C, 9, O in sixteens] and bias those from the images that `index`
// names from `begin` to `end`, by this thread alone. `gates` are outputs that had a relu, or null.
template <typename Pixel>
void backward(const Shape& s, const float* grads, const float* gates, const Pool* pool,
              const Pixel* images, const int64_t* index, int64_t begin, int64_t end,
              float* to_weight, float* to_bias) {
  Planes planes(s);
  const int64_t row = s.out_row(), area = s.out_height * s.out_width;
  const Floats grad(area * row, /*zero=*/true), whole(pool ? s.out_size() : 0);
  for (int64_t at = begin; at < end; ++at) {
    const int64_t n = index[at];
    planes.fill(s, images + n * s.in_size());
    if (pool) pool->backward(n, whole.data());
    const float* from = pool ? whole.data() : grads + n * s.out_size();
    for (int64_t o = 0; o < row; o += 16) {
      const __mmask16 mask = first(s.outputs - o);
      Vector sum = {};
      for (int64_t p = 0; p < area; ++p) {
        Vector g = load(from + p * s.outputs + o, mask);
        if (gates) g = gated(g, load(gates + n * s.out_size() + p * s.outputs + o, mask));
        store(grad.data() + p * row + o, g);
        sum += g;
      }
      store(to_bias + o, load(to_bias + o) + sum);
      for (int64_t c = 0; c < s.channels; ++c) {
        Vector sums[kTaps] = {};
        for (int64_t y = 0; y < s.out_height; ++y) {
          const float* in = planes.memory.data() + (c * planes.high + y) * planes.wide;
          const float* g = grad.data() + y * s.out_width * row + o;
          for (int64_t x = 0; x < s.out_width; ++x, g += row) {
            const Vector right = load(g);
#pragma GCC unroll 9
            for (int64_t k = 0; k < kTaps; ++k) {
              sums[k] += in[k / 3 * planes.wide + x + k % 3] * right;
            }
          }
        }
        for (int64_t k = 0; k < kTaps; ++k) {
          float* to = to_weight + (c * kTaps + k) * row + o;
          store(to, load(to) + sums[k]);
        }
      }
    }
  }
}

}  // namespace shallow
#endif
