// The elements of arrays that a loop reads and writes one after the other: where they lie side by
// side in memory, there; else in a tile that they are gathered into. For the files that are
// compiled once for each instruction set: include it there only.
#ifndef BRIDGE_INTERPRETER_STREAMS_H_
#define BRIDGE_INTERPRETER_STREAMS_H_

#include "interpreter/position.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

// A half of an operand or a result, in elements of so many bytes; converted ones are numbers of the
// arithmetic type, whatever the array has. A converted vector is one for all rows of a batch.
struct Stream {
  int32_t array;
  int32_t half;
  int32_t bytes;
  bool is_converted;
  bool is_vector;
};

// Columns of rows from the `row`-th of some on.
struct Piece {
  const Position& here;
  int64_t row, rows;
  int64_t col, width;

  char* first_of(const bridge_program_array& array, const Stream& stream) const {
    const int64_t bytes = interpreter::element_bytes(array.dtype);
    return here.data(array, interpreter::element_of(array, here.call.cols, stream.half, col)) +
           row * here.row_stride(array) * bytes;
  }
  // Whether its elements lie side by side in memory.
  bool is_run(const bridge_program_array& array) const {
    return array.col_stride == 1 && (rows == 1 || here.row_stride(array) == width);
  }
  bool is_adjacent(const bridge_program_array& array, const Stream& stream) const {
    return !stream.is_converted && is_run(array);
  }
};

// Where elements of some rows are that lie side by side in each of them; null where they do not.
struct Line {
  char* first;
  int64_t row_bytes;
  int64_t element_bytes;
  bool is_converted = false;  // already, to the arithmetic type

  static Line of(const Position& here, const bridge_program_array& array, const Stream& stream) {
    const Piece piece{here, 0, 1, 0, 0};
    const int64_t bytes = interpreter::element_bytes(array.dtype);
    if (!piece.is_run(array)) return {};
    return {piece.first_of(array, stream), here.row_stride(array) * bytes, bytes};
  }
  char* at(int64_t row, int64_t col) const { return first + row * row_bytes + col * element_bytes; }
};

// Where the elements of an operand are.
template <class Real>
const char* loads_of(const Stream& stream, const Piece& piece, char* tile) {
  const bridge_program_array& array = piece.here.call.operand[stream.array];
  const char* from = piece.first_of(array, stream);
  if (piece.is_adjacent(array, stream)) return from;
  const int64_t step = piece.here.row_stride(array) * interpreter::element_bytes(array.dtype);
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

// Where the elements of a result are to be written.
inline char* stores_of(const Stream& stream, const Piece& piece, char* tile) {
  const bridge_program_array& array = piece.here.call.result[stream.array];
  return piece.is_adjacent(array, stream) ? piece.first_of(array, stream) : tile;
}

// Brings what was written into the tile to the result.
template <class Real>
void write_stores(const Stream& stream, const Piece& piece, const char* tile) {
  const bridge_program_array& array = piece.here.call.result[stream.array];
  if (piece.is_adjacent(array, stream)) return;
  char* to = piece.first_of(array, stream);
  const int64_t bytes = interpreter::element_bytes(array.dtype);
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

// The same for both halves of a result, pairs that lie side by side; `stream` is the first.
template <class Real>
void write_pairs(const Stream& stream, const Piece& piece, const char* even, const char* odd) {
  const bridge_program_array& array = piece.here.call.result[stream.array];
  char* to = piece.first_of(array, stream);
  const int64_t bytes = interpreter::element_bytes(array.dtype);
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

#endif  // BRIDGE_INTERPRETER_STREAMS_H_
