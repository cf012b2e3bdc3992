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
    const void** pointers;

    Memory(MemoryParts& parts, const Depthwise& call, int64_t channels) {
      const int64_t width = (channels + kBlock - 1) / kBlock * kBlock;
      const int64_t lanes = smaller(call.problem.row_count, kLanesAtOnce);
      const int64_t tiles = (lanes + kTile - 1) / kTile;
      panel = parts.take<Real>(kProductLeaf * width);
      sums = parts.take<Real>(kTile * kBlock);
      waiting = parts.take<Real>(levels_of(call) * tiles * kTile * width);
      pointers = parts.take<const void*>(kProductLeaf * kTile);
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
        if (all > kProductLeaf || lane == 0) pack_panel(first, terms);
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

  template <class T>
  void find_pointers(int64_t lane, int64_t lanes, int64_t first, int64_t terms) const {
    const View& view = problem_.a;
    const T* const from = reinterpret_cast<const T*>(view.data) + view.offset + part_.col;
    Cursor term(view.terms, first);
    const void** to = memory_.pointers;
    for (int64_t p = 0; p < terms; ++p, term.advance(1), to += kTile) {
      Cursor at(view.lanes, lane);
      for (int64_t i = 0; i < kTile; ++i) {
        bool has_element = i < lanes;
        if (has_element && view.places != Places::none) {
          const Inside inside = inside_of(view, at, term, 1);
          has_element = inside.first < inside.end;
        }
        to[i] = has_element ? static_cast<const void*>(from + at.offset + term.offset) : kZeros;
        if (i < lanes) at.advance(1);
      }
    }
  }

  template <class T>
  void add_leaf(int64_t start, int64_t i, int64_t lanes, int64_t first, int64_t terms) const {
    find_pointers<T>(start + i, lanes, first, terms);
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
    for (int64_t p = 0; p < terms; ++p, panel += kBlock, pointers += kTile) {
      BRIDGE_UNROLL
      for (int i = 0; i < kTile; ++i) {
        const T* from = static_cast<const T*>(pointers[i]) + j;
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
