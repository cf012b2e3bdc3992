// The choice of columns on the CPU: the table of kernels of an instruction set.
#ifndef BRIDGE_SELECTION_SELECTION_H_
#define BRIDGE_SELECTION_SELECTION_H_

#include <bridge/selection.h>
#include <stdint.h>

#include "cpu/isa.h"

namespace bridge::selection {

struct Table {
  // Runs rows [first, end) of a call. scratch has 8 bytes for each column if the call draws.
  void (*run[4])(const bridge_selection& call, int64_t first, int64_t end, uint64_t* scratch);
};

}  // namespace bridge::selection

namespace bridge {
using SelectionTable = selection::Table;
BRIDGE_DECLARE_PER_ISA(SelectionTable, selection_table)
}  // namespace bridge

#endif  // BRIDGE_SELECTION_SELECTION_H_
