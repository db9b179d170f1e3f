// Convolutions in single precision with about half of the multiplications (Winograd's minimal
// filtering, as in Lavin and Gray 2015), for processors with AVX-512.
//
// A kernel of r * s pixels and stride s is one of r cells and stride 1, where a cell is s * s pixels
// with all their channels. For r = 2 and 3, a tile of 4 x 4 cells gives m x m outputs, m = 5 - r: cells
// and weights are transformed by additions, 16 matrix products over a cell's depth follow, and additions
// make outputs of these. Gradients are the adjoints of these three steps. Tiles are worked on about a
// hundred at a time, which stay in the cache. Sums are in the same order whatever the number of threads.

#pragma once

#include "pooling.h"
#include "vectors.h"

#ifdef DISCORL_PRODUCTS
#include <cstring>
#include <type_traits>
#include <vector>

namespace winograd {

using namespace vectors;
using pooling::Pool;

constexpr int64_t kPoints = 16;            // products for each tile
constexpr int64_t kBlockFloats = 1 << 17;  // of a block's factors and products
constexpr int64_t kMaxTiles = 120;         // of a block
constexpr int64_t kPanel = 64;             // columns of a product at a time: four registers
constexpr int64_t kMaxRows = 12;           // rows of a product at a time, which may go beyond its last

struct Shape {
  int64_t channels, height, width;           // of an input
  int64_t outputs, out_height, out_width;    // of what comes out
  int64_t taps, stride, padding;             // cells of the kernel along a side; pixels
  bool planes;                               // inputs are bytes, channels first

  int64_t step() const { return 5 - taps; }  // outputs of a tile along a side
  int64_t depth() const { return channels * stride * stride; }
  int64_t tiles_high() const { return (out_height + step() - 1) / step(); }
  int64_t tiles_wide() const { return (out_width + step() - 1) / step(); }
  int64_t cells_high() const { return step() * (tiles_high() - 1) + 4; }
  int64_t cells_wide() const { return step() * (tiles_wide() - 1) + 4; }
  int64_t in_row() const { return sixteens(depth()); }     // floats of a transformed cell
  int64_t out_row() const { return sixteens(outputs); }    // of a transformed output
  int64_t kernel_size() const { return depth() * taps * taps; }  // of one output
  int64_t in_size() const { return channels * height * width; }
  int64_t out_size() const { return outputs * out_height * out_width; }
  int64_t tile_rows() const {  // of a block
    const int64_t most = kBlockFloats / (kPoints * (in_row() + out_row()));
    return std::max<int64_t>(1, std::min(kMaxTiles, most) / tiles_wide());
  }

  // Where a cell's components are in the kernel of one output, from its first pixel.
  std::vector<int64_t> places() const {
    const int64_t side = taps * stride, area = stride * stride;
    std::vector<int64_t> result(depth());
    for (int64_t d = 0; d < depth(); ++d) {
      const int64_t channel = planes ? d / area : d % channels;
      const int64_t pixel = planes ? d % area : d / channels;
      result[d] = (channel * side + pixel / stride) * side + pixel % stride;
    }
    return result;
  }
};

// ---- The products

// c <- c * adds + a @ b, a tile of R rows and 16 Z columns.
template <int R, int Z>
inline void tile(const float* a, int64_t a_row, int64_t a_term, const float* b, int64_t b_term,
                 int64_t terms, float* c, int64_t c_row, int64_t rows, bool adds) {
  __m512 sums[R][Z];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int z = 0; z < Z; ++z) sums[r][z] = _mm512_setzero_ps();
  }
  for (int64_t k = 0; k < terms; ++k, a += a_term, b += b_term) {
    __m512 right[Z];
#pragma GCC unroll 4
    for (int z = 0; z < Z; ++z) right[z] = _mm512_load_ps(b + 16 * z);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const __m512 left = _mm512_set1_ps(a[r * a_row]);
#pragma GCC unroll 4
      for (int z = 0; z < Z; ++z) sums[r][z] = _mm512_fmadd_ps(left, right[z], sums[r][z]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r, c += c_row) {
    if (r >= rows) break;
#pragma GCC unroll 4
    for (int z = 0; z < Z; ++z) {
      __m512 sum = sums[r][z];
      if (adds) sum = _mm512_add_ps(sum, _mm512_load_ps(c + 16 * z));
      _mm512_store_ps(c + 16 * z, sum);
    }
  }
}

// The same for any number of rows, and of columns in sixteens.
inline void multiply(const float* a, int64_t a_row, int64_t a_term, const float* b, int64_t b_term,
                     int64_t terms, float* c, int64_t c_row, int64_t rows, int64_t columns,
                     bool adds) {
  for (int64_t j = 0; j < columns; j += kPanel) {
    const auto each = [&]<int R, int Z>() {
      for (int64_t i = 0; i < rows; i += R) {
        tile<R, Z>(a + i * a_row, a_row, a_term, b + j, b_term, terms, c + i * c_row + j, c_row,
                   rows - i, adds);
      }
    };
    switch (std::min(kPanel, columns - j) / 16) {
      case 1: each.template operator()<12, 1>(); break;
      case 2: each.template operator()<12, 2>(); break;
      case 3: each.template operator()<6, 3>(); break;
      default: each.template operator()<6, 4>();
    }
  }
}

// ---- The transforms of four numbers, and their adjoints

template <typename X>
inline void to_cells(X* x) {  // B'
  const X a = x[0] - x[2], b = x[1] + x[2], c = x[2] - x[1], d = x[1] - x[3];
  x[0] = a, x[1] = b, x[2] = c, x[3] = d;
}

template <typename X>
inline void from_cells(X* x) {  // B
  const X a = x[0], b = x[1] - x[2] + x[3], c = x[1] + x[2] - x[0], d = -x[3];
  x[0] = a, x[1] = b, x[2] = c, x[3] = d;
}

template <int M, typename X>
inline void to_outputs(X* x) {  // A': 4 -> M
  const X a = x[0] + x[1] + x[2], b = x[1] - x[2], c = x[1] + x[2] - x[3];
  x[0] = a, x[1] = M == 2 ? b - x[3] : b;
  if (M == 3) x[2] = c;
}

template <int M, typename X>
inline void from_outputs(X* x) {  // A: M -> 4
  const X even = M == 3 ? x[0] + x[2] : x[0], odd = x[1];
  x[3] = -x[M - 1], x[1] = even + odd, x[2] = even - odd;
}

template <typename X>
inline void to_points(X* x, int64_t taps) {  // G: taps -> 4
  const X even = taps == 3 ? x[0] + x[2] : x[0], odd = x[1];
  x[3] = x[taps - 1], x[1] = (even + odd) / 2, x[2] = (even - odd) / 2;
}

template <typename X>
inline void from_points(X* x, int64_t taps) {  // G': 4 -> taps
  const X even = (x[1] + x[2]) / 2, odd = (x[1] - x[2]) / 2;
  if (taps == 3) x[2] = even + x[3];
  x[0] = x[0] + even, x[1] = taps == 3 ? odd : odd + x[3];
}

template <int Rows, typename F>
inline void each_row(Vector x[4][4], F f) {
#pragma GCC unroll 4
  for (int i = 0; i < Rows; ++i) f(x[i]);
}

template <int Columns, typename F>
inline void each_column(Vector x[4][4], F f) {
#pragma GCC unroll 4
  for (int j = 0; j < Columns; ++j) {
    Vector column[4] = {x[0][j], x[1][j], x[2][j], x[3][j]};
    f(column);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) x[i][j] = column[i];
  }
}

// ---- The weights

// Where 16 neighbours of a row of transformed weights come from, relative to the first of them all: for
// outputs, or components of a cell.
struct Lanes {
  Lanes(const Shape& s, const std::vector<int64_t>& places, bool of_cells, int64_t begin)
      : mask(first((of_cells ? s.depth() : s.outputs) - begin)) {
    for (int64_t i = 0; i < 16; ++i) {
      if (mask >> i & 1) index[i] = of_cells ? places[begin + i] : (begin + i) * s.kernel_size();
    }
  }
  Vector gather(const float* x) const {
    const __m512 zero = _mm512_setzero_ps();
    return reinterpret_cast<Vector>(
        _mm512_mask_i32gather_ps(zero, mask, _mm512_load_si512(index), x, 4));
  }
  void scatter(float* x, Vector values) const {
    _mm512_mask_i32scatter_ps(x, mask, _mm512_load_si512(index), reinterpret_cast<__m512>(values), 4);
  }

  alignas(64) int32_t index[16] = {};
  const __mmask16 mask;
};

// [O, C, side, side] as [16, D, O in sixteens], or [16, O, D in sixteens].
inline Floats transformed(const Shape& s, const float* weight, bool transposed) {
  const int64_t side = s.taps * s.stride, lines = transposed ? s.outputs : s.depth();
  const int64_t row = transposed ? s.in_row() : s.out_row(), size = lines * row;
  const std::vector<int64_t> places = s.places();
  Floats result(kPoints * size);
  for (int64_t lane = 0; lane < row; lane += 16) {
    const Lanes lanes(s, places, transposed, lane);
    for (int64_t line = 0; line < lines; ++line) {
      const float* w = weight + (transposed ? line * s.kernel_size() : places[line]);
      Vector v[4][4] = {};
      for (int64_t i = 0; i < s.taps; ++i) {
        for (int64_t j = 0; j < s.taps; ++j) v[i][j] = lanes.gather(w + (i * side + j) * s.stride);
      }
      const auto to = [&](Vector* x) { to_points(x, s.taps); };
      each_row<4>(v, to);
      each_column<4>(v, to);
      float* out = result.data() + line * row + lane;
      for (int64_t p = 0; p < kPoints; ++p) store(out + p * size, v[p / 4][p % 4]);
    }
  }
  return result;
}

// The adjoint of the former: [16, D, O in sixteens] -> [O, C, side, side].
inline void gather_weights(const Shape& s, const float* points, float* weight) {
  const int64_t side = s.taps * s.stride, row = s.out_row(), size = s.depth() * row;
  const std::vector<int64_t> places = s.places();
  for (int64_t o = 0; o < row; o += 16) {
    const Lanes lanes(s, places, /*of_cells=*/false, o);
    for (int64_t d = 0; d < s.depth(); ++d) {
      Vector v[4][4];
      for (int64_t p = 0; p < kPoints; ++p) v[p / 4][p % 4] = load(points + p * size + d * row + o);
      const auto from = [&](Vector* x) { from_points(x, s.taps); };
      each_row<4>(v, from);
      each_column<4>(v, from);
      float* w = weight + places[d];
      for (int64_t i = 0; i < s.taps; ++i) {
        for (int64_t j = 0; j < s.taps; ++j) lanes.scatter(w + (i * side + j) * s.stride, v[i][j]);
      }
    }
  }
}

// ---- Images and cells

// Bytes [C, H, W] as cells of numbers from 0 to 1; a cell is [C, stride, stride].
inline void cells_of(const Shape& s, const uint8_t* image, bool, float* cells) {
  const int64_t n = s.stride, row = s.in_row(), wide = s.cells_wide(), edge = s.padding;
  const int64_t high = std::min(s.height, (s.cells_high() - edge) * n);  // no edge if n > 1
  const int64_t across = std::min(s.width, (wide - edge) * n);
  const __m512 scale = _mm512_set1_ps(255.0f);
  alignas(64) float line[16];
  for (int64_t c = 0; c < s.channels; ++c) {
    for (int64_t y = 0; y < high; ++y) {
      const uint8_t* x = image + (c * s.height + y) * s.width;
      float* out = cells + ((y / n + edge) * wide + edge) * row + (c * n + y % n) * n;
      for (int64_t j = 0; j < across; j += 16) {
        const int64_t some = std::min<int64_t>(16, across - j);
        const __m128i bytes = _mm_maskz_loadu_epi8(first(some), x + j);
        const __m512 numbers = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
        _mm512_store_ps(line, _mm512_div_ps(numbers, scale));
        if (n == 4 && some == 16) {
          for (int64_t i = 0; i < 4; ++i) std::memcpy(out + (j / 4 + i) * row, line + 4 * i, 16);
        } else {
          for (int64_t i = 0; i < some; ++i) out[(j + i) / n * row + (j + i) % n] = line[i];
        }
      }
    }
  }
}

// Floats [H, W, C] as cells [stride, stride, C]; with `is_relu`, their relu.
inline void cells_of(const Shape& s, const float* image, bool is_relu, float* cells) {
  const int64_t n = s.stride, row = s.in_row(), wide = s.cells_wide(), edge = s.padding;
  const int64_t high = std::min(s.height, (s.cells_high() - edge) * n);
  const int64_t across = std::min(s.width / n, wide - edge), part = n * s.channels;
  for (int64_t y = 0; y < high; ++y) {
    const float* x = image + y * s.width * s.channels;
    float* out = cells + ((y / n + edge) * wide + edge) * row + y % n * part;
    for (int64_t j = 0; j < across; ++j, x += part, out += row) {
      for (int64_t i = 0; i < part; i += 16) {
        const __mmask16 mask = first(part - i);
        const Vector v = load(x + i, mask);
        store(out + i, is_relu ? relu(v) : v, mask);
      }
    }
  }
}

// The adjoint: cells -> the image, whose gradient is 0 where no cell was made of it. With `gate`, also
// where that is not positive.
inline void image_of(const Shape& s, const float* cells, const float* gate, float* image) {
  const int64_t n = s.stride, row = s.in_row(), wide = s.cells_wide(), edge = s.padding;
  const int64_t high = std::min(s.height, (s.cells_high() - edge) * n);
  const int64_t across = std::min(s.width / n, wide - edge), part = n * s.channels;
  std::fill_n(image, s.in_size(), 0.0f);
  for (int64_t y = 0; y < high; ++y) {
    const float* x = cells + ((y / n + edge) * wide + edge) * row + y % n * part;
    int64_t place = y * s.width * s.channels;
    for (int64_t j = 0; j < across; ++j, x += row, place += part) {
      for (int64_t i = 0; i < part; i += 16) {
        const __mmask16 mask = first(part - i);
        Vector v = load(x + i, mask);
        if (gate) v = gated(v, load(gate + place + i, mask));
        store(image + place + i, v, mask);
      }
    }
  }
}

// ---- Tiles

// Row `ty` of an image's tiles: cells -> points [16, T, D in sixteens], from tile `at` on.
inline void transform_cells(const Shape& s, const float* cells, int64_t ty, float* points,
                            int64_t at, int64_t num_tiles) {
  const int64_t row = s.in_row(), wide = s.cells_wide(), step = s.step();
  for (int64_t tx = 0; tx < s.tiles_wide(); ++tx) {
    const float* x = cells + (ty * step * wide + tx * step) * row;
    float* out = points + (at + tx) * row;
    for (int64_t d = 0; d < row; d += 16) {
      Vector v[4][4];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) v[i / 4][i % 4] = load(x + ((i / 4) * wide + i % 4) * row + d);
      each_row<4>(v, to_cells<Vector>);
      each_column<4>(v, to_cells<Vector>);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) store(out + i * num_tiles * row + d, v[i / 4][i % 4]);
    }
  }
}

// The adjoint, which adds to cells.
inline void add_to_cells(const Shape& s, const float* points, int64_t at, int64_t num_tiles,
                         int64_t ty, float* cells) {
  const int64_t row = s.in_row(), wide = s.cells_wide(), step = s.step();
  for (int64_t tx = 0; tx < s.tiles_wide(); ++tx) {
    float* out = cells + (ty * step * wide + tx * step) * row;
    const float* x = points + (at + tx) * row;
    for (int64_t d = 0; d < row; d += 16) {
      Vector v[4][4];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) v[i / 4][i % 4] = load(x + i * num_tiles * row + d);
      each_row<4>(v, from_cells<Vector>);
      each_column<4>(v, from_cells<Vector>);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        float* place = out + ((i / 4) * wide + i % 4) * row + d;
        store(place, load(place) + v[i / 4][i % 4]);
      }
    }
  }
}

// What becomes of an output [H, W, O] beside the sums.
struct Finish {
  const float* bias;      // [O in sixteens]
  const float* residual;  // an image that is added, or null
  bool then_relu;
};

// Row `ty` of an image's tiles: products [16, T, O in sixteens] -> the image.
template <int M>
inline void make_outputs(const Shape& s, const float* points, int64_t at, int64_t num_tiles,
                         int64_t ty, const Finish& finish, float* image) {
  const int64_t row = s.out_row();
  const int64_t high = std::min<int64_t>(M, s.out_height - ty * M);
  for (int64_t tx = 0; tx < s.tiles_wide(); ++tx) {
    const float* x = points + (at + tx) * row;
    const int64_t across = std::min<int64_t>(M, s.out_width - tx * M);
    for (int64_t o = 0; o < row; o += 16) {
      const __mmask16 mask = first(s.outputs - o);
      const Vector bias = load(finish.bias + o);
      Vector v[4][4];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) v[i / 4][i % 4] = load(x + i * num_tiles * row + o);
      each_row<4>(v, to_outputs<M, Vector>);
      each_column<M>(v, to_outputs<M, Vector>);
#pragma GCC unroll 3
      for (int i = 0; i < M; ++i) {
        if (i >= high) break;
#pragma GCC unroll 3
        for (int j = 0; j < M; ++j) {
          if (j >= across) break;
          const int64_t place = ((ty * M + i) * s.out_width + tx * M + j) * s.outputs + o;
          Vector y = v[i][j] + bias;
          if (finish.residual) y += load(finish.residual + place, mask);
          store(image + place, finish.then_relu ? relu(y) : y, mask);
        }
      }
    }
  }
}

// The adjoint: the gradient of an image, where `gate` is positive if there is one -> points. Adds up
// the gradient of the bias.
template <int M>
inline void transform_grads(const Shape& s, const float* grads, const float* gate, int64_t ty,
                            float* points, int64_t at, int64_t num_tiles, float* bias) {
  const int64_t row = s.out_row();
  const int64_t high = std::min<int64_t>(M, s.out_height - ty * M);
  for (int64_t tx = 0; tx < s.tiles_wide(); ++tx) {
    float* out = points + (at + tx) * row;
    const int64_t across = std::min<int64_t>(M, s.out_width - tx * M);
    for (int64_t o = 0; o < row; o += 16) {
      const __mmask16 mask = first(s.outputs - o);
      Vector v[4][4] = {};
      Vector sum = load(bias + o);
#pragma GCC unroll 3
      for (int i = 0; i < M; ++i) {
        if (i >= high) break;
#pragma GCC unroll 3
        for (int j = 0; j < M; ++j) {
          if (j >= across) break;
          const int64_t place = ((ty * M + i) * s.out_width + tx * M + j) * s.outputs + o;
          v[i][j] = load(grads + place, mask);
          if (gate) v[i][j] = gated(v[i][j], load(gate + place, mask));
          sum += v[i][j];
        }
      }
      store(bias + o, sum);
      each_column<M>(v, from_outputs<M, Vector>);
      each_row<4>(v, from_outputs<M, Vector>);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) store(out + i * num_tiles * row + o, v[i / 4][i % 4]);
    }
  }
}

// ---- Images in, images out

// Outputs of images from `begin` to `end`, by this thread alone; or what `pool` makes of them.
template <typename Pixel>
void forward(const Shape& s, const Pixel* images, bool is_relu, const float* weight,
             const float* bias, const float* residual, bool then_relu, float* outputs,
             const Pool* pool, int64_t begin, int64_t end) {
  const int64_t high = s.tiles_high(), wide = s.tiles_wide(), most = s.tile_rows();
  const int64_t depth = s.depth(), in_row = s.in_row(), out_row = s.out_row();
  const Floats cells(s.cells_high() * s.cells_wide() * in_row, /*zero=*/true);
  const Floats left((kPoints * most * wide + kMaxRows) * in_row);
  const Floats products(kPoints * most * wide * out_row), whole(pool ? s.out_size() : 0);
  for (int64_t top = begin * high; top < end * high; top += most) {
    const int64_t rows = std::min(most, end * high - top), tiles = rows * wide;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t n = (top + i) / high, ty = (top + i) % high;
      if (ty == 0) cells_of(s, images + n * s.in_size(), is_relu, cells.data());
      transform_cells(s, cells.data(), ty, left.data(), i * wide, tiles);
    }
    for (int64_t p = 0; p < kPoints; ++p) {
      multiply(left.data() + p * tiles * in_row, in_row, 1, weight + p * depth * out_row, out_row,
               depth, products.data() + p * tiles * out_row, out_row, tiles, out_row, false);
    }
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t n = (top + i) / high, ty = (top + i) % high;
      const Finish finish{bias, residual ? residual + n * s.out_size() : nullptr, then_relu};
      float* image = pool ? whole.data() : outputs + n * s.out_size();
      (s.taps == 2 ? make_outputs<3> : make_outputs<2>)(s, products.data(), i * wide, tiles, ty,
                                                         finish, image);
      if (pool && ty + 1 == high) pool->forward(image, n);
    }
  }
}

// Gradients for the images that `index` names from `begin` to `end`, by this thread alone. Adds to those
// of weights [16, D, O in sixteens] and bias. `gates` are outputs that had a relu, or null; `transposed`
// are the weights for the gradient of images, or null if nobody wants it.
template <typename Pixel>
void backward(const Shape& s, const float* grads, const float* gates, const Pool* pool,
              const Pixel* images, bool is_relu, const float* transposed, const int64_t* index,
              int64_t begin, int64_t end, float* to_images, float* to_weight, float* to_bias) {
  const int64_t high = s.tiles_high(), wide = s.tiles_wide(), most = s.tile_rows();
  const int64_t depth = s.depth(), in_row = s.in_row(), out_row = s.out_row();
  const int64_t cells_size = s.cells_high() * s.cells_wide() * in_row;
  const Floats cells(cells_size, /*zero=*/true), cell_grads(transposed ? cells_size : 0);
  const Floats left((kPoints * most * wide + kMaxRows) * in_row);
  const Floats right((kPoints * most * wide + kMaxRows) * out_row);
  const Floats whole(pool ? s.out_size() : 0);
  for (int64_t top = begin * high; top < end * high; top += most) {
    const int64_t rows = std::min(most, end * high - top), tiles = rows * wide;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t n = index[(top + i) / high], ty = (top + i) % high;
      if (ty == 0) cells_of(s, images + n * s.in_size(), is_relu, cells.data());
      transform_cells(s, cells.data(), ty, left.data(), i * wide, tiles);
      if (pool && ty == 0) pool->backward(n, whole.data());
      (s.taps == 2 ? transform_grads<3> : transform_grads<2>)(
          s, pool ? whole.data() : grads + n * s.out_size(),
          gates ? gates + n * s.out_size() : nullptr, ty, right.data(), i * wide, tiles, to_bias);
    }
    for (int64_t p = 0; p < kPoints; ++p) {
      float* l = left.data() + p * tiles * in_row;
      const float* r = right.data() + p * tiles * out_row;
      multiply(l, 1, in_row, r, out_row, tiles, to_weight + p * depth * out_row, out_row, depth,
               out_row, /*adds=*/true);
      if (!transposed) continue;
      multiply(r, out_row, 1, transposed + p * s.outputs * in_row, in_row, s.outputs, l, in_row,
               tiles, in_row, false);
    }
    if (!transposed) continue;
    if constexpr (std::is_same_v<Pixel, float>) {
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t n = index[(top + i) / high], ty = (top + i) % high;
        if (ty == 0) std::fill_n(cell_grads.data(), cells_size, 0.0f);
        add_to_cells(s, left.data(), i * wide, tiles, ty, cell_grads.data());
        if (ty + 1 < high) continue;
        image_of(s, cell_grads.data(), is_relu ? images + n * s.in_size() : nullptr,
                 to_images + n * s.in_size());
      }
    }
  }
}

}  // namespace winograd
#endif
