// Memory for the arrays of a call, to compare all of it with what it should hold.
#ifndef BRIDGE_TESTS_ARENA_H_
#define BRIDGE_TESTS_ARENA_H_

#include <stdint.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace bridge::random {

// Allocates exactly `bytes` bytes on the heap, so that a sanitizer detects an access beside them.
class Arena {
 public:
  char* allocate(int64_t bytes) {
    const auto count = static_cast<size_t>(bytes);
    pieces_.push_back({std::unique_ptr<char[]>(new char[count > 0 ? count : 1]()), count});
    return pieces_.back().data.get();
  }
  std::vector<std::vector<char>> contents() const {
    std::vector<std::vector<char>> all;
    for (const Piece& piece : pieces_)
      all.emplace_back(piece.data.get(), piece.data.get() + piece.bytes);
    return all;
  }
  void restore(const std::vector<std::vector<char>>& contents) {
    for (size_t i = 0; i < pieces_.size(); ++i) {
      std::copy(contents[i].begin(), contents[i].end(), pieces_[i].data.get());
    }
  }

 private:
  struct Piece {
    std::unique_ptr<char[]> data;
    size_t bytes;
  };
  std::vector<Piece> pieces_;
};

}  // namespace bridge::random

#endif  // BRIDGE_TESTS_ARENA_H_
