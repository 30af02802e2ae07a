// The definition of GIoU and of its gradient, once, for every processor. Includes nothing, so that the host compiler, nvcc
// and the tests all compile this very text.
//
//   side(a, b)   = max(b - a, 0)
//   area         = product of a box's two sides; a reversed box is an empty one
//   intersection = side(max x1, min x2) * side(max y1, min y2)
//   union        = max(area_p + area_t - intersection, 1e-5)
//   hull         = max(area of the smallest box around both, 1e-5)
//   GIoU         = intersection / union - (hull - union) / hull, in [-1, 1]
//
// A NaN in a box makes its GIoU NaN: the comparisons below are written so that no clamp swallows it.
// Where the definition has a kink the gradient is PyTorch's: a tie of max or min gives each side half, a clamp passes the
// gradient at its bound, or, as from PyTorch 2.14 on (GIOU_CLAMP_STOPS_AT_BOUND), does not.
#pragma once

#if defined(__CUDACC__)
#define GIOU_INLINE __host__ __device__ __forceinline__
#else
#define GIOU_INLINE inline __attribute__((always_inline))
#endif

namespace giou {

// Corners of a box: (x1, y1) is the smaller, (x2, y2) the larger one. M is the type of the arithmetic: float or double.
template <typename M>
struct Box {
  M x1, y1, x2, y2;
};

template <typename M>
struct Epsilon {
  static constexpr M value = static_cast<M>(1e-5);
};

template <typename M>
GIOU_INLINE M larger(M a, M b) {
  return a > b ? a : b;
}

template <typename M>
GIOU_INLINE M smaller(M a, M b) {
  return a < b ? a : b;
}

template <typename M>
GIOU_INLINE M at_least(M value, M bound) {
  return value < bound ? bound : value;
}

template <typename M>
GIOU_INLINE M side(M low, M high) {
  return at_least(high - low, M(0));
}

// Derivative of max(a, b) by a; of min(a, b) by a it is picks_larger(b, a).
template <typename M>
GIOU_INLINE M picks_larger(M a, M b) {
  return a > b ? M(1) : (a == b ? M(0.5) : M(0));
}

template <typename M>
GIOU_INLINE M passes(M value, M bound) {
#if defined(GIOU_CLAMP_STOPS_AT_BOUND)
  return value > bound ? M(1) : M(0);
#else
  return value >= bound ? M(1) : M(0);
#endif
}

// A box counts as one when the last coordinate of its target is positive; padding is all zeros.
template <typename M>
GIOU_INLINE bool is_valid(M target_y2) {
  return target_y2 > M(0);
}

template <typename M>
GIOU_INLINE M giou(const Box<M>& p, const Box<M>& t) {
  const M eps = Epsilon<M>::value;
  const M area_p = side(p.x1, p.x2) * side(p.y1, p.y2);
  const M area_t = side(t.x1, t.x2) * side(t.y1, t.y2);
  const M inter = side(larger(p.x1, t.x1), smaller(p.x2, t.x2)) * side(larger(p.y1, t.y1), smaller(p.y2, t.y2));
  const M uni = at_least(area_p + area_t - inter, eps);
  const M hull =
      at_least(side(smaller(p.x1, t.x1), larger(p.x2, t.x2)) * side(smaller(p.y1, t.y1), larger(p.y2, t.y2)), eps);
  return inter / uni - (hull - uni) / hull;
}

// Gradient of giou(p, t) by the corners of p.
template <typename M>
GIOU_INLINE Box<M> giou_gradient(const Box<M>& p, const Box<M>& t) {
  const M eps = Epsilon<M>::value;
  const M zero = M(0);
  // Unclamped sides: w, h of the prediction, iw, ih of the intersection, hw, hh of the hull.
  const M w = p.x2 - p.x1, h = p.y2 - p.y1;
  const M iw = smaller(p.x2, t.x2) - larger(p.x1, t.x1), ih = smaller(p.y2, t.y2) - larger(p.y1, t.y1);
  const M hw = larger(p.x2, t.x2) - smaller(p.x1, t.x1), hh = larger(p.y2, t.y2) - smaller(p.y1, t.y1);
  const M area_p = at_least(w, zero) * at_least(h, zero);
  const M area_t = side(t.x1, t.x2) * side(t.y1, t.y2);
  const M inter = at_least(iw, zero) * at_least(ih, zero);
  const M raw_union = area_p + area_t - inter;
  const M raw_hull = at_least(hw, zero) * at_least(hh, zero);
  const M uni = at_least(raw_union, eps);
  const M hull = at_least(raw_hull, eps);

  // d GIoU = by_inter d inter + by_area d area_p + by_hull d hull. Two divisions instead of a square keep large areas finite.
  const M by_area = passes(raw_union, eps) * (M(1) / hull - inter / uni / uni);
  const M by_inter = M(1) / uni - by_area;
  const M by_hull = -passes(raw_hull, eps) * (uni / hull / hull);

  // By the six sides ...
  const M by_w = by_area * at_least(h, zero) * passes(w, zero);
  const M by_h = by_area * at_least(w, zero) * passes(h, zero);
  const M by_iw = by_inter * at_least(ih, zero) * passes(iw, zero);
  const M by_ih = by_inter * at_least(iw, zero) * passes(ih, zero);
  const M by_hw = by_hull * at_least(hh, zero) * passes(hw, zero);
  const M by_hh = by_hull * at_least(hw, zero) * passes(hh, zero);

  // ... and by the corners that each side hangs on.
  Box<M> g;
  g.x1 = -by_w - by_iw * picks_larger(p.x1, t.x1) - by_hw * picks_larger(t.x1, p.x1);
  g.y1 = -by_h - by_ih * picks_larger(p.y1, t.y1) - by_hh * picks_larger(t.y1, p.y1);
  g.x2 = by_w + by_iw * picks_larger(t.x2, p.x2) + by_hw * picks_larger(p.x2, t.x2);
  g.y2 = by_h + by_ih * picks_larger(t.y2, p.y2) + by_hh * picks_larger(p.y2, t.y2);
  return g;
}

}  // namespace giou
