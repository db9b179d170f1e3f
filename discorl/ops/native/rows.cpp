// Matrix products, and functions of independent rows, each in one pass over memory that stays in a
// core's cache.
//
// The latter are what remains of an update's time beside its matrix products. Each does, up to rounding,
// what its caller in the package does with torch operations where it may not be used; none has a
// gradient. Plain loops, which the compiler turns into vector instructions of whatever machine it is on.

// Not ATen/ATen.h, which takes longer to compile than everything else together.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "agent_axis.h"
#include "images.h"
#include "products.h"

#if defined(__linux__) && defined(__x86_64__)
#define DISCORL_ONEDNN
namespace at::native {
// In torch's library, but in none of its headers; null if this torch has it no more.
[[gnu::weak]] void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& out, float beta,
                                 float alpha);
}  // namespace at::native
#endif

namespace {

using at::Tensor;

constexpr int64_t kBlock = 256;  // rows whose logits are in the cache at a time
constexpr int64_t kGrain = 16;   // rows that are worth a thread
constexpr int64_t kLanes = 32;   // trajectories that a thread takes through time together
constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Calls work(begin, end) for equal shares of the rows, one for each thread, in whole tiles.
template <typename Work>
void shared_rows(int64_t rows, const Work& work) {
  constexpr int64_t kTile = 12;
  at::parallel_for(0, (rows + kTile - 1) / kTile, 1, [&](int64_t begin, int64_t end) {
    work(begin * kTile, std::min(end * kTile, rows));
  });
}

#ifdef DISCORL_ONEDNN
// Whether oneDNN can multiply here: torch asks more of the processor than oneDNN does.
bool has_onednn() {
  if (!at::native::mkldnn_matmul || !at::hasMKLDNN()) return false;
  const at::AutoDispatchBelowADInplaceOrView no_gradients;
  const Tensor one = at::ones({1, 1});
  try {
    at::native::mkldnn_matmul(one, one, at::empty({1, 1}), /*beta=*/0, /*alpha=*/1);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}
#endif

#ifdef DISCORL_PRODUCTS
using products::Matrix;

// Its lines may be chosen by an index.
Matrix as_matrix(const Tensor& x, const int64_t* index = nullptr, int64_t lines = 0) {
  Matrix m{x.data_ptr<float>(), x.size(0), x.size(1), x.stride(0), x.stride(1), index};
  if (m.has_rows() && m.rows == 1) m.by_row = m.columns;
  if (index) (m.has_rows() ? m.rows : m.columns) = lines;
  return m;
}

// With rows or columns that lie in one piece.
Tensor in_order(const Tensor& x) {
  return x.stride(0) == 1 || x.stride(1) == 1 ? x : x.contiguous();
}

// A factor and the room that it takes.
template <typename Word>
struct Owned {
  explicit Owned(const Matrix& b) : factor{b.rows, b.columns, nullptr} {
    room = products::buffer(factor.size());
    factor.data = room.get();
    at::parallel_for(0, factor.panels(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) factor.pack(b, p);
    });
  }

  products::Packed<Word> factor;
  products::Buffer room;
};

// c <- a @ b + bias
template <typename Word>
void multiply_by_tiles(const Matrix& a, const Matrix& b, float* c, const float* bias = nullptr) {
  const Owned<Word> right(b);
  shared_rows(a.rows, [&](int64_t begin, int64_t end) {
    products::multiply_rows(a, right.factor, c, begin, end, {bias});
  });
}
#endif

// Whether our own products are faster than what torch has for this processor: MKL is made for
// Intel's, and was a tenth slower than oneDNN on an EPYC, which was no faster than ours.
bool prefers_tiles() {
#ifdef DISCORL_PRODUCTS
  static const bool result = !__builtin_cpu_is("intel");
  return result;
#else
  return false;
#endif
}

// out <- a @ b.
void multiply(const Tensor& a, const Tensor& b, Tensor& out) {
  if (!out.numel()) return;
#ifdef DISCORL_PRODUCTS
  if (prefers_tiles() && a.numel()) {
    const Tensor left = in_order(a), right = in_order(b);
    multiply_by_tiles<products::Single>(as_matrix(left), as_matrix(right), out.data_ptr<float>());
    return;
  }
#endif
#ifdef DISCORL_ONEDNN
  static const bool prefers_onednn = !__builtin_cpu_is("intel") && has_onednn();
  if (prefers_onednn && at::globalContext().userEnabledMkldnn() && a.numel()) {
    at::native::mkldnn_matmul(a, b, out, /*beta=*/0, /*alpha=*/1);
    return;
  }
#endif
  at::mm_out(out, a, b);
}

#if defined(DISCORL_PRODUCTS) && defined(__AVX512BF16__)
constexpr bool kHasBf16 = true;
using Rounded = products::Pairs;

// a @ b + bias, with the factors rounded to bfloat16.
void multiply_rounded(const Tensor& a, const Tensor& b, Tensor& out, const float* bias = nullptr) {
  const Tensor left = in_order(a), right = in_order(b);
  if (left.size(0) <= products::kFewRows && left.is_contiguous() && right.stride(0) == 1) {
    products::multiply_few(left.data_ptr<float>(), left.size(0), right.data_ptr<float>(),
                           right.stride(1), left.size(1), right.size(1), out.data_ptr<float>(),
                           bias);
    return;
  }
  multiply_by_tiles<Rounded>(as_matrix(left), as_matrix(right), out.data_ptr<float>(), bias);
}
#else
constexpr bool kHasBf16 = false;

void multiply_rounded(const Tensor& a, const Tensor& b, Tensor& out, const float* bias = nullptr) {
  const auto rounded = [](const Tensor& x) { return x.to(at::kBFloat16).to(at::kFloat); };
  multiply(rounded(a), rounded(b), out);
  if (!bias) return;
  for (int64_t i = 0; i < out.size(0); ++i) {
    float* row = out.data_ptr<float>() + i * out.size(1);
    for (int64_t j = 0; j < out.size(1); ++j) row[j] += bias[j];
  }
}
#endif

// a @ b; if asked, of the factors rounded to bfloat16.
Tensor product_of(const Tensor& a, const Tensor& b, bool round) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0), "factors differ in size");
  const at::AutoDispatchBelowADInplaceOrView no_gradients;
  if (!a.size(1)) return at::zeros({a.size(0), b.size(1)}, a.options());
  Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  if (!out.numel()) return out;
  round ? multiply_rounded(a, b, out) : multiply(a, b, out);
  return out;
}

// a @ b for some rows of a [N, D], in ascending order; the others' are zeros.
Tensor product_of_rows(const Tensor& a, const Tensor& b, const Tensor& rows, bool round) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0), "factors differ in size");
  const at::AutoDispatchBelowADInplaceOrView no_gradients;
#ifdef DISCORL_PRODUCTS
  const bool has_lines = a.stride(1) == 1;
  if (has_lines && rows.numel() && a.numel() && b.numel() && (round ? kHasBf16 : prefers_tiles())) {
    Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
    const Tensor right = in_order(b), index = rows.contiguous();
    const int64_t *chosen = index.data_ptr<int64_t>(), num = index.numel(), width = out.size(1);
    float* c = out.data_ptr<float>();
    int64_t next = 0;
    for (int64_t i = 0; i <= num; ++i) {  // the rows between those chosen
      const int64_t row = i < num ? chosen[i] : out.size(0);
      TORCH_CHECK(row >= next && row < out.size(0) + (i == num), "rows are not in order");
      std::fill_n(c + next * width, (row - next) * width, 0.0f);
      next = row + 1;
    }
    const Matrix left = as_matrix(a, chosen, num);
#ifdef __AVX512BF16__
    if (round) {
      multiply_by_tiles<Rounded>(left, as_matrix(right), c);
      return out;
    }
#endif
    multiply_by_tiles<products::Single>(left, as_matrix(right), c);
    return out;
  }
#endif
  Tensor out = at::zeros({a.size(0), b.size(1)}, a.options());
  return out.index_copy_(0, rows, product_of(a.index_select(0, rows), b, round));
}

// a.T @ b over some rows of a [N, D] and b [N, E].
Tensor product_over_rows(const Tensor& a, const Tensor& b, const Tensor& rows, bool round) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(0) == b.size(0), "factors differ in size");
  const at::AutoDispatchBelowADInplaceOrView no_gradients;
#ifdef DISCORL_PRODUCTS
  // A single column could pass for a row, in which the index would mean something else.
  const bool has_lines = a.stride(1) == 1 && b.stride(1) == 1 && a.stride(0) != 1;
  if (has_lines && rows.numel() && a.numel() && b.numel() && (round ? kHasBf16 : prefers_tiles())) {
    Tensor out = at::empty({a.size(1), b.size(1)}, a.options());
    const Tensor index = rows.contiguous();
    const int64_t *chosen = index.data_ptr<int64_t>(), num = index.numel();
    for (int64_t i = 0; i < num; ++i) {
      TORCH_CHECK(chosen[i] >= 0 && chosen[i] < a.size(0), "index out of range");
    }
    const Matrix left{a.data_ptr<float>(), a.size(1), num, 1, a.stride(0), chosen};
    const Matrix right{b.data_ptr<float>(), num, b.size(1), b.stride(0), 1, chosen};
#ifdef __AVX512BF16__
    if (round) {
      multiply_by_tiles<Rounded>(left, right, out.data_ptr<float>());
      return out;
    }
#endif
    multiply_by_tiles<products::Single>(left, right, out.data_ptr<float>());
    return out;
  }
#endif
  return product_of(a.index_select(0, rows).t(), b.index_select(0, rows), round);
}

// exp(x) for x <= 0, to two units in the last place: 2^n times a polynomial (Cephes' expf).
inline float exp_of(float x) {
  const float clamped = x < -87.0f ? -87.0f : x;
  const float n = (clamped * 1.44269504f + 12582912.0f) - 12582912.0f;  // rounds to an integer
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return x < -87.0f ? 0.0f : p * scale;
}

inline float sigmoid_of(float x) {
  const float e = exp_of(-std::fabs(x));
  const float d = 1.0f / (1.0f + e);
  return x < 0 ? e * d : d;
}

// A polynomial (Cephes' tanhf) near 0, where the quotient of exponentials would cancel.
inline float tanh_of(float x) {
  const float size = std::fabs(x), s = x * x;
  float p = -5.70498872745e-3f;
  p = p * s + 2.06390887954e-2f;
  p = p * s - 5.37397155531e-2f;
  p = p * s + 1.33314422036e-1f;
  p = p * s - 3.33332819422e-1f;
  const float e = exp_of(-2 * size);
  const float quotient = (1 - e) / (1 + e);
  return size < 0.625f ? x + x * s * p : (x < 0 ? -quotient : quotient);
}

struct Gates {
  float in, news, forget, shown;
};

// Those of cell j of H, from two shares of their inputs [4H] in the order i, g, f, o.
inline Gates gates_of(const float* x, const float* y, int64_t h, int64_t j) {
  return {sigmoid_of(x[j] + y[j]), tanh_of(x[h + j] + y[h + j]),
          sigmoid_of(x[2 * h + j] + y[2 * h + j]), sigmoid_of(x[3 * h + j] + y[3 * h + j])};
}

inline float largest(const float* x, int64_t size) {
  float m = kLowest;
#pragma omp simd reduction(max : m)
  for (int64_t j = 0; j < size; ++j) m = x[j] > m ? x[j] : m;
  return m;
}

// out <- exp(x - largest), where out may be x; returns the sum.
inline float exponentials(const float* x, float* out, int64_t size) {
  const float m = largest(x, size);
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < size; ++j) {
    out[j] = exp_of(x[j] - m);
    sum += out[j];
  }
  return sum;
}

void add_bias(float* x, const float* bias, int64_t rows, int64_t size, bool then_relu) {
  const float floor = then_relu ? 0.0f : kLowest;
  for (int64_t i = 0; i < rows; ++i, x += size) {
#pragma omp simd
    for (int64_t j = 0; j < size; ++j) {
      const float v = x[j] + bias[j];
      x[j] = v < floor ? floor : v;
    }
  }
}

// x @ weight.T + bias. x [N, D], weight [E, D], bias [E] -> [N, E]
Tensor linear_rows(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                   bool round) {
  TORCH_CHECK(!bias || bias->numel() == weight.size(0), "a bias of another size");
  if (!bias) return product_of(x, weight.t(), round);
  const Tensor b = bias->contiguous();
  if (round && x.numel()) {
    TORCH_CHECK(x.dim() == 2 && x.size(1) == weight.size(1), "factors differ in size");
    const at::AutoDispatchBelowADInplaceOrView no_gradients;
    Tensor out = at::empty({x.size(0), weight.size(0)}, x.options());
    multiply_rounded(x, weight.t(), out, b.data_ptr<float>());
    return out;
  }
  Tensor out = product_of(x, weight.t(), false);
  const int64_t size = out.size(1);
  at::parallel_for(0, out.size(0), kGrain, [&](int64_t begin, int64_t end) {
    add_bias(out.data_ptr<float>() + begin * size, b.data_ptr<float>(), end - begin, size, false);
  });
  return out;
}

// The second factor of products of a few hundred rows at a time, each by one thread; rounded to
// bfloat16 if asked, and the first factors too.
class Factor {
 public:
  Factor(const Tensor& b, bool round) : b_(b), round_(round) {
#ifdef DISCORL_PRODUCTS
    if (round ? !kHasBf16 : !prefers_tiles()) return;
    b_ = in_order(b);
#ifdef __AVX512BF16__
    if (round) {
      rounded_.emplace(as_matrix(b_));
      return;
    }
#endif
    packed_.emplace(as_matrix(b_));
#endif
  }

  int64_t width() const { return b_.size(1); }

  // out <- rows @ b + bias; then, if asked, relu.
  void apply(const Tensor& rows, Tensor& out, const float* bias, bool then_relu) const {
    float* c = out.data_ptr<float>();
#ifdef DISCORL_PRODUCTS
    const products::Finish finish{bias, then_relu};
#ifdef __AVX512BF16__
    if (rounded_) {
      products::multiply_rows(as_matrix(rows), rounded_->factor, c, 0, rows.size(0), finish);
      return;
    }
#endif
    if (packed_) {
      products::multiply_rows(as_matrix(rows), packed_->factor, c, 0, rows.size(0), finish);
      return;
    }
#endif
    round_ ? multiply_rounded(rows, b_, out) : multiply(rows, b_, out);
    if (bias) add_bias(c, bias, rows.size(0), width(), then_relu);
  }

 private:
  Tensor b_;
  bool round_;
#ifdef DISCORL_PRODUCTS
  std::optional<Owned<products::Single>> packed_;
#ifdef __AVX512BF16__
  std::optional<Owned<Rounded>> rounded_;
#endif
#endif
};

#ifdef DISCORL_PRODUCTS
template <typename Word>
Tensor pack_as(const Tensor& b) {
  products::Packed<Word> packed{b.size(0), b.size(1), nullptr};
  Tensor out = at::empty({packed.size()}, b.options().dtype(at::kInt));
  packed.data = reinterpret_cast<uint32_t*>(out.data_ptr<int32_t>());
  const Matrix matrix = as_matrix(b);
  for (int64_t p = 0; p < packed.panels(); ++p) packed.pack(matrix, p);
  return out;
}

template <typename Word>
void multiply_packed(const Matrix& rows, const Tensor& weight, int64_t width, float* out,
                     const products::Finish& finish) {
  const products::Packed<Word> packed{
      rows.columns, width, reinterpret_cast<uint32_t*>(weight.data_ptr<int32_t>())};
  TORCH_CHECK(weight.numel() == packed.size(), "a weight that was packed for another size");
  products::multiply_rows(rows, packed, out, 0, rows.rows, finish);
}
#endif

// Whether weights can be packed ahead; a weight [E, D] as the products' kernel reads it; and an MLP of
// such weights, with relu between its layers: x [N, D] -> [N, E]. For weights that are used often.
bool can_pack(bool round) { return round ? kHasBf16 : prefers_tiles(); }

Tensor pack_weight(const Tensor& weight, bool round) {
  TORCH_CHECK(weight.dim() == 2 && weight.numel() && can_pack(round), "cannot pack this weight");
#ifdef DISCORL_PRODUCTS
  const Tensor b = in_order(weight.t());
#ifdef __AVX512BF16__
  if (round) return pack_as<Rounded>(b);
#endif
  return pack_as<products::Single>(b);
#else
  return weight;
#endif
}

Tensor packed_mlp(const Tensor& x, const std::vector<Tensor>& weights,
                  const std::vector<Tensor>& biases, int64_t round_from) {
  TORCH_CHECK(x.dim() == 2 && !weights.empty() && weights.size() == biases.size(), "no such layers");
  const Tensor input = x.contiguous();
  Tensor out = at::empty({x.size(0), biases.back().numel()}, x.options());
#ifdef DISCORL_PRODUCTS
  int64_t widest = 1;
  for (const Tensor& b : biases) {
    TORCH_CHECK(b.is_contiguous(), "a bias that does not lie in one piece");
    widest = std::max(widest, b.numel());
  }
  const auto work = [&](int64_t begin, int64_t end) {
    const int64_t rows = end - begin;
    const products::Buffer room = products::buffer(2 * rows * widest);
    float* spare = reinterpret_cast<float*>(room.get());
    const float* from = input.data_ptr<float>() + begin * x.size(1);
    int64_t depth = x.size(1);
    for (size_t l = 0; l < weights.size(); ++l) {
      const bool is_last = l + 1 == weights.size();
      const int64_t width = biases[l].numel();
      float* to = is_last ? out.data_ptr<float>() + begin * width : spare + l % 2 * rows * widest;
      const Matrix a{from, rows, depth, depth, 1};
      const products::Finish finish{biases[l].data_ptr<float>(), !is_last};
#ifdef __AVX512BF16__
      if (depth >= round_from) {
        multiply_packed<Rounded>(a, weights[l], width, to, finish);
      } else
#endif
      {
        multiply_packed<products::Single>(a, weights[l], width, to, finish);
      }
      from = to;
      depth = width;
    }
  };
  // For a few rows another thread is not worth waking.
  x.size(0) < 24 ? work(0, x.size(0)) : shared_rows(x.size(0), work);
#endif
  return out;
}

inline float dot(const float* x, const float* y, int64_t size) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < size; ++j) sum += x[j] * y[j];
  return sum;
}

inline Tensor first_rows(const Tensor& x, int64_t rows) {
  return rows == x.size(0) ? x : x.narrow(0, 0, rows);
}

// softmax(MLP(x)) @ weight + bias. x [N, D], layers of the MLP, weight [K, E], bias [E] -> [N, E]
// Factors of products with `round_from` terms or more are rounded to bfloat16. A single output is an
// expectation, whose values need all digits, and never is.
Tensor softmax_linear(const Tensor& x, const std::vector<Tensor>& layer_weights,
                      const std::vector<Tensor>& layer_biases, const Tensor& weight,
                      const std::optional<Tensor>& bias, int64_t round_from) {
  const int64_t num_rows = x.size(0), num_logits = weight.size(0), num_outputs = weight.size(1);
  const size_t num_layers = layer_weights.size();
  TORCH_CHECK(num_layers == layer_biases.size(), "a layer lacks its weight or bias");
  for (size_t l = 0; l < num_layers; ++l) {
    TORCH_CHECK(layer_biases[l].numel() == layer_weights[l].size(0), "a bias of another size");
  }
  TORCH_CHECK((num_layers ? layer_weights.back().size(0) : x.size(1)) == num_logits,
              "the last layer's width is not the number of logits");
  TORCH_CHECK(!bias || bias->numel() == num_outputs, "a bias of another size");
  const Tensor input = x.contiguous(), projection = weight.contiguous();
  const Tensor added = bias ? bias->contiguous() : at::zeros({num_outputs}, x.options());
  std::vector<Factor> factors;
  std::vector<Tensor> biases;
  for (const Tensor& w : layer_weights) factors.emplace_back(w.t(), w.size(1) >= round_from);
  for (const Tensor& b : layer_biases) biases.push_back(b.contiguous());
  const bool is_expectation = num_outputs == 1;
  const Factor last(projection, num_logits >= round_from && !is_expectation);
  Tensor out = at::empty({num_rows, num_outputs}, x.options());

  shared_rows(num_rows, [&](int64_t begin, int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView no_gradients;  // each thread must be told
    std::vector<Tensor> buffers;
    for (const Factor& f : factors) {
      buffers.push_back(at::empty({kBlock, f.width()}, x.options()));
    }
    if (num_layers == 0) buffers.push_back(at::empty({kBlock, num_logits}, x.options()));
    float sums[kBlock];
    for (int64_t first = begin; first < end; first += kBlock) {
      const int64_t rows = std::min(kBlock, end - first);
      Tensor logits = input.narrow(0, first, rows);
      for (size_t l = 0; l < num_layers; ++l) {
        Tensor product = first_rows(buffers[l], rows);
        factors[l].apply(logits, product, biases[l].data_ptr<float>(), l + 1 < num_layers);
        logits = product;
      }
      const Tensor powers = first_rows(buffers.back(), rows);
      Tensor result = out.narrow(0, first, rows);
      const float *x_row = logits.data_ptr<float>(), *values = projection.data_ptr<float>();
      float *power = powers.data_ptr<float>(), *r = result.data_ptr<float>();
      for (int64_t i = 0; i < rows; ++i, x_row += num_logits, power += num_logits) {
        sums[i] = exponentials(x_row, power, num_logits);
        if (is_expectation) r[i] = dot(power, values, num_logits);
      }
      if (!is_expectation) last.apply(powers, result, nullptr, false);
      const float* b = added.data_ptr<float>();
      for (int64_t i = 0; i < rows; ++i, r += num_outputs) {
        const float per_sum = 1 / sums[i];
        for (int64_t j = 0; j < num_outputs; ++j) r[j] = r[j] * per_sum + b[j];
      }
    }
  });
  return out;
}

void check_index(const Tensor& index, int64_t size) {
  if (index.numel() == 0) return;
  const auto [lowest, highest] = at::aminmax(index);
  TORCH_CHECK(lowest.item<int64_t>() >= 0 && highest.item<int64_t>() < size, "index out of range");
}

// The hidden state of an LSTM after each of M actions. Its gates, in the order i, g, f, o, are the
// state's and the action's: gates [N, 4H], cell [N, H], of_action [A, 4H], actions [N, M] -> [N, M, H]
Tensor lstm_after_actions(const Tensor& gates, const Tensor& cell, const Tensor& of_action,
                          const Tensor& actions) {
  const int64_t num_rows = cell.size(0), h = cell.size(1), m = actions.size(1);
  TORCH_CHECK(gates.size(0) == num_rows && actions.size(0) == num_rows, "rows differ in number");
  TORCH_CHECK(gates.size(1) == 4 * h && of_action.size(1) == 4 * h, "4 gates for each cell");
  check_index(actions, of_action.size(0));
  const Tensor g_ = gates.contiguous(), c_ = cell.contiguous(), w_ = of_action.contiguous(),
               a_ = actions.contiguous();
  Tensor out = at::empty({num_rows, m, h}, gates.options());
  const float *g = g_.data_ptr<float>(), *c = c_.data_ptr<float>(), *w = w_.data_ptr<float>();
  const int64_t* a = a_.data_ptr<int64_t>();
  float* o = out.data_ptr<float>();
  at::parallel_for(0, num_rows * m, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float *x = g + i / m * 4 * h, *y = w + a[i] * 4 * h, *cell_row = c + i / m * h;
      float* hidden = o + i * h;
#pragma omp simd
      for (int64_t j = 0; j < h; ++j) {
        const auto [in, news, forget, shown] = gates_of(x, y, h, j);
        hidden[j] = shown * tanh_of(forget * cell_row[j] + in * news);
      }
    }
  });
  return out;
}

// Its gradients in gates and cell, for one action in each row, from that of the hidden state [N, H].
std::tuple<Tensor, Tensor> lstm_after_action_backward(const Tensor& grad, const Tensor& gates,
                                                      const Tensor& cell, const Tensor& of_action,
                                                      const Tensor& actions) {
  const int64_t num_rows = cell.size(0), h = cell.size(1);
  TORCH_CHECK(grad.sizes() == cell.sizes() && gates.size(0) == num_rows, "rows differ in number");
  TORCH_CHECK(actions.numel() == num_rows, "rows differ in number");
  TORCH_CHECK(gates.size(1) == 4 * h && of_action.size(1) == 4 * h, "4 gates for each cell");
  check_index(actions, of_action.size(0));
  const Tensor d_ = grad.contiguous(), g_ = gates.contiguous(), c_ = cell.contiguous(),
               w_ = of_action.contiguous(), a_ = actions.contiguous();
  Tensor gate_grads = at::empty_like(g_), cell_grads = at::empty_like(c_);
  const float *d = d_.data_ptr<float>(), *g = g_.data_ptr<float>(), *c = c_.data_ptr<float>(),
              *w = w_.data_ptr<float>();
  const int64_t* a = a_.data_ptr<int64_t>();
  float *to_gates = gate_grads.data_ptr<float>(), *to_cell = cell_grads.data_ptr<float>();
  at::parallel_for(0, num_rows, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const float *x = g + n * 4 * h, *y = w + a[n] * 4 * h, *cell_row = c + n * h, *dh = d + n * h;
      float *dx = to_gates + n * 4 * h, *dc = to_cell + n * h;
#pragma omp simd
      for (int64_t j = 0; j < h; ++j) {
        const auto [in, news, forget, shown] = gates_of(x, y, h, j);
        const float squashed = tanh_of(forget * cell_row[j] + in * news);
        const float inner = dh[j] * shown * (1 - squashed * squashed);
        dx[j] = inner * news * in * (1 - in);
        dx[h + j] = inner * in * (1 - news * news);
        dx[2 * h + j] = inner * cell_row[j] * forget * (1 - forget);
        dx[3 * h + j] = dh[j] * squashed * shown * (1 - shown);
        dc[j] = inner * forget;
      }
    }
  });
  return {gate_grads, cell_grads};
}

// The hidden states of an LSTM that runs from the last step to the first, anew where reset is true.
// Gates, in the order i, g, f, o, are the inputs' and the hidden state's: gates [S, B, 4H],
// weight [H, 4H], reset [S, B] -> [S, B, H]. No thread waits for another before the end.
Tensor lstm_unroll_backward(const Tensor& gates, const Tensor& weight, const Tensor& reset) {
  const int64_t steps = gates.size(0), batch = gates.size(1), h = weight.size(0);
  TORCH_CHECK(gates.size(2) == 4 * h && weight.size(1) == 4 * h, "4 gates for each cell");
  TORCH_CHECK(reset.size(0) == steps && reset.size(1) == batch, "shapes differ");
  const Tensor g_ = gates.contiguous(), r_ = reset.contiguous();
  Tensor out = at::empty({steps, batch, h}, gates.options());
  const float* g = g_.data_ptr<float>();
  const bool* anew = r_.data_ptr<bool>();
  float* o = out.data_ptr<float>();
  const Factor factor(weight, /*round=*/false);
  at::parallel_for(0, (batch + kLanes - 1) / kLanes, 1, [&](int64_t begin, int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView no_gradients;
    for (int64_t first = begin * kLanes; first < std::min(end * kLanes, batch); first += kLanes) {
      const int64_t rows = std::min(kLanes, batch - first);
      const Tensor hidden = at::zeros({rows, h}, gates.options()), cell = at::zeros_like(hidden);
      Tensor recurrent = at::empty({rows, 4 * h}, gates.options());
      for (int64_t t = steps - 1; t >= 0; --t) {
        for (int64_t i = 0; i < rows; ++i) {
          if (!anew[t * batch + first + i]) continue;
          std::fill_n(hidden.data_ptr<float>() + i * h, h, 0.0f);
          std::fill_n(cell.data_ptr<float>() + i * h, h, 0.0f);
        }
        factor.apply(hidden, recurrent, nullptr, false);
        for (int64_t i = 0; i < rows; ++i) {
          const int64_t place = t * batch + first + i;
          const float *x = g + place * 4 * h, *y = recurrent.data_ptr<float>() + i * 4 * h;
          float *c = cell.data_ptr<float>() + i * h, *now = o + place * h;
#pragma omp simd
          for (int64_t j = 0; j < h; ++j) {
            const auto [in, news, forget, shown] = gates_of(x, y, h, j);
            c[j] = forget * c[j] + in * news;
            now[j] = shown * tanh_of(c[j]);
          }
          std::copy_n(now, h, hidden.data_ptr<float>() + i * h);
        }
      }
    }
  });
  return out;
}

// The gradients of the hidden states after M actions each, for P agents at a time: from grad [P, N, M, H]
// to those of gates [P, N, 4H], cell [P, N, H] and of_action [P, A, 4H]; actions [P, N, M] count from 0 for
// each agent.
std::tuple<Tensor, Tensor, Tensor> after_actions_backward_of_agents(
    const Tensor& grad, const Tensor& gates, const Tensor& cell, const Tensor& of_action,
    const Tensor& actions) {
  const int64_t agents = cell.size(0), rows = cell.size(1), h = cell.size(2), m = actions.size(2);
  const int64_t choices = of_action.size(1);
  TORCH_CHECK(gates.size(2) == 4 * h && of_action.size(2) == 4 * h, "4 gates for each cell");
  check_index(actions, choices);
  const Tensor d_ = grad.contiguous(), g_ = gates.contiguous(), c_ = cell.contiguous(),
               w_ = of_action.contiguous(), a_ = actions.contiguous();
  Tensor gate_grads = at::zeros_like(g_), cell_grads = at::zeros_like(c_), action_grads = at::zeros_like(w_);
  const float *d = d_.data_ptr<float>(), *g = g_.data_ptr<float>(), *c = c_.data_ptr<float>(),
              *w = w_.data_ptr<float>();
  const int64_t* a = a_.data_ptr<int64_t>();
  float *to_gates = gate_grads.data_ptr<float>(), *to_cell = cell_grads.data_ptr<float>(),
        *to_actions = action_grads.data_ptr<float>();
  at::parallel_for(0, agents, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> of_row(4 * h);
    float* dx = of_row.data();
    for (int64_t i = begin * rows * m; i < end * rows * m; ++i) {
      const int64_t n = i / m, action = n / rows * choices + a[i];
      const float *x = g + n * 4 * h, *y = w + action * 4 * h, *cell_row = c + n * h, *dh = d + i * h;
      float* dc = to_cell + n * h;
#pragma omp simd
      for (int64_t j = 0; j < h; ++j) {
        const auto [in, news, forget, shown] = gates_of(x, y, h, j);
        const float squashed = tanh_of(forget * cell_row[j] + in * news);
        const float inner = dh[j] * shown * (1 - squashed * squashed);
        dx[j] = inner * news * in * (1 - in);
        dx[h + j] = inner * in * (1 - news * news);
        dx[2 * h + j] = inner * cell_row[j] * forget * (1 - forget);
        dx[3 * h + j] = dh[j] * squashed * shown * (1 - shown);
        dc[j] += inner * forget;
      }
      float *sum = to_gates + n * 4 * h, *of_choice = to_actions + action * 4 * h;
#pragma omp simd
      for (int64_t j = 0; j < 4 * h; ++j) {
        sum[j] += dx[j];
        of_choice[j] += dx[j];
      }
    }
  });
  return {gate_grads, cell_grads, action_grads};
}

// As lstm_unroll_backward, for P agents: gates [P, S, B, 4H], weight [P, H, 4H], reset [P, S, B]. Returns the
// hidden states, cells [P, S, B, H] and the gates as they open [P, S, B, 4H].
std::tuple<Tensor, Tensor, Tensor> unroll_of_agents(const Tensor& gates, const Tensor& weight,
                                                    const Tensor& reset) {
#ifdef DISCORL_PRODUCTS
  const int64_t agents = gates.size(0), steps = gates.size(1), batch = gates.size(2), h = weight.size(1);
  TORCH_CHECK(gates.size(3) == 4 * h && weight.size(2) == 4 * h, "4 gates for each cell");
  const Tensor g_ = gates.contiguous(), r_ = reset.contiguous();
  Tensor hidden = at::empty({agents, steps, batch, h}, gates.options()), cells = at::empty_like(hidden),
         open = at::empty_like(g_);
  const float* g = g_.data_ptr<float>();
  const bool* anew = r_.data_ptr<bool>();
  float *now = hidden.data_ptr<float>(), *kept = cells.data_ptr<float>(), *o = open.data_ptr<float>();
  at::parallel_for(0, agents, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> state(batch * h), cell(batch * h), recurrent(batch * 4 * h);
    agent_axis::RowsOf factor(weight);
    for (int64_t p = begin; p < end; ++p) {
      const agents::Strided right = factor.of(p);
      std::fill(state.begin(), state.end(), 0.0f);
      std::fill(cell.begin(), cell.end(), 0.0f);
      for (int64_t t = steps - 1; t >= 0; --t) {
        const int64_t first = (p * steps + t) * batch;
        for (int64_t i = 0; i < batch; ++i) {
          if (!anew[first + i]) continue;
          std::fill_n(&state[i * h], h, 0.0f);
          std::fill_n(&cell[i * h], h, 0.0f);
        }
        agents::multiply({state.data(), h, 1}, right.data, right.by_row, {g + first * 4 * h, 4 * h, 1}, batch,
                         h, 4 * h, recurrent.data());
        for (int64_t i = 0; i < batch; ++i) {
          const float* x = &recurrent[i * 4 * h];
          float *c = &cell[i * h], *s = &state[i * h], *place = o + (first + i) * 4 * h;
#pragma omp simd
          for (int64_t j = 0; j < h; ++j) {
            const float in = sigmoid_of(x[j]), news = tanh_of(x[h + j]);
            const float forget = sigmoid_of(x[2 * h + j]), shown = sigmoid_of(x[3 * h + j]);
            c[j] = forget * c[j] + in * news;
            s[j] = shown * tanh_of(c[j]);
            place[j] = in;
            place[h + j] = news;
            place[2 * h + j] = forget;
            place[3 * h + j] = shown;
          }
        }
        std::copy(state.begin(), state.end(), now + first * h);
        std::copy(cell.begin(), cell.end(), kept + first * h);
      }
    }
  });
  return {hidden, cells, open};
#else
  TORCH_CHECK(false, "needs AVX-512");
#endif
}

// The gradient of its gates, from that of the hidden states, and from what it returned.
Tensor unroll_backward_of_agents(const Tensor& grad, const Tensor& open, const Tensor& cells,
                                 const Tensor& weight, const Tensor& reset) {
#ifdef DISCORL_PRODUCTS
  const int64_t agents = open.size(0), steps = open.size(1), batch = open.size(2), h = weight.size(1);
  const Tensor d_ = grad.contiguous(), r_ = reset.contiguous(), back = weight.transpose(1, 2);
  Tensor out = at::empty_like(open);
  const float *d = d_.data_ptr<float>(), *o = open.data_ptr<float>(), *kept = cells.data_ptr<float>();
  const bool* anew = r_.data_ptr<bool>();
  float* to = out.data_ptr<float>();
  at::parallel_for(0, agents, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> of_hidden(batch * h), of_cell(batch * h), zeros(h);
    agent_axis::RowsOf factor(back);
    for (int64_t p = begin; p < end; ++p) {
      const agents::Strided right = factor.of(p);
      std::fill(of_hidden.begin(), of_hidden.end(), 0.0f);
      std::fill(of_cell.begin(), of_cell.end(), 0.0f);
      for (int64_t t = 0; t < steps; ++t) {
        const int64_t first = (p * steps + t) * batch;
        for (int64_t i = 0; i < batch; ++i) {
          const int64_t place = first + i;
          const float *gate = o + place * 4 * h, *after = kept + place * h, *given = d + place * h;
          const bool is_start = t + 1 == steps || anew[place];
          const float* before = is_start ? zeros.data() : kept + (place + batch) * h;
          float *dx = to + place * 4 * h, *dh = &of_hidden[i * h], *dc = &of_cell[i * h];
#pragma omp simd
          for (int64_t j = 0; j < h; ++j) {
            const float in = gate[j], news = gate[h + j], forget = gate[2 * h + j], shown = gate[3 * h + j];
            const float squashed = tanh_of(after[j]), slope = dh[j] + given[j];
            const float inner = dc[j] + slope * shown * (1 - squashed * squashed);
            dx[j] = inner * news * in * (1 - in);
            dx[h + j] = inner * in * (1 - news * news);
            dx[2 * h + j] = inner * before[j] * forget * (1 - forget);
            dx[3 * h + j] = slope * squashed * shown * (1 - shown);
            dc[j] = inner * forget;
          }
        }
        agents::multiply({to + first * 4 * h, 4 * h, 1}, right.data, right.by_row, {nullptr, 0, 1}, batch,
                         4 * h, h, of_hidden.data());
        for (int64_t i = 0; i < batch; ++i) {
          if (!anew[first + i]) continue;
          std::fill_n(&of_hidden[i * h], h, 0.0f);
          std::fill_n(&of_cell[i * h], h, 0.0f);
        }
      }
    }
  });
  return out;
#else
  TORCH_CHECK(false, "needs AVX-512");
#endif
}

// KL(softmax(target) || softmax(logits)) of each row, and its gradient in the logits.
std::tuple<Tensor, Tensor> kl_rows(const Tensor& logits, const Tensor& target_logits) {
  const int64_t num_rows = logits.size(0), size = logits.size(1);
  TORCH_CHECK(logits.sizes() == target_logits.sizes(), "predictions and targets differ in shape");
  const Tensor x_ = logits.contiguous(), t_ = target_logits.contiguous();
  Tensor losses = at::empty({num_rows}, logits.options()), slopes = at::empty_like(x_);
  const float *xs = x_.data_ptr<float>(), *ts = t_.data_ptr<float>();
  float *loss = losses.data_ptr<float>(), *slope = slopes.data_ptr<float>();
  at::parallel_for(0, num_rows, kGrain, [&](int64_t begin, int64_t end) {
    std::vector<float> buffer(size);
    float* p = buffer.data();
    for (int64_t i = begin; i < end; ++i) {
      const float *x = xs + i * size, *t = ts + i * size;
      float* q = slope + i * size;
      const float x_max = largest(x, size), t_max = largest(t, size);
      float q_sum = 0, p_sum = 0, difference = 0;
#pragma omp simd reduction(+ : q_sum, p_sum, difference)
      for (int64_t j = 0; j < size; ++j) {
        // Below the largest: logits may be large where the loss is not.
        const float x_below = x[j] - x_max, t_below = t[j] - t_max;
        q[j] = exp_of(x_below);
        p[j] = exp_of(t_below);
        q_sum += q[j];
        p_sum += p[j];
        difference += (t_below - x_below) * p[j];
      }
      const float per_q = 1 / q_sum, per_p = 1 / p_sum;
#pragma omp simd
      for (int64_t j = 0; j < size; ++j) q[j] = q[j] * per_q - p[j] * per_p;
      loss[i] = difference * per_p + std::log(q_sum) - std::log(p_sum);
    }
  });
  return {losses, slopes};
}

// -sum of weight * log_softmax(logits) over the M classes that have one, and its gradient.
std::tuple<Tensor, Tensor> cross_entropy_rows(const Tensor& logits, const Tensor& index,
                                              const Tensor& weights) {
  const int64_t num_rows = logits.size(0), size = logits.size(1), m = index.size(1);
  TORCH_CHECK(index.size(0) == num_rows && index.sizes() == weights.sizes(), "shapes differ");
  check_index(index, size);
  const Tensor x_ = logits.contiguous(), i_ = index.contiguous(), w_ = weights.contiguous();
  Tensor losses = at::empty({num_rows}, logits.options()), slopes = at::empty_like(x_);
  const float *xs = x_.data_ptr<float>(), *ws = w_.data_ptr<float>();
  const int64_t* is = i_.data_ptr<int64_t>();
  float *loss = losses.data_ptr<float>(), *slope = slopes.data_ptr<float>();
  at::parallel_for(0, num_rows, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float *x = xs + i * size, *w = ws + i * m;
      const int64_t* classes = is + i * m;
      float* q = slope + i * size;
      const float sum = exponentials(x, q, size);
      const float per_q = 1 / sum, x_max = largest(x, size), log_sum = std::log(sum);
#pragma omp simd
      for (int64_t j = 0; j < size; ++j) q[j] *= per_q;
      loss[i] = 0;
      for (int64_t k = 0; k < m; ++k) {
        loss[i] += w[k] * (log_sum + (x_max - x[classes[k]]));
        q[classes[k]] -= w[k];
      }
    }
  });
  return {losses, slopes};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, ADInplaceOrView, m) {
  m.impl("bmm", agent_axis::bmm);
  m.impl("baddbmm", agent_axis::baddbmm);
}

TORCH_LIBRARY(discorl, m) {
  m.def("has_agent_axis() -> bool", [] { return agent_axis::kHas; });
  m.def("multiply_for_agents(bool use) -> bool", agent_axis::multiply_for_agents);
  m.def("agents_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor");
  m.def("agents_add_product(Tensor x, Tensor a, Tensor b) -> Tensor");
  m.def(
      "agents_after_actions_backward(Tensor grad, Tensor gates, Tensor cell, Tensor of_action, "
      "Tensor actions) -> (Tensor, Tensor, Tensor)");
  m.def("agents_unroll(Tensor gates, Tensor weight, Tensor reset) -> (Tensor, Tensor, Tensor)");
  m.def(
      "agents_unroll_backward(Tensor grad, Tensor gates, Tensor cells, Tensor weight, Tensor reset) -> "
      "Tensor");
  m.def("has_bf16() -> bool", [] { return kHasBf16; });
  m.def("can_pack(bool round) -> bool", can_pack);
  m.def("pack_weight(Tensor weight, bool round) -> Tensor");
  m.def("packed_mlp(Tensor x, Tensor[] weights, Tensor[] biases, int round_from) -> Tensor");
  m.def("mm(Tensor a, Tensor b, bool round=False) -> Tensor");
  m.def("mm_of_rows(Tensor a, Tensor b, Tensor rows, bool round=False) -> Tensor");
  m.def("mm_over_rows(Tensor a, Tensor b, Tensor rows, bool round=False) -> Tensor");
  m.def("linear(Tensor x, Tensor weight, Tensor? bias, bool round=False) -> Tensor");
  m.def(
      "softmax_linear(Tensor x, Tensor[] layer_weights, Tensor[] layer_biases, Tensor weight, "
      "Tensor? bias, int round_from=9223372036854775807) -> Tensor");
  m.def("lstm_after_actions(Tensor gates, Tensor cell, Tensor of_action, Tensor actions) -> Tensor");
  m.def(
      "lstm_after_action_backward(Tensor grad, Tensor gates, Tensor cell, Tensor of_action, "
      "Tensor actions) -> (Tensor, Tensor)");
  m.def("lstm_unroll_backward(Tensor gates, Tensor weight, Tensor reset) -> Tensor");
  m.def("kl_rows(Tensor logits, Tensor target_logits) -> (Tensor, Tensor)");
  m.def("cross_entropy_rows(Tensor logits, Tensor index, Tensor weights) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(discorl, FuncTorchBatched, m) {
  m.impl("agents_linear", agent_axis::linear);
  m.impl("agents_add_product", agent_axis::add_product);
}

TORCH_LIBRARY_IMPL(discorl, CPU, m) {
  m.impl("agents_after_actions_backward", after_actions_backward_of_agents);
  m.impl("agents_unroll", unroll_of_agents);
  m.impl("agents_unroll_backward", unroll_backward_of_agents);
  m.impl("pack_weight", pack_weight);
  m.impl("packed_mlp", [](const Tensor& x, at::TensorList weights, at::TensorList biases,
                          int64_t round_from) {
    return packed_mlp(x, weights.vec(), biases.vec(), round_from);
  });
  m.impl("mm", product_of);
  m.impl("mm_of_rows", product_of_rows);
  m.impl("mm_over_rows", product_over_rows);
  m.impl("linear", linear_rows);
  m.impl("softmax_linear", [](const Tensor& x, at::TensorList weights, at::TensorList biases,
                              const Tensor& weight, const std::optional<Tensor>& bias,
                              int64_t round_from) {
    return softmax_linear(x, weights.vec(), biases.vec(), weight, bias, round_from);
  });
  m.impl("lstm_after_actions", lstm_after_actions);
  m.impl("lstm_after_action_backward", lstm_after_action_backward);
  m.impl("lstm_unroll_backward", lstm_unroll_backward);
  m.impl("kl_rows", kl_rows);
  m.impl("cross_entropy_rows", cross_entropy_rows);
}
