// Random words for the elements of rows. Include it only in files compiled once for each
// instruction set.
#ifndef BRIDGE_TILES_DRAWS_H_
#define BRIDGE_TILES_DRAWS_H_

#include "cpu/random_words.h"
#include "tiles/position.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

// The integers that determine the random words of each row. `start` is the index of the batch's
// first element; null means 0.
struct DrawIntegers {
  const int64_t *seed, *offset, *start;

  // Returns the index of an element in the `row`-th of the rows.
  uint64_t index(const Position& here, int64_t row, int64_t col) const {
    const auto first = start == nullptr ? uint64_t{0} : static_cast<uint64_t>(start[row]);
    const auto rows = static_cast<uint64_t>(here.first + row);
    return first + rows * static_cast<uint64_t>(here.call.index_cols) + static_cast<uint64_t>(col);
  }
};

// Returns the random words of columns [col, col + width) of a row, without a copy. `width` is at
// most RandomWords::kMost.
inline const uint32_t* drawn(RandomWords& random, const DrawIntegers& of, const Position& here,
                             int64_t row, int64_t col, int64_t width) {
  random.begin(static_cast<uint64_t>(of.seed[row]), static_cast<uint64_t>(of.offset[row]));
  return random.at(of.index(here, row, col), width, width);
}

// Calls use(words, at, count) with the random words of columns [col, col + width) of `rows` rows
// from `row` on: `count` words, the first of which belongs to the at-th of all these elements. Rows
// with the same seed and offset share words drawn ahead.
template <class Use>
void draw(RandomWords& random, const DrawIntegers& of, const Position& here, int64_t row,
          int64_t rows, int64_t col, int64_t width, const Use& use) {
  constexpr int64_t kAtATime = RandomWords::kMost / 2;
  uint64_t seed = 0, offset = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const auto own = [=](const int64_t* each) { return static_cast<uint64_t>(each[row + i]); };
    if (i == 0 || own(of.seed) != seed || own(of.offset) != offset) {
      seed = own(of.seed), offset = own(of.offset);
      random.begin(seed, offset);
    }
    const uint64_t index = of.index(here, row + i, col);
    for (int64_t at = 0; at < width; at += kAtATime) {
      const int64_t count = smaller(kAtATime, width - at);
      use(random.at(index + static_cast<uint64_t>(at), count, width - at), i * width + at, count);
    }
  }
}

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_TILES_DRAWS_H_
