// The nodes that segments of long rows leave in the workspace: their number and place. Host code
// and structures.
#ifndef BRIDGE_DRIVERS_ROWS_ROW_NODES_H_
#define BRIDGE_DRIVERS_ROWS_ROW_NODES_H_

#include <stddef.h>
#include <stdint.h>

#include "drivers/rows/row_sum_tree.h"

namespace bridge::rows {

constexpr int kSegmentChunks = 8;
constexpr int kSegmentCols = kSegmentChunks * static_cast<int>(kSumChunk);
constexpr int kNodeThreads = kSegmentChunks * 32;
constexpr int kNodeWidth = 1024;  // nodes that a block reduces at once

// The nodes of a launch; those of one row are contiguous.
struct Nodes {
  void* leaves;       // [rows, segments]
  const void* roots;  // [rows, root_count], the first level with at most kNodeWidth nodes per row
  int64_t root_count;
};

struct NodesParams {
  const void* from;  // [rows, from_count]
  void* to;          // [rows, to_count]
  int64_t rows;
  int64_t from_count;
  int64_t to_count;
};

constexpr int64_t ceil_divide(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// Returns the number of nodes of a row on all levels down to kNodeWidth nodes.
inline int64_t node_count(int64_t segments) {
  int64_t count = segments;
  for (; segments > kNodeWidth; count += segments) segments = ceil_divide(segments, kNodeWidth);
  return count;
}

// Returns the bytes of the nodes, rounded up to a multiple of 16.
inline size_t node_bytes(int64_t rows, int64_t segments, size_t real_bytes) {
  const size_t bytes = static_cast<size_t>(rows * node_count(segments)) * real_bytes;
  return (bytes + 15) / 16 * 16;
}

inline Nodes nodes_at(void* memory, int64_t rows, int64_t segments, size_t real_bytes) {
  Nodes nodes{memory, memory, segments};
  while (nodes.root_count > kNodeWidth) {
    nodes.roots = static_cast<const char*>(nodes.roots) +
                  static_cast<size_t>(rows * nodes.root_count) * real_bytes;
    nodes.root_count = ceil_divide(nodes.root_count, kNodeWidth);
  }
  return nodes;
}

}  // namespace bridge::rows

#endif  // BRIDGE_DRIVERS_ROWS_ROW_NODES_H_
