// The elements of arrays as a loop reads and writes them in order: in place if they are adjacent in
// memory, otherwise gathered in a tile. Include it only in files compiled once for each instruction
// set.
#ifndef BRIDGE_TILES_STREAMS_H_
#define BRIDGE_TILES_STREAMS_H_

#include "tiles/position.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

// One half of an operand or a result, in elements of `bytes` bytes. A converted stream has numbers
// of the arithmetic type, whatever the dtype of the array. `is_vector`: a converted vector that all
// rows of a batch share.
struct Stream {
  int32_t array;
  int32_t half;
  int32_t bytes;
  bool is_converted;
  bool is_vector;
  int32_t block;  // the columns of a block, for an array with a number for each; else 0
};

// Columns [col, col + width) of `rows` rows of `here`, from its `row`-th on.
struct Piece {
  const Position& here;
  int64_t row, rows;
  int64_t col, width;

  char* first_of(const bridge_program_array& array, const Stream& stream) const {
    const int64_t bytes = bridge::element_bytes(array.dtype);
    return here.data(array, interpreter::element_of(array, here.call.cols, stream.half, col)) +
           row * here.row_stride(array) * bytes;
  }
  // Returns true if the elements of the piece are adjacent in memory.
  bool is_run(const bridge_program_array& array) const {
    return array.col_stride == 1 && (rows == 1 || here.row_stride(array) == width);
  }
  bool is_adjacent(const bridge_program_array& array, const Stream& stream) const {
    return !stream.is_converted && is_run(array);
  }
};

// The addresses of rows with adjacent elements; `first` is null if the elements are not adjacent.
struct Line {
  char* first;
  int64_t row_bytes;
  int64_t element_bytes;
  bool is_converted = false;  // already converted to the arithmetic type

  static Line of(const Position& here, const bridge_program_array& array, const Stream& stream) {
    const Piece piece{here, 0, 1, 0, 0};
    const int64_t bytes = bridge::element_bytes(array.dtype);
    if (stream.block > 0 || !piece.is_run(array)) return {};
    return {piece.first_of(array, stream), here.row_stride(array) * bytes, bytes};
  }
  char* at(int64_t row, int64_t col) const { return first + row * row_bytes + col * element_bytes; }
};

// Loads the numbers of blocks, each to all columns of its block.
template <class Real>
void load_blocks(const Stream& stream, const Piece& piece, Real* to) {
  const bridge_program_array& array = piece.here.call.operand[stream.array];
  const char* from = piece.first_of(array, stream);
  const int64_t step = piece.here.row_stride(array) * bridge::element_bytes(array.dtype);
  const int64_t some = piece.width / stream.block;
  alignas(64) Real numbers[kSumChunk / interpreter::kLeastBlock];
  for (int64_t r = 0; r < piece.rows; ++r, from += step, to += piece.width) {
    load_strided(array.dtype, from, array.col_stride, numbers, some);
    for (int64_t b = 0; b < some; ++b) fill(to + b * stream.block, stream.block, numbers[b]);
  }
}
template <class Real>
void store_blocks(const Stream& stream, const Piece& piece, const Real* from) {
  const bridge_program_array& array = piece.here.call.result[stream.array];
  char* to = piece.first_of(array, stream);
  const int64_t step = piece.here.row_stride(array) * bridge::element_bytes(array.dtype);
  const int64_t some = piece.width / stream.block;
  alignas(64) Real numbers[kSumChunk / interpreter::kLeastBlock];
  for (int64_t r = 0; r < piece.rows; ++r, to += step, from += piece.width) {
    for (int64_t b = 0; b < some; ++b) numbers[b] = from[b * stream.block];
    store_strided(array.dtype, to, array.col_stride, numbers, some);
  }
}

// Returns the address of an operand's elements: in the array, or in `tile` if they must be gathered
// or converted.
template <class Real>
const char* loads_of(const Stream& stream, const Piece& piece, char* tile) {
  const bridge_program_array& array = piece.here.call.operand[stream.array];
  if (stream.block > 0) {
    load_blocks(stream, piece, reinterpret_cast<Real*>(tile));
    return tile;
  }
  const char* from = piece.first_of(array, stream);
  if (piece.is_adjacent(array, stream)) return from;
  const int64_t step = piece.here.row_stride(array) * bridge::element_bytes(array.dtype);
  if (stream.is_converted && piece.is_run(array)) {
    load_run(array.dtype, from, reinterpret_cast<Real*>(tile), piece.rows * piece.width);
    return tile;
  }
  for (int64_t r = 0; r < piece.rows; ++r, from += step) {
    char* const own = tile + r * piece.width * stream.bytes;
    if (r > 0 && step == 0)
      copy(own, tile, piece.width * stream.bytes);
    else if (stream.is_converted)
      load_strided(array.dtype, from, array.col_stride, reinterpret_cast<Real*>(own), piece.width);
    else
      gather(stream.bytes, from, array.col_stride, own, piece.width);
  }
  return tile;
}

// Returns the address to write a result's elements to: in the array, or `tile`.
inline char* stores_of(const Stream& stream, const Piece& piece, char* tile) {
  const bridge_program_array& array = piece.here.call.result[stream.array];
  return piece.is_adjacent(array, stream) ? piece.first_of(array, stream) : tile;
}

// Copies a result from the tile to the array, if it was written into the tile.
template <class Real>
void write_stores(const Stream& stream, const Piece& piece, const char* tile) {
  if (stream.block > 0) return store_blocks(stream, piece, reinterpret_cast<const Real*>(tile));
  const bridge_program_array& array = piece.here.call.result[stream.array];
  if (piece.is_adjacent(array, stream)) return;
  char* to = piece.first_of(array, stream);
  const int64_t bytes = bridge::element_bytes(array.dtype);
  const int64_t step = piece.here.row_stride(array) * bytes;
  if (stream.is_converted && piece.is_run(array))
    return store_run(array.dtype, to, reinterpret_cast<const Real*>(tile),
                     piece.rows * piece.width);
  for (int64_t r = 0; r < piece.rows; ++r, to += step, tile += piece.width * stream.bytes) {
    if (stream.is_converted)
      store_strided(array.dtype, to, array.col_stride, reinterpret_cast<const Real*>(tile),
                    piece.width);
    else
      scatter(bytes, tile, to, array.col_stride, piece.width);
  }
}

// The same for both halves of a result of adjacent pairs; `stream` is the first half.
template <class Real>
void write_pairs(const Stream& stream, const Piece& piece, const char* even, const char* odd) {
  const bridge_program_array& array = piece.here.call.result[stream.array];
  char* to = piece.first_of(array, stream);
  const int64_t bytes = bridge::element_bytes(array.dtype);
  const int64_t step = piece.here.row_stride(array) * bytes, of_row = piece.width * stream.bytes;
  for (int64_t r = 0; r < piece.rows; ++r, to += step, even += of_row, odd += of_row) {
    if (stream.is_converted)
      store_pairs(array.dtype, to, reinterpret_cast<const Real*>(even),
                  reinterpret_cast<const Real*>(odd), piece.width);
    else
      interleave(bytes, even, odd, to, piece.width);
  }
}

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_TILES_STREAMS_H_
