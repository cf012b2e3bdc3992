// Maps between places on the CPU: the table of kernels of an instruction set.
#ifndef BRIDGE_TAPS_TAPS_H_
#define BRIDGE_TAPS_TAPS_H_

#include <bridge/taps.h>
#include <stddef.h>

#include "cpu/isa.h"

namespace bridge::taps {

constexpr int64_t kMostScratch = 8 << 20;  // bytes of a task

// The inner indices whose sums are added at the same time for OF_CHOSEN.
inline int64_t block_of(const bridge_taps& call) {
  int64_t block = call.inner < 16 ? call.inner : 16;
  while (block > 1 && call.outputs * block * 8 > kMostScratch) block /= 2;
  return block;
}

struct Kernel {
  // Returns the number of units of a call: outputs of all outer indices or of groups of them,
  // blocks of sums for OF_CHOSEN, blocks of inner indices for ROW_MEAN.
  int64_t (*units)(const bridge_taps& call);
  // Returns the scratch memory (bytes) of a task, with room to align it to 64 bytes.
  size_t (*scratch_bytes)(const bridge_taps& call);
  // Runs units [first, end).
  void (*run)(const bridge_taps& call, int64_t first, int64_t end, void* scratch);
};

struct Table {
  Kernel of[4];  // by bridge_dtype
};

}  // namespace bridge::taps

namespace bridge {
using TapsTable = taps::Table;
BRIDGE_DECLARE_PER_ISA(TapsTable, taps_table)
}  // namespace bridge

#endif  // BRIDGE_TAPS_TAPS_H_
