// Sums and maxima over a row that several threads share, in the tree of docs/numerics.md. The
// layout lets a warp load and add a chunk of 1024 columns without moving a value twice.
//
// A group of G threads holds a chunk, or the part of its first quarter that the row has. Vector q
// of thread t holds the columns q G V + t V + i for i < V, where V elements are 16 bytes. The tree
// folds a quarter of 256 columns in halves: over the bits of q, then of t, then of i, each from the
// highest down.
#ifndef BRIDGE_DRIVERS_ROWS_ROW_TREE_CUH_
#define BRIDGE_DRIVERS_ROWS_ROW_TREE_CUH_

#include "cuda/vector.h"
#include "drivers/rows/row_sum_tree.h"
#include "math/softmax.h"

namespace bridge::rows {

constexpr int kChunkCols = static_cast<int>(kSumChunk);
constexpr int kWarp = simt::kWarpThreads;

template <class Term>
BRIDGE_DEVICE Term exchange(Term value, int bit) {
  return simt::shuffle_xor(value, bit);
}

template <class Real>
BRIDGE_DEVICE math::SoftmaxParts<Real> exchange(const math::SoftmaxParts<Real>& value, int bit) {
  return {simt::shuffle_xor(value.coarse, bit), simt::shuffle_xor(value.fine, bit)};
}

// Returns a if the mask is all ones, b if it is 0, in one instruction; a choice between two
// registers takes two.
BRIDGE_DEVICE float chosen(uint32_t mask, float a, float b) {
  return math::bit_cast<float>((math::to_bits(a) & mask) | (math::to_bits(b) & ~mask));
}

BRIDGE_DEVICE double chosen(uint32_t mask, double a, double b) { return mask != 0 ? a : b; }

template <class Real>
BRIDGE_DEVICE math::SoftmaxParts<Real> chosen(uint32_t mask, const math::SoftmaxParts<Real>& a,
                                              const math::SoftmaxParts<Real>& b) {
  return {chosen(mask, a.coarse, b.coarse), chosen(mask, a.fine, b.fine)};
}

// The selection of values to exchange in a fold, by masks: the kernels of the softmaxes then have
// registers left.
struct ByMasks {
  template <class Real>
  static BRIDGE_DEVICE Real chosen(uint32_t bits, const Real& a, const Real& b) {
    return rows::chosen(bits != 0 ? ~0u : 0u, a, b);
  }
};

// The same selection by predicates, in fewer instructions.
struct ByPredicates {
  static BRIDGE_DEVICE float chosen(uint32_t bits, float a, float b) {
    return simt::chosen(bits, a, b);
  }
  static BRIDGE_DEVICE double chosen(uint32_t bits, double a, double b) {
    return bits != 0 ? a : b;
  }
};

// One step of the fold: a thread keeps half of its values and gives the other half to a neighbour,
// which halves the number of shuffles.
template <class By, int kCount, class Real>
BRIDGE_DEVICE void fold_half(Real (&value)[kCount], int kept, int thread, int bit) {
  const uint32_t upper = thread & bit;
#pragma unroll
  for (int i = 0; i < kept; ++i) {
    const Real given = By::chosen(upper, value[i], value[i + kept]);
    const Real own = By::chosen(upper, value[i + kept], value[i]);
    value[i] = own + exchange(given, bit);
  }
}

// Folds over the threads of a group (from the highest bit of their index down) and then over the
// elements of each thread; every thread gets the sum. While a thread has more than one value, it
// keeps half of them.
template <int kGroup, class By, int kCount, class Real>
BRIDGE_DEVICE Real fold_group(Real (&value)[kCount], int thread) {
  int kept = kCount;
#pragma unroll
  for (int bit = kGroup / 2; bit > 0; bit /= 2) {
    if (kept > 1) {
      kept /= 2;
      fold_half<By>(value, kept, thread, bit);
    } else {
      value[0] = value[0] + exchange(value[0], bit);
    }
  }
  // The highest bit of the element index was exchanged for the highest bit of the thread index, and
  // so on.
  int bit = kGroup / 2;
#pragma unroll
  for (int width = kCount / 2; width > 0; width /= 2, bit /= 2) {
    if (bit > 0) {
#pragma unroll
      for (int i = 0; i < kept; ++i) value[i] = value[i] + exchange(value[i], bit);
    } else {
#pragma unroll
      for (int i = 0; i < width; ++i) value[i] = value[i] + value[i + width];
    }
  }
  return value[0];
}

// The fold for several chunks of a warp, first part: as long as a thread has several values of a
// chunk.
template <class By, int kCount, class Real>
BRIDGE_DEVICE Real fold_elements(Real (&value)[kCount], int thread) {
  static_assert(kCount <= kWarp);
#pragma unroll
  for (int kept = kCount / 2, bit = kWarp / 2; kept > 0; kept /= 2, bit /= 2)
    fold_half<By>(value, kept, thread, bit);
  return value[0];
}

// The second part: over all chunks, of which a thread keeps half as well, to the sum of their
// nodes, neighbours first.
template <int kCount, class By, int kChunks, class Real>
BRIDGE_DEVICE Real fold_chunks(Real (&value)[kChunks], int thread) {
  static_assert(kCount * kChunks == kWarp);
#pragma unroll
  for (int kept = kChunks / 2; kept > 0; kept /= 2) fold_half<By>(value, kept, thread, kept);
  Real sum = value[0];
#pragma unroll
  for (int bit = kWarp / 2; bit >= kChunks; bit /= 2) sum = sum + exchange(sum, bit);
#pragma unroll
  for (int bit = 1; bit < kChunks; bit *= 2) sum = sum + exchange(sum, bit);
  return sum;
}

// The sum of a chunk that a group holds (or of its first vectors, if the rest are missing).
// terms(q, first, value) fills the array with elements of vector q, from `first` on; missing ones
// are -0.0, or +0.0 if no element is negative. One slice is computed after another, so that few
// terms are live at a time.
template <int kGroup, int kVectors, int kVector, class Real, class Terms>
BRIDGE_DEVICE Real chunk_sum(Terms&& terms) {
  constexpr int kParts = kChunkCols / 4 / (kGroup * kVector);  // vectors of a thread in a quarter
  constexpr int kUsed = kVectors < kParts ? kVectors : kParts;
  constexpr int kQuarters = (kVectors + kParts - 1) / kParts;
  static_assert(kQuarters == 1 || kQuarters == 2 || kQuarters == 4);
  constexpr int kSlice = kVector < 4 ? kVector : 4;
  Real part[kUsed][kVector];
#pragma unroll
  for (int s = 0; s < kUsed; ++s) {
#pragma unroll
    for (int first = 0; first < kVector; first += kSlice) {
      Real quarter[kSlice];
      Real half[kSlice];
#pragma unroll
      for (int k = 0; k < kQuarters; ++k) {
        terms(s + k * kParts, first, quarter);
#pragma unroll
        for (int i = 0; i < kSlice; ++i) {
          half[i] = k % 2 == 0 ? quarter[i] : half[i] + quarter[i];
          if (k == 0 || k == 1) part[s][first + i] = half[i];
          if (k == 3) part[s][first + i] = part[s][first + i] + half[i];
        }
      }
    }
  }
#pragma unroll
  for (int width = kUsed / 2; width > 0; width /= 2) {
#pragma unroll
    for (int s = 0; s < width; ++s) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) part[s][i] = part[s][i] + part[s + width][i];
    }
  }
  return fold_group<kGroup, ByMasks>(part[0], simt::thread_index());
}

struct Sum {
  template <class Real>
  static BRIDGE_DEVICE Real identity() {
    return Real(-0.0);
  }
  template <class Real>
  static BRIDGE_DEVICE Real of(Real a, Real b) {
    return a + b;
  }
};

// The larger value. For float, a NaN wins; for double, NaN is skipped.
struct Largest {
  template <class Real>
  static BRIDGE_DEVICE Real identity() {
    return Real(-__builtin_inf());
  }
  template <class Real>
  static BRIDGE_DEVICE Real of(Real a, Real b) {
    return math::softmax_larger(a, b);
  }
};

// The aligned binary tree over the lanes of a group, neighbours first.
template <class Op, int kGroup, class Real>
BRIDGE_DEVICE Real reduce_group(Real value) {
#pragma unroll
  for (int bit = 1; bit < kGroup; bit *= 2) value = Op::of(value, exchange(value, bit));
  return value;
}

// Reduces one value per warp, the same in all its lanes. The block may have fewer than kWarps
// warps: `warps`. kTag distinguishes exchanges between which the block does not synchronise.
template <class Op, int kWarps, int kTag, class Real>
BRIDGE_DEVICE Real reduce_block(Real value, int warps) {
  Real* shared = simt::shared_array<Real, kWarps, kTag>();
  const int lane = simt::thread_index() % kWarp;
  if (lane == 0) shared[simt::thread_index() / kWarp] = value;
  simt::sync();
  const int source = lane % kWarps;
  return reduce_group<Op, kWarps>(source < warps ? shared[source] : Op::template identity<Real>());
}

}  // namespace bridge::rows

#endif  // BRIDGE_DRIVERS_ROWS_ROW_TREE_CUH_
