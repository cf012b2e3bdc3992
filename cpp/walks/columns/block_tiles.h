// The tiles of a block: its operands loaded, its results stored, its column sums written. For the
// files that are compiled once for each instruction set: include it there only.
#ifndef BRIDGE_WALKS_COLUMNS_BLOCK_TILES_H_
#define BRIDGE_WALKS_COLUMNS_BLOCK_TILES_H_

#include "cpu/tile.h"
#include "walks/columns/block.h"
#include "walks/dtypes.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

// Bytes of one row of a tile. Fused, all columns of a usual layer fit into one tile, so that memory
// is walked in order (measured against 4 KiB: a tenth faster on large arrays, equal in cache).
constexpr int64_t kFusedBytes = 16384;
// The tiles of an unfused call must share the first-level cache.
constexpr int64_t kTiledBytes = 2048;

template <class Real>
void write_sums(const Block& block, int64_t col, int64_t cols, const Real* sums) {
  if (block.sums != nullptr)
    copy(static_cast<Real*>(block.sums) + col, sums, cols);
  else
    store_run(block.output_row.dtype,
              block.output_row.data + col * dtype_bytes(block.output_row.dtype), sums, cols);
}

// A tile of a row operand: columns [col, col + cols), the same for each of `rows` rows that stand
// side by side in the tile; -0.0 where it is absent, which is exact to add.
template <class Real>
void fill_row(const Block& block, const BlockArray& row, int64_t col, int64_t cols, int64_t rows,
              Real* tile) {
  const int64_t count = rows * cols, padded = round_up(count);
  if (row.data == nullptr) return fill(tile, padded, Real(-0.0));
  const int64_t first = col < block.row_period ? col : col % block.row_period,
                bytes = dtype_bytes(row.dtype);
  const int64_t to_end = smaller(block.row_period - first, cols);
  load_run(row.dtype, row.data + first * bytes, tile, to_end);
  load_run(row.dtype, row.data, tile + to_end, smaller(first, cols - to_end));
  for (int64_t i = block.row_period; i < cols; ++i) tile[i] = tile[i - block.row_period];
  for (int64_t i = cols; i < count; ++i) tile[i] = tile[i - cols];
  fill(tile + count, padded - count, Real(-0.0));
}

// Loads and stores `rows` rows of `cols` elements, which stand side by side in the tile.
template <class Real>
void load_tile(const BlockArray& array, int64_t row, int64_t col, int64_t rows, int64_t cols,
               Real* tile) {
  const int64_t bytes = dtype_bytes(array.dtype);
  const char* data = array.data + row * array.row_bytes + col * bytes;
  if (rows == 1 || array.row_bytes == cols * bytes)
    load_run(array.dtype, data, tile, rows * cols);
  else
    for (int64_t i = 0; i < rows; ++i)
      load_run(array.dtype, data + i * array.row_bytes, tile + i * cols, cols);
}

template <class Real>
void store_tile(const BlockArray& array, int64_t row, int64_t col, int64_t rows, int64_t cols,
                const Real* tile) {
  const int64_t bytes = dtype_bytes(array.dtype);
  char* data = array.data + row * array.row_bytes + col * bytes;
  if (rows == 1 || array.row_bytes == cols * bytes)
    store_run(array.dtype, data, tile, rows * cols);
  else
    for (int64_t i = 0; i < rows; ++i)
      store_run(array.dtype, data + i * array.row_bytes, tile + i * cols, cols);
}

// Sets the elements up to the next whole step, which are computed along.
template <class Real>
void pad(Real* tile, int64_t count) {
  fill(tile + count, round_up(count) - count, Real(0));
}

template <class Real>
void add_nodes(void* nodes, int64_t count, int64_t stride, int64_t cols,
               const BlockArray& output_row) {
  constexpr int64_t kWidth = kFusedBytes / sizeof(Real);
  for (int64_t col = 0; col < cols; col += kWidth) {
    const int64_t width = smaller(kWidth, cols - col);
    Real* const node = static_cast<Real*>(nodes) + col;
    for (int64_t step = 1; step < count; step *= 2)
      for (int64_t i = 0; i + step < count; i += 2 * step)
        add_to(node + i * stride, node + (i + step) * stride, width);
    store_run(output_row.dtype, output_row.data + col * dtype_bytes(output_row.dtype), node, width);
  }
}

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_WALKS_COLUMNS_BLOCK_TILES_H_
