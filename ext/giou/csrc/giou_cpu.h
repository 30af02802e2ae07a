// GIoU over boxes in plain memory, on the CPU. No torch in here: the caller brings the pointers and a parallel loop.
//
// Work is cut in chunks of a fixed number of boxes, and each chunk's sum is added in a fixed order; the number of threads
// decides only who computes a chunk. The result is therefore the same for any number of threads, bit for bit.
// Within a chunk the valid boxes are packed, tile by tile, into arrays of one coordinate each, which the compiler turns into
// vector code: padding costs one comparison a box, whatever share of the boxes it is.
#pragma once

#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "giou_half.h"
#include "giou_math.h"

// One binary for any x86-64: the dynamic linker picks the widest version that the processor has.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define GIOU_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define GIOU_CLONES
#endif

namespace giou {
namespace cpu {

constexpr int64_t kChunk = 2048;  // boxes; 64 KB of float predictions and targets
constexpr int kTile = 128;        // packed boxes
constexpr int kLanes = 16;        // partial sums of a tile, a multiple of any vector's width

template <typename M>
struct Tile {
  alignas(64) M prediction[4][kTile];
  alignas(64) M target[4][kTile];
  alignas(64) M out[4][kTile];
};

// What all the passes share: `boxes` rows of four predictions and four targets, and how often to repeat the arithmetic.
template <typename P, typename T>
struct Boxes {
  const P* predictions;
  const T* targets;
  int64_t count;
  int64_t iterations;
};

inline int64_t chunks(int64_t boxes) { return (boxes + kChunk - 1) / kChunk; }

// The compiler must assume that the tile changed, so that repeated arithmetic is really repeated.
inline __attribute__((always_inline)) void forget_memory() { __asm__ volatile("" ::: "memory"); }

template <typename M>
GIOU_INLINE Box<M> column(const M (&rows)[4][kTile], int i) {
  return {rows[0][i], rows[1][i], rows[2][i], rows[3][i]};
}

template <typename M>
GIOU_INLINE void tile_giou_body(Tile<M>& tile, int filled, int64_t iterations) {
  const M share = M(1) / static_cast<M>(iterations);
  for (int i = 0; i < filled; ++i) tile.out[0][i] = M(0);
  for (int64_t k = 0; k < iterations; ++k) {
#pragma GCC ivdep
    for (int i = 0; i < filled; ++i) tile.out[0][i] += giou(column(tile.prediction, i), column(tile.target, i)) * share;
    forget_memory();
  }
}

template <typename M>
GIOU_INLINE void tile_gradient_body(Tile<M>& tile, int filled, int64_t iterations) {
  const M share = M(1) / static_cast<M>(iterations);
  for (int c = 0; c < 4; ++c)
    for (int i = 0; i < filled; ++i) tile.out[c][i] = M(0);
  for (int64_t k = 0; k < iterations; ++k) {
#pragma GCC ivdep
    for (int i = 0; i < filled; ++i) {
      const Box<M> g = giou_gradient(column(tile.prediction, i), column(tile.target, i));
      tile.out[0][i] += g.x1 * share;
      tile.out[1][i] += g.y1 * share;
      tile.out[2][i] += g.x2 * share;
      tile.out[3][i] += g.y2 * share;
    }
    forget_memory();
  }
}

// Versions for several processors exist for plain functions only, not for templates.
GIOU_CLONES static void tile_giou(Tile<float>& tile, int filled, int64_t iterations) { tile_giou_body(tile, filled, iterations); }
GIOU_CLONES static void tile_giou(Tile<double>& tile, int filled, int64_t iterations) { tile_giou_body(tile, filled, iterations); }
GIOU_CLONES static void tile_gradient(Tile<float>& tile, int filled, int64_t iterations) { tile_gradient_body(tile, filled, iterations); }
GIOU_CLONES static void tile_gradient(Tile<double>& tile, int filled, int64_t iterations) { tile_gradient_body(tile, filled, iterations); }

// Copies box `index` into column i of the tile.
template <typename M, typename P, typename T>
GIOU_INLINE void pack(Tile<M>& tile, int i, const Boxes<P, T>& boxes, int64_t index) {
  const P* prediction = boxes.predictions + 4 * index;
  const T* target = boxes.targets + 4 * index;
  for (int c = 0; c < 4; ++c) {
    tile.prediction[c][i] = to_math<M>(prediction[c]);
    tile.target[c][i] = to_math<M>(target[c]);
  }
}

// Fills columns up to the next multiple of kLanes with empty boxes, so that the vector loops have no remainder.
template <typename M>
GIOU_INLINE int round_up(Tile<M>& tile, int filled) {
  const int rounded = (filled + kLanes - 1) / kLanes * kLanes;
  for (int c = 0; c < 4; ++c)
    for (int i = filled; i < rounded; ++i) tile.prediction[c][i] = tile.target[c][i] = M(0);
  return rounded;
}

// A half-open range of boxes, at most kChunk of them.
struct Span {
  int64_t begin, end;
};

inline Span chunk(int64_t index, int64_t boxes) {
  const int64_t begin = index * kChunk;
  return {begin, begin + kChunk < boxes ? begin + kChunk : boxes};
}

// Positions of the span's valid boxes, relative to its begin; returns how many.
template <typename M, typename P, typename T>
inline int find_valid(const Boxes<P, T>& boxes, Span span, int (&found)[kChunk]) {
  const T* last = boxes.targets + 4 * span.begin + 3;
  const int size = static_cast<int>(span.end - span.begin);
  int n = 0;
  for (int i = 0; i < size; ++i) {
    found[n] = i;
    n += is_valid(to_math<M>(last[4 * static_cast<int64_t>(i)])) ? 1 : 0;
  }
  return n;
}

// Which boxes a pass computes: those that count, or all of them as the article's plain kernel does.
enum class Select { kValid, kAll };

// Packs the selected boxes of the span tile by tile, runs `compute` on each tile, and calls visit(tile, filled, rows), where
// rows[i] is the box in column i, counted from the span's begin. Returns the number of boxes selected.
template <typename M, typename P, typename T, typename Visit>
int for_each_tile(const Boxes<P, T>& boxes, Span span, Select select, void (*compute)(Tile<M>&, int, int64_t), const Visit& visit) {
  int rows[kChunk];
  int n = static_cast<int>(span.end - span.begin);
  if (select == Select::kValid) {
    n = find_valid<M>(boxes, span, rows);
  } else {
    std::iota(rows, rows + n, 0);
  }
  Tile<M> tile;
  for (int start = 0; start < n; start += kTile) {
    const int filled = n - start < kTile ? n - start : kTile;
    for (int i = 0; i < filled; ++i) pack(tile, i, boxes, span.begin + rows[start + i]);
    compute(tile, round_up(tile, filled), boxes.iterations);
    visit(tile, filled, rows + start);
  }
  return n;
}

// Sixteen partial sums in the arithmetic's type, then double: long sums lose nothing, vectors stay full.
template <typename M>
inline double tile_sum(const Tile<M>& tile, int filled) {
  M lanes[kLanes] = {};
  for (int i = 0; i < filled; ++i) lanes[i % kLanes] += tile.out[0][i];
  double sum = 0.0;
  for (int lane = 0; lane < kLanes; ++lane) sum += static_cast<double>(lanes[lane]);
  return sum;
}

// Writes the loss, 1 - (sum of GIoU over valid boxes) / max(valid boxes, 1), and the number of valid boxes.
// parallel_for(n, body) calls body(first, last) for ranges that cover [0, n).
template <typename M, typename P, typename T, typename ParallelFor>
void loss_forward(const Boxes<P, T>& boxes, M* loss, int64_t* valid, const ParallelFor& parallel_for) {
  struct Partial {
    double sum = 0.0;
    int64_t valid = 0;
  };
  std::vector<Partial> partials(static_cast<size_t>(chunks(boxes.count)));
  parallel_for(chunks(boxes.count), [&](int64_t first, int64_t last) {
    for (int64_t c = first; c < last; ++c) {
      Partial& partial = partials[static_cast<size_t>(c)];
      partial.valid = for_each_tile<M>(boxes, chunk(c, boxes.count), Select::kValid, tile_giou,
                                       [&](const Tile<M>& tile, int filled, const int*) { partial.sum += tile_sum(tile, filled); });
    }
  });
  Partial total;
  for (const Partial& partial : partials) {
    total.sum += partial.sum;
    total.valid += partial.valid;
  }
  *loss = static_cast<M>(1.0 - total.sum / static_cast<double>(total.valid > 0 ? total.valid : 1));
  *valid = total.valid;
}

// Writes d loss / d predictions times `grad` for every box; 0 for boxes that do not count.
template <typename M, typename P, typename T, typename ParallelFor>
void loss_backward(const Boxes<P, T>& boxes, M grad, int64_t valid, P* gradient, const ParallelFor& parallel_for) {
  const M scale = -grad / static_cast<M>(valid > 0 ? valid : 1);
  parallel_for(chunks(boxes.count), [&](int64_t first, int64_t last) {
    for (int64_t c = first; c < last; ++c) {
      const Span span = chunk(c, boxes.count);
      P* out = gradient + 4 * span.begin;
      std::memset(static_cast<void*>(out), 0, static_cast<size_t>(span.end - span.begin) * 4 * sizeof(P));
      for_each_tile<M>(boxes, span, Select::kValid, tile_gradient, [&](const Tile<M>& tile, int filled, const int* rows) {
        for (int i = 0; i < filled; ++i)
          for (int side = 0; side < 4; ++side) out[4 * rows[i] + side] = from_math<P>(tile.out[side][i] * scale);
      });
    }
  });
}

// The article's kernel on the CPU: one GIoU and one 0/1 a box, the sums are left to the caller. Select::kAll computes boxes
// that do not count and throws the result away.
template <typename ParallelFor>
void box_forward(const Boxes<float, float>& boxes, Select select, float* giou, float* valid, const ParallelFor& parallel_for) {
  parallel_for(chunks(boxes.count), [&](int64_t first, int64_t last) {
    for (int64_t c = first; c < last; ++c) {
      const Span span = chunk(c, boxes.count);
      for (int64_t i = span.begin; i < span.end; ++i) {
        giou[i] = 0.0f;
        valid[i] = is_valid(boxes.targets[4 * i + 3]) ? 1.0f : 0.0f;
      }
      for_each_tile<float>(boxes, span, select, tile_giou, [&](const Tile<float>& tile, int filled, const int* rows) {
        for (int i = 0; i < filled; ++i)
          if (valid[span.begin + rows[i]] != 0.0f) giou[span.begin + rows[i]] = tile.out[0][i];
      });
    }
  });
}

// Its gradient: `grad` holds one number a box.
template <typename ParallelFor>
void box_backward(const Boxes<float, float>& boxes, Select select, const float* grad, float* gradient, const ParallelFor& parallel_for) {
  parallel_for(chunks(boxes.count), [&](int64_t first, int64_t last) {
    for (int64_t c = first; c < last; ++c) {
      const Span span = chunk(c, boxes.count);
      std::memset(gradient + 4 * span.begin, 0, static_cast<size_t>(span.end - span.begin) * 4 * sizeof(float));
      for_each_tile<float>(boxes, span, select, tile_gradient, [&](const Tile<float>& tile, int filled, const int* rows) {
        for (int i = 0; i < filled; ++i) {
          const int64_t box = span.begin + rows[i];
          if (!is_valid(boxes.targets[4 * box + 3])) continue;
          for (int side = 0; side < 4; ++side) gradient[4 * box + side] = tile.out[side][i] * grad[box];
        }
      });
    }
  });
}

}  // namespace cpu
}  // namespace giou
