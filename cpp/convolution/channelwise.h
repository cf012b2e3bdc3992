// Depthwise convolutions of which the channels are adjacent: vectors go along channels. Include
// this only in files that are compiled once for each instruction set.
//
// A term of a sum is an element of a view, read as it lies, times one of a panel. The views and the
// order of the sums are those of products, with one problem for all channels: in a call for values
// the lanes are places and the terms positions, in one for weights it is the other way round.
#ifndef BRIDGE_CONVOLUTION_CHANNELWISE_H_
#define BRIDGE_CONVOLUTION_CHANNELWISE_H_

#include "convolution/kernels.h"
#include "convolution/patches.h"
#include "convolution/store.h"
#include "products/tile_sum.h"
#include "tiles/memory_parts.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

using convolution::Depthwise;
using convolution::Part;
using convolution::Problem;

constexpr int64_t kLanesAtOnce = 64;  // their sums wait for later leaves

template <class Real>
class Channelwise {
 public:
  static constexpr int kTile = 4, kVectors = 2, kBlock = kVectors * kLanes<Real>;

  struct Memory {
    Real *panel, *sums, *waiting;
    const void** pointers;  // [kTile, kProductLeaf]
    int64_t *offsets, *coordinates[kSpace];

    Memory(MemoryParts& parts, const Depthwise& call, int64_t channels) {
      const int64_t width = (channels + kBlock - 1) / kBlock * kBlock;
      const int64_t lanes = smaller(call.problem.row_count, kLanesAtOnce);
      const int64_t tiles = (lanes + kTile - 1) / kTile;
      panel = parts.take<Real>(kProductLeaf * width);
      sums = parts.take<Real>(kTile * kBlock);
      waiting = parts.take<Real>(levels_of(call) * tiles * kTile * width);
      pointers = parts.take<const void*>(kProductLeaf * kTile);
      offsets = parts.take<int64_t>(kProductLeaf);
      for (int64_t*& each : coordinates) each = parts.take<int64_t>(kProductLeaf);
    }
  };

  static int64_t levels_of(const Depthwise& call) {
    return log2_of(leaves_of(call.problem.term_count));
  }
  static size_t scratch_bytes(const Depthwise& call, int64_t channels) {
    MemoryParts parts(nullptr);
    const Memory memory(parts, call, channels);
    return parts.bytes_from_null();
  }

  // Rows of the part are lanes, columns channels: at most kMostPanelTerms.
  static void run(const Depthwise& call, const Part& part, void* scratch) {
    MemoryParts parts(scratch);
    const Memory memory(parts, call, part.cols);
    const Channelwise task(call, part, memory);
    switch (call.problem.a.dtype) {
      case BRIDGE_FLOAT16:
        return task.template run_as<math::float16>();
      case BRIDGE_BFLOAT16:
        return task.template run_as<math::bfloat16>();
      case BRIDGE_FLOAT32:
        return task.template run_as<float>();
      default:
        if constexpr (sizeof(Real) == sizeof(double)) task.template run_as<double>();
    }
  }

 private:
  Channelwise(const Depthwise& call, const Part& part, const Memory& memory)
      : call_(call),
        problem_(call.problem),
        part_(part),
        memory_(memory),
        width_((part.cols + kBlock - 1) / kBlock * kBlock) {}

  template <class T>
  void run_as() const {
    const int64_t all = problem_.term_count;
    for (int64_t lane = 0; lane < part_.rows; lane += kLanesAtOnce) {
      const int64_t lanes = smaller(part_.rows - lane, kLanesAtOnce);
      for (int64_t first = 0; first < all; first += kProductLeaf) {
        const int64_t terms = smaller(all - first, kProductLeaf);
        if (all > kProductLeaf || lane == 0) pack_panel(first, terms), find_terms(first, terms);
        for (int64_t i = 0; i < lanes; i += kTile)
          add_leaf<T>(part_.row + lane, i, smaller(lanes - i, kTile), first, terms);
      }
    }
  }

  // The right operand has one lane for each channel.
  void pack_panel(int64_t first, int64_t terms) const {
    View view = problem_.b;
    view.lanes = convolution::axis_of(call_.channels, call_.b_stride);
    for (int64_t j = 0; j < width_; j += kBlock) {
      const int64_t channels = smaller(part_.cols - j, kBlock);
      pack_view<kBlock>(view, part_.col + j, channels, first, terms, kBlock,
                        memory_.panel + j * kProductLeaf);
    }
  }

  // The coordinates that terms add to those of a lane, and their distances in memory.
  void find_terms(int64_t first, int64_t terms) const {
    const View& view = problem_.a;
    Cursor term(view.terms, first);
    for (int64_t p = 0; p < terms; ++p, term.advance(1)) {
      memory_.offsets[p] = term.offset;
      if (view.places == Places::none) continue;
      for (int d = 0; d < kSpace; ++d)
        memory_.coordinates[d][p] = part_of(view, term, view.places == Places::terms, d);
    }
  }

  // The part of a coordinate that a place or a position of the kernel adds.
  static int64_t part_of(const View& view, const Cursor& at, bool is_place, int d) {
    return is_place ? at.at[d + 1] * view.place_step[d] : at.at[d] * view.window_step[d];
  }

  template <class T>
  void find_pointers(int64_t lane, int64_t lanes, int64_t terms) const {
    const View& view = problem_.a;
    const T* const from = reinterpret_cast<const T*>(view.data) + view.offset + part_.col;
    Cursor at(view.lanes, lane);
    for (int64_t i = 0; i < kTile; ++i) {
      const void** const to = memory_.pointers + i * kProductLeaf;
      if (i >= lanes) {
        for (int64_t p = 0; p < terms; ++p) to[p] = kZeros;
        continue;
      }
      point<T>(from + at.offset, view, at, terms, to);
      at.advance(1);
    }
  }

  template <class T>
  void point(const T* from, const View& view, const Cursor& at, int64_t terms,
             const void** to) const {
    const int64_t* const offsets = memory_.offsets;
    const auto address = reinterpret_cast<uintptr_t>(from);
    constexpr auto kBytes = static_cast<int64_t>(sizeof(T));
    const auto at_offset = [&](int64_t p) {
      return address + static_cast<uintptr_t>(offsets[p] * kBytes);
    };
    auto* const pointers = reinterpret_cast<uintptr_t*>(to);
    if (view.places == Places::none) {
      for (int64_t p = 0; p < terms; ++p) pointers[p] = at_offset(p);
      return;
    }
    uint64_t own[kSpace], size[kSpace];
    for (int d = 0; d < kSpace; ++d) {
      own[d] =
          static_cast<uint64_t>(view.start[d] + part_of(view, at, view.places == Places::lanes, d));
      size[d] = static_cast<uint64_t>(view.size[d]);
    }
    const auto zeros = reinterpret_cast<uintptr_t>(kZeros);
    const int64_t *const z = memory_.coordinates[0], *const y = memory_.coordinates[1],
                         *const x = memory_.coordinates[2];
    BRIDGE_INDEPENDENT
    for (int64_t p = 0; p < terms; ++p) {
      // A negative coordinate is a large number without a sign.
      const bool is_inside = (own[0] + static_cast<uint64_t>(z[p]) < size[0]) &
                             (own[1] + static_cast<uint64_t>(y[p]) < size[1]) &
                             (own[2] + static_cast<uint64_t>(x[p]) < size[2]);
      pointers[p] = is_inside ? at_offset(p) : zeros;
    }
  }

  template <class T>
  void add_leaf(int64_t start, int64_t i, int64_t lanes, int64_t first, int64_t terms) const {
    find_pointers<T>(start + i, lanes, terms);
    const bool is_last = first + terms == problem_.term_count;
    for (int64_t j = 0; j < part_.cols; j += kBlock) {
      const int64_t channels = smaller(part_.cols - j, kBlock);
      if (channels == kBlock)
        sum_block<T, true>(j, channels, terms);
      else
        sum_block<T, false>(j, channels, terms);
      add_to_tree(i, j, first / kProductLeaf, is_last);
      if (is_last) write(start + i, lanes, j, channels);
    }
  }

  template <class T, bool kIsWhole>
  BRIDGE_INLINE void sum_block(int64_t j, int64_t channels, int64_t terms) const {
    Vector<Real> sums[kTile][kVectors];
    BRIDGE_UNROLL
    for (int i = 0; i < kTile; ++i) {
      BRIDGE_UNROLL
      for (int v = 0; v < kVectors; ++v) sums[i][v] = all_of(Real(-0.0));
    }
    const Real* panel = memory_.panel + j * kProductLeaf;
    const void* const* pointers = memory_.pointers;
    for (int64_t p = 0; p < terms; ++p, panel += kBlock) {
      BRIDGE_UNROLL
      for (int i = 0; i < kTile; ++i) {
        const T* from = static_cast<const T*>(pointers[i * kProductLeaf + p]) + j;
        T part[kBlock] = {};
        if constexpr (!kIsWhole) {
          for (int64_t c = 0; c < channels; ++c) part[c] = from[c];
          from = part;
        }
        BRIDGE_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          Real wide[kLanes<Real>];
          for (int c = 0; c < kLanes<Real>; ++c)
            wide[c] = to_real<Real>(from[v * kLanes<Real> + c]);
          sums[i][v] = fma(load(wide), load(panel + v * kLanes<Real>), sums[i][v]);
        }
      }
    }
    BRIDGE_UNROLL
    for (int i = 0; i < kTile; ++i) {
      BRIDGE_UNROLL
      for (int v = 0; v < kVectors; ++v)
        store(memory_.sums + i * kBlock + v * kLanes<Real>, sums[i][v]);
    }
  }

  // Adds the sums of a leaf to the tree, as Tile::sum does.
  void add_to_tree(int64_t i, int64_t j, int64_t leaf, bool is_last) const {
    constexpr int64_t kSums = kTile * kBlock;
    const int64_t levels = levels_of(call_);
    Real* const waiting =
        memory_.waiting + (i / kTile * (width_ / kBlock) + j / kBlock) * levels * kSums;
    int64_t level = 0;
    for (; ((leaf >> level) & 1) != 0; ++level)
      add_to(memory_.sums, waiting + level * kSums, kSums);
    if (!is_last) return copy(waiting + level * kSums, memory_.sums, kSums);
    for (++level; (leaf + 1) >> level != 0; ++level)
      if ((((leaf + 1) >> level) & 1) != 0) add_to(memory_.sums, waiting + level * kSums, kSums);
  }

  void write(int64_t lane, int64_t lanes, int64_t j, int64_t channels) const {
    const int64_t bytes = element_bytes(problem_.c_dtype), channel = part_.col + j;
    Real bias[kBlock];
    if (problem_.bias != nullptr) load_bias(problem_, channel, channels, bias);
    Cursor at(problem_.rows, lane);
    for (int64_t i = 0; i < lanes; ++i, at.advance(1)) {
      Real* const sums = memory_.sums + i * kBlock;
      if (problem_.bias != nullptr) add_to(sums, bias, channels);
      store_line(problem_.c_dtype, problem_.c + (at.offset + channel * call_.c_stride) * bytes,
                 call_.c_stride, sums, channels);
    }
  }

  const Depthwise& call_;
  const Problem& problem_;
  const Part& part_;
  const Memory& memory_;
  int64_t width_;
};

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_CONVOLUTION_CHANNELWISE_H_
