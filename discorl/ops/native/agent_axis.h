// torch's products of stacks of matrices, one for each agent, on our kernel.
//
// While a thread asks for it, bmm and baddbmm are ours on their way from autograd to the processor. So vmap
// and derivatives of any order find them, and nothing of torch is replaced for anyone else.

#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "agents.h"

namespace agent_axis {

using at::Tensor;

#ifdef DISCORL_PRODUCTS
constexpr bool kHas = true;
#else
constexpr bool kHas = false;
#endif

inline thread_local bool is_in_use = false;

inline bool multiply_for_agents(bool use) { return std::exchange(is_in_use, use); }

#ifdef DISCORL_PRODUCTS
// The matrices of a stack [P, K, N], each in rows; those that lie in columns are copied when asked for.
class RowsOf {
 public:
  explicit RowsOf(const Tensor& x) : depth_(x.size(1)), width_(x.size(2)) {
    lies_in_rows_ = x.stride(2) == 1 || width_ == 1;
    stack_ = lies_in_rows_ || x.stride(1) == 1 || depth_ == 1 ? x : x.contiguous();
    lies_in_rows_ = lies_in_rows_ || !stack_.is_same(x);
    if (!lies_in_rows_) room_ = products::buffer(depth_ * width_);
  }

  agents::Strided of(int64_t p) {
    const agents::Strided here{stack_.data_ptr<float>() + p * stack_.stride(0), stack_.stride(1),
                               stack_.stride(2)};
    if (lies_in_rows_) return here;
    auto* copy = reinterpret_cast<float*>(room_.get());
    if (here.data != copied_) agents::transpose(here, depth_, width_, copy);
    copied_ = here.data;
    return {copy, width_, 1};
  }

 private:
  const int64_t depth_, width_;
  bool lies_in_rows_;
  Tensor stack_;
  products::Buffer room_;
  const float* copied_ = nullptr;  // which of them; often all are the same
};

// Whether all its numbers are in memory: zeros of forward-mode derivatives, for one, are not.
inline bool is_plain(const Tensor& x) {
  return !x.key_set().has(c10::DispatchKey::Python) && !x.is_nested() && x.has_storage() &&
         x.layout() == at::kStrided && x.is_cpu() && x.scalar_type() == at::kFloat &&
         !x._is_zerotensor() && !x.is_neg() && x.dim() == 3 && x.numel();
}

// Not on Intel's processors, which MKL is made for, nor for those who want to see torch's operations.
inline bool multiplies(const Tensor& a, const Tensor& b) {
  static const bool is_faster = !__builtin_cpu_is("intel");
  return is_in_use && is_faster && is_plain(a) && is_plain(b) && a.size(0) == b.size(0) &&
         a.size(2) == b.size(1) && !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Python);
}

// a [P, M, K] @ b [P, K, N], plus what is added: a stack that lies in rows, or nothing.
inline Tensor product(const Tensor& a, const Tensor& b, const Tensor& added) {
  const int64_t num = a.size(0), rows = a.size(1), depth = a.size(2), width = b.size(2);
  Tensor out = at::empty({num, rows, width}, a.options());
  const float* x = a.data_ptr<float>();
  const float* z = added.defined() ? added.data_ptr<float>() : nullptr;
  float* c = out.data_ptr<float>();
  at::parallel_for(0, num, 1, [&](int64_t begin, int64_t end) {
    RowsOf factor(b);
    for (int64_t p = begin; p < end; ++p) {
      const agents::Strided left{x + p * a.stride(0), a.stride(1), a.stride(2)}, right = factor.of(p);
      agents::Strided sum{nullptr, 0, 1};
      if (z) sum = {z + p * added.stride(0), added.stride(1), 1};
      agents::multiply(left, right.data, right.by_row, sum, rows, depth, width, c + p * rows * width);
    }
  });
  return out;
}
#endif

inline Tensor bmm(const Tensor& a, const Tensor& b) {
  const at::AutoDispatchBelowADInplaceOrView no_gradients;
#ifdef DISCORL_PRODUCTS
  if (multiplies(a, b)) return product(a, b, {});
#endif
  return at::bmm(a, b);
}

inline Tensor baddbmm(const Tensor& x, const Tensor& a, const Tensor& b, const at::Scalar& beta,
                      const at::Scalar& alpha) {
  const at::AutoDispatchBelowADInplaceOrView no_gradients;
#ifdef DISCORL_PRODUCTS
  if (multiplies(a, b) && is_plain(x) && beta.equal(1) && alpha.equal(1)) {
    const Tensor added = x.expand({a.size(0), a.size(1), b.size(2)});
    return product(a, b, added.stride(2) == 1 || added.size(2) == 1 ? added : added.contiguous());
  }
#endif
  return at::baddbmm(x, a, b, beta, alpha);
}

// Tensors inside of vmap, as they are outside: with the axis of agents first.
struct Unwrapped {
  explicit Unwrapped(std::initializer_list<Tensor> inputs) {
    for (const Tensor& x : inputs) {
      const auto* batched = at::functorch::maybeGetBatchedImpl(x);
      if (batched) level = std::max(level, batched->level());
    }
  }

  Tensor operator()(const Tensor& x) const {
    const auto* batched = at::functorch::maybeGetBatchedImpl(x);
    if (!batched || batched->level() != level) return x.unsqueeze(0);
    return batched->bdim() ? batched->value().movedim(batched->bdim(), 0) : batched->value();
  }

  Tensor wrapped(const Tensor& x) const { return at::functorch::makeBatched(x, 0, level); }

  int64_t level = 0;
  const c10::impl::ExcludeDispatchKeyGuard below{c10::DispatchKey::FuncTorchBatched};
};

inline Tensor stacked(const Tensor& x, int64_t num) {
  if (x.size(0) == num) return x;
  std::vector<int64_t> sizes(x.sizes().vec());
  sizes[0] = num;
  return x.expand(sizes);
}

// x @ weight.T + bias inside of vmap. x [..., D], weight [E, D], bias [E] -> [..., E]
inline Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  const Unwrapped unwrapped({x, weight, bias.value_or(Tensor())});
  const Tensor rows = unwrapped(x), w = unwrapped(weight);
  const int64_t num = std::max(rows.size(0), w.size(0));
  const Tensor left = stacked(rows, num).reshape({num, -1, rows.size(-1)});
  const Tensor right = stacked(w, num).transpose(1, 2);
  Tensor out = bias ? at::baddbmm(unwrapped(*bias).unsqueeze(1), left, right) : at::bmm(left, right);
  std::vector<int64_t> sizes(rows.sizes().vec());
  sizes.front() = num;
  sizes.back() = w.size(1);
  return unwrapped.wrapped(out.view(sizes));
}

// x + a @ b inside of vmap. a [N, D], b [D, E]; x [N, E], or [E] for every row. -> [N, E]
inline Tensor add_product(const Tensor& x, const Tensor& a, const Tensor& b) {
  const Unwrapped unwrapped({x, a, b});
  Tensor added = unwrapped(x);
  const Tensor left = unwrapped(a), right = unwrapped(b);
  const int64_t num = std::max(left.size(0), right.size(0));
  if (added.dim() == 2) added = added.unsqueeze(1);
  return unwrapped.wrapped(at::baddbmm(added, stacked(left, num), stacked(right, num)));
}

}  // namespace agent_axis
