// The choice of columns, compiled once for each instruction set.
#include "cpu/random_words.h"
#include "cpu/tile.h"
#include "selection/limits.h"
#include "selection/order.h"
#include "selection/selection.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

using namespace selection;  // NOLINT: the order of a row's numbers

void put(const bridge_selection& call, int64_t row, int64_t place, int64_t column) {
  const int64_t at = row * call.count + place;
  if (call.index_dtype == BRIDGE_INT32)
    static_cast<int32_t*>(call.result)[at] = static_cast<int32_t>(column);
  else
    static_cast<int64_t*>(call.result)[at] = column;
}

// Writes the columns of the largest numbers of a row, the largest first. A run of columns is looked
// at one by one only if its largest key would change the list.
template <class T>
void choose(const bridge_selection& call, int64_t row) {
  using Key = KeyOf<T>;
  constexpr int64_t kRun = 64;
  const T* const x = static_cast<const T*>(call.x) + row * call.cols;
  Key keys[kMostChosen], run[kRun];
  int64_t columns[kMostChosen], held = 0;
  for (int64_t first = 0; first < call.cols; first += kRun) {
    const int64_t width = smaller(kRun, call.cols - first);
    for (int64_t i = 0; i < width; ++i) run[i] = key_of(x[first + i]);
    if (held == call.count) {
      Key top = 0;
      for (int64_t i = 0; i < width; ++i) top = run[i] > top ? run[i] : top;
      if (top <= keys[held - 1]) continue;
    }
    for (int64_t i = 0; i < width; ++i) {
      if (held == call.count && run[i] <= keys[held - 1]) continue;  // a tie is a later column
      int64_t place = held < call.count ? held++ : held - 1;
      for (; place > 0 && keys[place - 1] < run[i]; --place) {
        keys[place] = keys[place - 1];
        columns[place] = columns[place - 1];
      }
      keys[place] = run[i];
      columns[place] = first + i;
    }
  }
  for (int64_t i = 0; i < held; ++i) put(call, row, i, columns[i]);
}

// A row from which a column is drawn.
template <class T>
struct Row {
  using Key = KeyOf<T>;
  const bridge_selection& call;
  const T* x;
  Scale scale;

  template <class Value>
  uint64_t sum(const Value& value) const {
    uint64_t total = 0;
    for (int64_t col = 0; col < call.cols; ++col) total += value(col);
    return total;
  }
  int64_t count(Key least) const {
    return static_cast<int64_t>(
        sum([&](int64_t col) { return uint64_t{key_of(x[col]) >= least ? 1u : 0u}; }));
  }
  Kept<Key> kept(uint64_t* weights) const {
    Kept<Key> found{0, call.cols};
    if (call.top_k > 0) found = largest<Key>(call.top_k, [&](Key least) { return count(least); });
    if (call.top_p >= 1) return found;
    for (int64_t col = 0; col < call.cols; ++col)
      weights[col] = scale.weight(math::to_double(x[col]));
    return most_probable<T>(call.top_p, scale, found, [&](Key least) {
      return sum([&](int64_t col) { return key_of(x[col]) >= least ? weights[col] : uint64_t{0}; });
    });
  }
  int64_t draw(const uint32_t* word, uint64_t* weights) const {
    const auto wide = [](const uint32_t* from) { return from[0] | uint64_t{from[1]} << 32; };
    constexpr int64_t kRun = 256;
    const Kept<Key> set = kept(weights);
    RandomWords random;
    random.begin(wide(word), wide(word + 2));
    double scores[kRun], best = -math::detail::infinity<double>();
    int64_t chosen = -1, ties = set.ties;
    for (int64_t first = 0; first < call.cols; first += kRun) {
      const int64_t width = smaller(kRun, call.cols - first);
      const uint32_t* const words =
          random.at(static_cast<uint64_t>(first), width, call.cols - first);
      for (int64_t i = 0; i < width; ++i)
        scores[i] = noisy(scale.below(math::to_double(x[first + i])), words[i]);
      for (int64_t i = 0; i < width; ++i) {
        const Key key = key_of(x[first + i]);
        if (key < set.least || (key == set.least && ties-- <= 0)) continue;
        if (call.min_p > 0 && math::exp(scale.below(math::to_double(x[first + i]))) < call.min_p)
          continue;
        if (scores[i] > best) {
          best = scores[i];
          chosen = first + i;
        }
      }
    }
    return chosen;
  }
};

template <class T>
void draw(const bridge_selection& call, int64_t row, uint64_t* scratch) {
  const T* const x = static_cast<const T*>(call.x) + row * call.cols;
  KeyOf<T> top = 0;
  for (int64_t col = 0; col < call.cols; ++col) {
    const KeyOf<T> key = key_of(x[col]);
    top = key > top ? key : top;
  }
  int64_t chosen = -1;
  if (top != kNan<KeyOf<T>> && top != kLowest<T>) {
    if (call.temperature == 0) {
      for (chosen = 0; key_of(x[chosen]) != top; ++chosen) {
      }
    } else {
      const Scale scale{number_of<T>(top), call.temperature};
      const uint32_t* const words = static_cast<const uint32_t*>(call.words) + 4 * row;
      chosen = Row<T>{call, x, scale}.draw(words, scratch);
    }
  }
  put(call, row, 0, chosen);
}

template <class T>
void run(const bridge_selection& call, int64_t first, int64_t end, uint64_t* scratch) {
  for (int64_t row = first; row < end; ++row) {
    if (call.words == nullptr)
      choose<T>(call, row);
    else
      draw<T>(call, row, scratch);
  }
}

}  // namespace

constexpr selection::Table selection_table = {
    {run<math::float16>, run<math::bfloat16>, run<float>, run<double>}};

}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge
