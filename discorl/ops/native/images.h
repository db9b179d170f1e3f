// Functions of tensors of images, for processors with AVX-512: convolutions with what surrounds them in
// networks. Images are in channels-last order, except for bytes.

#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "shallow.h"
#include "winograd.h"

namespace images {

#ifdef DISCORL_PRODUCTS
constexpr bool kHasConvolutions = true;
using at::Tensor;
using pooling::Pool;
using vectors::Floats;
using winograd::Shape;

constexpr int64_t kShares = 8;   // of the images, whose gradients are summed up apart, then in order
constexpr int64_t kShallow = 8;  // depth from which on Winograd's way is the faster one

inline Tensor channels_last(const Tensor& x) {
  return x.contiguous(at::MemoryFormat::ChannelsLast);
}

inline Tensor empty_images(int64_t n, int64_t channels, int64_t height, int64_t width,
                           at::ScalarType type) {
  return at::empty({n, height, width, channels}, at::TensorOptions(type)).permute({0, 3, 1, 2});
}

// Images as the kernels take them, and what a convolution makes of their sizes.
struct Input {
  Input(const Tensor& x, const Tensor& weight, int64_t stride, int64_t padding)
      : s(shape_of(x, weight, stride, padding)),
        number(x.size(0)),
        images(s.planes ? x.contiguous() : channels_last(x)) {}

  bool is_shallow() const { return s.depth() < kShallow; }

  Tensor empty_outputs(bool pools, at::ScalarType type) const {
    const int64_t by = pools ? 2 : 1;
    return empty_images(number, s.outputs, (s.out_height + by - 1) / by,
                        (s.out_width + by - 1) / by, type);
  }

  // fn(pixels): the images in their type.
  template <typename F>
  void dispatch(F fn) const {
    s.planes ? fn(images.const_data_ptr<uint8_t>()) : fn(images.const_data_ptr<float>());
  }

  const Shape s;
  const int64_t number;

 private:
  const Tensor images;

  static Shape shape_of(const Tensor& x, const Tensor& weight, int64_t stride, int64_t padding) {
    TORCH_CHECK(x.dim() == 4 && weight.dim() == 4 && weight.size(2) == weight.size(3) &&
                    x.size(1) == weight.size(1) && stride >= 1,
                "images and kernels do not fit each other");
    const int64_t side = weight.size(2), taps = side / stride;
    TORCH_CHECK(side == taps * stride && (taps == 2 || taps == 3), "no kernel of 2 or 3 strides");
    TORCH_CHECK(padding >= 0 && padding < (stride == 1 ? taps : 1), "too much padding");
    TORCH_CHECK(std::min(x.size(2), x.size(3)) + 2 * padding >= side, "images are too small");
    const int64_t high = (x.size(2) + 2 * padding - side) / stride + 1,
                  wide = (x.size(3) + 2 * padding - side) / stride + 1;
    const bool planes = x.scalar_type() == at::kByte;
    TORCH_CHECK(planes || x.scalar_type() == at::kFloat, "images of bytes or floats");
    const Shape s{x.size(1), x.size(2), x.size(3), weight.size(0), high,
                  wide,      taps,      stride,    padding,        planes};
    TORCH_CHECK(s.depth() >= kShallow || (stride == 1 && taps == 3), "too few channels");
    return s;
  }
};

// conv(x) + bias + residual, of relu(x) if `relu_first`; then a relu if `then_relu`, or a pooling if
// `pools`. Bytes, channels first, stand for numbers from 0 to 1. x [N, C, H, W], weight [O, C, K, K]
// -> [N, O, H', W'], and the winners of the pooling.
std::tuple<Tensor, Tensor> conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                  const std::optional<Tensor>& residual, int64_t stride,
                                  int64_t padding, bool relu_first, bool then_relu, bool pools) {
  const Input in(x, weight, stride, padding);
  const Shape& s = in.s;
  TORCH_CHECK(bias.numel() == s.outputs, "a bias of another size");
  TORCH_CHECK(!in.is_shallow() || !(residual || relu_first), "only before a shallow convolution");
  const Tensor out = in.empty_outputs(pools, at::kFloat);
  const Tensor winners = pools ? in.empty_outputs(true, at::kByte) : at::empty({0}, at::kByte);
  TORCH_CHECK(!residual || (!pools && residual->sizes() == out.sizes()), "an unfit residual");
  const Tensor added = residual ? channels_last(*residual) : Tensor(), w = weight.contiguous();
  const float* residuals = residual ? added.const_data_ptr<float>() : nullptr;
  const Floats factor = in.is_shallow()
                            ? shallow::arranged(s, w.const_data_ptr<float>())
                            : winograd::transformed(s, w.const_data_ptr<float>(), false);
  const Floats b(s.out_row(), /*zero=*/true);
  const Tensor bias_ = bias.contiguous();
  std::copy_n(bias_.const_data_ptr<float>(), s.outputs, b.data());
  float* to = out.data_ptr<float>();
  const Pool all{s.out_height, s.out_width, s.outputs, to, winners.data_ptr<uint8_t>()};
  const Pool* pool = pools ? &all : nullptr;
  in.dispatch([&](const auto* pixels) {
    at::parallel_for(0, in.number, 1, [&](int64_t begin, int64_t end) {
      if (in.is_shallow()) {
        shallow::forward(s, pixels, factor.data(), b.data(), then_relu, to, pool, begin, end);
      } else {
        winograd::forward(s, pixels, relu_first, factor.data(), b.data(), residuals, then_relu, to,
                          pool, begin, end);
      }
    });
  });
  return {out, winners};
}

// The gradients of images (if `of_images`), weight and bias. `out` is what conv2d returned if it had a
// relu at its end, `winners` if it had a pooling. With `rows` [R], in ascending order, only these images
// have a gradient.
std::tuple<Tensor, Tensor, Tensor> conv2d_backward(const Tensor& grad, const Tensor& x,
                                                   const Tensor& weight,
                                                   const std::optional<Tensor>& out,
                                                   const std::optional<Tensor>& winners,
                                                   const std::optional<Tensor>& rows,
                                                   int64_t stride, int64_t padding,
                                                   bool relu_first, bool of_images) {
  const Input in(x, weight, stride, padding);
  const Shape& s = in.s;
  TORCH_CHECK(grad.sizes() == in.empty_outputs(winners.has_value(), at::kFloat).sizes() &&
                  (!out || out->sizes() == grad.sizes()) &&
                  (!winners || (!out && winners->sizes() == grad.sizes())),
              "a gradient of another size");
  TORCH_CHECK(!(of_images && (s.planes || in.is_shallow())), "these images have no gradient");
  const Tensor g = channels_last(grad), gates = out ? channels_last(*out) : Tensor();
  const Tensor chosen = rows ? rows->contiguous() : at::arange(in.number, at::kLong);
  const int64_t *index = chosen.const_data_ptr<int64_t>(), num = chosen.numel();
  for (int64_t i = 0; i < num; ++i) {
    const int64_t least = i > 0 ? index[i - 1] + 1 : 0;
    TORCH_CHECK(index[i] >= least && index[i] < in.number, "rows out of range or order");
  }
  Tensor to_images;
  if (of_images) {
    to_images = empty_images(in.number, s.channels, s.height, s.width, at::kFloat);
    float* images = to_images.data_ptr<float>();
    for (int64_t n = 0, i = 0; n < in.number; ++n) {  // those that are not among the rows
      if (i < num && index[i] == n) {
        ++i;
      } else {
        std::fill_n(images + n * s.in_size(), s.in_size(), 0.0f);
      }
    }
  }
  const Tensor w = weight.contiguous();
  const Floats factor =
      of_images ? winograd::transformed(s, w.const_data_ptr<float>(), true) : Floats(0);
  const float* gate = out ? gates.const_data_ptr<float>() : nullptr;
  const Tensor won = winners ? channels_last(*winners) : Tensor();
  const Pool all{s.out_height, s.out_width, s.outputs, g.data_ptr<float>(),
                 winners ? won.data_ptr<uint8_t>() : nullptr};
  const Pool* pool = winners ? &all : nullptr;
  const int64_t size =
      (in.is_shallow() ? shallow::kTaps : winograd::kPoints) * s.depth() * s.out_row();
  const int64_t shares = std::min(kShares, std::max<int64_t>(num, 1));
  std::vector<Floats> weights, biases;
  for (int64_t i = 0; i < shares; ++i) {
    weights.emplace_back(size, /*zero=*/true);
    biases.emplace_back(s.out_row(), /*zero=*/true);
  }
  in.dispatch([&](const auto* pixels) {
    at::parallel_for(0, shares, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const int64_t begin = num * i / shares, end = num * (i + 1) / shares;
        if (in.is_shallow()) {
          shallow::backward(s, g.const_data_ptr<float>(), gate, pool, pixels, index, begin, end,
                            weights[i].data(), biases[i].data());
        } else {
          winograd::backward(s, g.const_data_ptr<float>(), gate, pool, pixels, relu_first,
                             of_images ? factor.data() : nullptr, index, begin, end,
                             of_images ? to_images.data_ptr<float>() : nullptr, weights[i].data(),
                             biases[i].data());
        }
      }
    });
  });
  for (int64_t i = 1; i < shares; ++i) {
    for (int64_t j = 0; j < size; ++j) weights[0].data()[j] += weights[i].data()[j];
    for (int64_t j = 0; j < s.outputs; ++j) biases[0].data()[j] += biases[i].data()[j];
  }
  Tensor to_weight = at::empty_like(w), to_bias = at::empty({s.outputs}, w.options());
  (in.is_shallow() ? shallow::gather_weights : winograd::gather_weights)(
      s, weights[0].data(), to_weight.data_ptr<float>());
  std::copy_n(biases[0].data(), s.outputs, to_bias.data_ptr<float>());
  return {to_images, to_weight, to_bias};
}
#else
constexpr bool kHasConvolutions = false;
#endif

}  // namespace images

TORCH_LIBRARY_FRAGMENT(discorl, m) {
  m.def("has_convolutions() -> bool", [] { return images::kHasConvolutions; });
#ifdef DISCORL_PRODUCTS
  m.def(
      "conv2d(Tensor x, Tensor weight, Tensor bias, Tensor? residual, int stride, int padding, "
      "bool relu_first, bool then_relu, bool pools) -> (Tensor, Tensor)");
  m.def(
      "conv2d_backward(Tensor grad, Tensor x, Tensor weight, Tensor? out, Tensor? winners, "
      "Tensor? rows, int stride, int padding, bool relu_first, bool of_images) "
      "-> (Tensor, Tensor, Tensor)");
#endif
}

#ifdef DISCORL_PRODUCTS
TORCH_LIBRARY_IMPL(discorl, CPU, m) {
  m.impl("conv2d", images::conv2d);
  m.impl("conv2d_backward", images::conv2d_backward);
}
#endif
