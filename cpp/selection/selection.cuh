// The choice of columns on CUDA. A block has a row at a time: one warp for a short row, several for
// a long one. All sums are of integers, so that their order does not matter.
#ifndef BRIDGE_SELECTION_SELECTION_CUH_
#define BRIDGE_SELECTION_SELECTION_CUH_

#include <bridge/selection.h>

#include "cuda/simt.h"
#include "selection/limits.h"
#include "selection/order.h"

namespace bridge::selection {

// A column and its score; the better one has the larger score or, with equal scores, comes first.
struct Best {
  double score;
  int64_t column;

  BRIDGE_ORDER void meet(double other, int64_t column_of_other) {
    const bool is_better = other > score || (other == score && column_of_other < column);
    score = is_better ? other : score;
    column = is_better ? column_of_other : column;
  }
};

// Reductions over all threads of a block; every thread gets the result.
template <int kWarps>
struct Team {
  static constexpr int kThreads = kWarps * simt::kWarpThreads;

  // Each use of shared memory begins behind a barrier, so that the one before it has ended.
  template <class Value>
  static BRIDGE_ORDER Value* shared(Value own) {
    Value* const all = simt::shared_array<Value, kWarps>();
    simt::sync();
    if (simt::thread_index() % simt::kWarpThreads == 0)
      all[simt::thread_index() / simt::kWarpThreads] = own;
    simt::sync();
    return all;
  }

  static BRIDGE_ORDER uint64_t sum(uint64_t own) {
    for (int mask = simt::kWarpThreads / 2; mask > 0; mask /= 2)
      own += simt::shuffle_xor(own, mask);
    if (kWarps == 1) return own;
    const uint64_t* const all = shared(own);
    own = 0;
    for (int warp = 0; warp < kWarps; ++warp) own += all[warp];
    return own;
  }

  static BRIDGE_ORDER uint64_t largest(uint64_t own) {
    const auto larger = [](uint64_t a, uint64_t b) { return a > b ? a : b; };
    for (int mask = simt::kWarpThreads / 2; mask > 0; mask /= 2)
      own = larger(own, simt::shuffle_xor(own, mask));
    if (kWarps == 1) return own;
    const uint64_t* const all = shared(own);
    for (int warp = 0; warp < kWarps; ++warp) own = larger(own, all[warp]);
    return own;
  }

  static BRIDGE_ORDER Best best(Best own) {
    for (int mask = simt::kWarpThreads / 2; mask > 0; mask /= 2) {
      const double score = simt::shuffle_xor(own.score, mask);
      own.meet(score, simt::shuffle_xor(own.column, mask));
    }
    if (kWarps == 1) return own;
    const Best* const all = shared(own);
    for (int warp = 0; warp < kWarps; ++warp) own.meet(all[warp].score, all[warp].column);
    return own;
  }
};

template <class T, int kWarps>
struct RowOfBlock {
  using Key = KeyOf<T>;
  using Threads = Team<kWarps>;
  const bridge_selection& call;
  const T* x;
  int64_t row;

  // Returns the sum of value(column) over the columns.
  template <class Value>
  BRIDGE_ORDER uint64_t sum(const Value& value) const {
    uint64_t own = 0;
    for (int64_t col = simt::thread_index(); col < call.cols; col += Threads::kThreads)
      own += value(col);
    return Threads::sum(own);
  }
  BRIDGE_ORDER Kept<Key> largest_of(int64_t wanted) const {
    return largest<Key>(wanted, [&](Key least) {
      return static_cast<int64_t>(
          sum([&](int64_t col) { return uint64_t{key_of(x[col]) >= least ? 1u : 0u}; }));
    });
  }
  // Returns the end of the columns in which an element with the least key is in the set.
  BRIDGE_ORDER int64_t end_of_ties(const Kept<Key>& set) const {
    const auto before = [&](int64_t end) {
      return static_cast<int64_t>(sum([&](int64_t col) {
        return uint64_t{col < end && key_of(x[col]) == set.least ? 1u : 0u};
      }));
    };
    int64_t begin = 0, end = call.cols;
    if (before(end) <= set.ties) return end;
    while (begin < end) {
      const int64_t middle = begin + (end - begin) / 2;
      if (before(middle) < set.ties)
        begin = middle + 1;
      else
        end = middle;
    }
    return begin;
  }
  BRIDGE_ORDER void put(int64_t place, int64_t column) const {
    const int64_t at = row * call.count + place;
    if (call.index_dtype == BRIDGE_INT32)
      static_cast<int32_t*>(call.result)[at] = static_cast<int32_t>(column);
    else
      static_cast<int64_t*>(call.result)[at] = column;
  }

  // Each thread lists its own members of the set behind those of the threads before it; then each
  // member counts the members in front of it, which is its place.
  BRIDGE_ORDER void choose() const {
    const Kept<Key> set = largest_of(call.count);
    const int64_t end = end_of_ties(set);
    const auto is_in = [&](int64_t col) {
      const Key key = key_of(x[col]);
      return key > set.least || (key == set.least && col < end);
    };
    const int thread = simt::thread_index();
    int own = 0;
    for (int64_t col = thread; col < call.cols; col += Threads::kThreads) own += is_in(col) ? 1 : 0;
    int* const counts = simt::shared_array<int, Threads::kThreads>();
    Key* const keys = simt::shared_array<Key, kMostChosen>();
    int64_t* const columns = simt::shared_array<int64_t, kMostChosen, 1>();
    simt::sync();
    counts[thread] = own;
    simt::sync();
    int place = 0;
    for (int other = 0; other < thread; ++other) place += counts[other];
    for (int64_t col = thread; col < call.cols; col += Threads::kThreads) {
      if (!is_in(col)) continue;
      keys[place] = key_of(x[col]);
      columns[place++] = col;
    }
    simt::sync();
    const int members = static_cast<int>(call.count);
    for (int member = thread; member < members; member += Threads::kThreads) {
      int64_t before = 0;
      for (int other = 0; other < members; ++other)
        before += keys[other] > keys[member] ||
                          (keys[other] == keys[member] && columns[other] < columns[member])
                      ? 1
                      : 0;
      put(before, columns[member]);
    }
  }

  BRIDGE_ORDER void draw() const {
    uint64_t own = 0;
    for (int64_t col = simt::thread_index(); col < call.cols; col += Threads::kThreads) {
      const uint64_t key = key_of(x[col]);
      own = key > own ? key : own;
    }
    const auto top = static_cast<Key>(Threads::largest(own));
    int64_t chosen = -1;
    if (top != kNan<Key> && top != kLowest<T>)
      chosen =
          call.temperature == 0 ? first_with(top) : drawn({number_of<T>(top), call.temperature});
    if (simt::thread_index() == 0) put(0, chosen);
  }

  BRIDGE_ORDER int64_t first_with(Key top) const {
    Best own{-1.0, INT64_MAX};
    for (int64_t col = simt::thread_index(); col < call.cols; col += Threads::kThreads)
      if (key_of(x[col]) == top) own.meet(0.0, col);
    return Threads::best(own).column;
  }

  BRIDGE_ORDER Kept<Key> kept(const Scale& scale) const {
    Kept<Key> found{0, call.cols};
    if (call.top_k > 0) found = largest_of(call.top_k);
    if (call.top_p >= 1) return found;
    return most_probable<T>(call.top_p, scale, found, [&](Key least) {
      return sum([&](int64_t col) {
        return key_of(x[col]) >= least ? scale.weight(math::to_double(x[col])) : uint64_t{0};
      });
    });
  }

  BRIDGE_ORDER int64_t drawn(const Scale& scale) const {
    const Kept<Key> set = kept(scale);
    const int64_t end = end_of_ties(set);
    const uint32_t* const word = static_cast<const uint32_t*>(call.words) + 4 * row;
    const auto wide = [](const uint32_t* from) { return from[0] | uint64_t{from[1]} << 32; };
    const uint64_t seed = wide(word), offset = wide(word + 2);
    Best own{-math::detail::infinity<double>(), INT64_MAX};
    for (int64_t group = simt::thread_index(); group * 4 < call.cols; group += Threads::kThreads) {
      const math::Philox words = math::philox(seed, offset, static_cast<uint64_t>(group));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t col = group * 4 + i;
        if (col >= call.cols) continue;
        const Key key = key_of(x[col]);
        const double below = scale.below(math::to_double(x[col]));
        if (key < set.least || (key == set.least && col >= end)) continue;
        if (call.min_p > 0 && math::exp(below) < call.min_p) continue;
        const double score = noisy(below, words.words[i]);
        if (score > own.score) own = {score, col};
      }
    }
    return Threads::best(own).column;
  }
};

template <class T, int kWarps>
struct SelectionKernel {
  using Params = bridge_selection;
  static constexpr int kThreads = Team<kWarps>::kThreads;
  static constexpr int kMinBlocks = kWarps == 1 ? 16 : 3;

  static BRIDGE_DEVICE void run(const bridge_selection& call) {
    for (int64_t row = simt::block_index().x; row < call.rows; row += simt::block_count().x) {
      const RowOfBlock<T, kWarps> own{call, static_cast<const T*>(call.x) + row * call.cols, row};
      if (call.words == nullptr)
        own.choose();
      else
        own.draw();
    }
  }
};

}  // namespace bridge::selection

#endif  // BRIDGE_SELECTION_SELECTION_CUH_
