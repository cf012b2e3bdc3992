// The kernels of convolutions on the CPU, one table for each instruction set.
#ifndef BRIDGE_CONVOLUTION_KERNELS_H_
#define BRIDGE_CONVOLUTION_KERNELS_H_

#include <stddef.h>

#include "convolution/views.h"
#include "cpu/isa.h"

namespace bridge::convolution {

// The rows and columns of a product that one task computes.
struct Part {
  int64_t row, rows, col, cols;
};

struct Kernels {
  int64_t tile_rows, tile_cols;
  // Returns the scratch memory (bytes) of a part, with room to align it to 64 bytes.
  size_t (*scratch_bytes)(const Problem& problem, int64_t rows, int64_t cols);
  void (*run)(const Problem& problem, const Part& part, void* scratch);
  // The same for depthwise convolutions with adjacent channels: rows are places or positions,
  // columns channels, in blocks.
  int64_t channel_block;
  size_t (*channelwise_bytes)(const Depthwise& call, int64_t channels);
  void (*run_channelwise)(const Depthwise& call, const Part& part, void* scratch);
  // The same for planes, one image and channel at a time.
  size_t (*planes_bytes)(const Planes& call);
  void (*run_plane)(const Planes& call, int64_t unit, void* scratch);
};

struct Table {
  Kernels of[2];  // float, double
};

}  // namespace bridge::convolution

namespace bridge {
using ConvolutionTables = convolution::Table;
BRIDGE_DECLARE_PER_ISA(ConvolutionTables, convolution_tables)
}  // namespace bridge

#endif  // BRIDGE_CONVOLUTION_KERNELS_H_
