// A choice of columns from tensors: the C struct of the call.
#ifndef BRIDGE_BINDINGS_CALLS_SELECTION_CALL_H_
#define BRIDGE_BINDINGS_CALLS_SELECTION_CALL_H_

#include <bridge/selection.h>

#include "bindings/calls/operand.h"

namespace bridge::bindings {

// x [..., cols]; the words, uint32 [..., 4] or int64 [..., 2], or none; the result [..., count].
// All are compact.
struct SelectionArguments {
  Operand x, words, result;
};

// The numbers of a draw; a choice of the largest has any.
struct SelectionNumbers {
  double temperature, top_p, min_p;
  int64_t top_k;
};

// Returns false with the error set.
bool bind_selection(const SelectionArguments& arguments, const SelectionNumbers& numbers,
                    bridge_selection* call, CallError* error);

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_CALLS_SELECTION_CALL_H_
