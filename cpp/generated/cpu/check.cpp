#include "generated/cpu/check.h"

#include <new>

#include "cpu/error.h"
#include "drivers/rows/row_sum_tree.h"
#include "generated/cpu/programs.h"
#include "program/comparison.h"

namespace bridge::interpreter {

bridge_status check_generated(const View& view, const std::vector<int32_t>& words,
                              const int32_t* dtypes, int isa, const MachineTable& machine) {
  bool is_double = false;
  for (int32_t i = 0; i < view.header.operands + view.header.results; ++i)
    is_double = is_double || dtypes[i] == BRIDGE_FLOAT64;
  const MachineTable& reference = interpreting_machine(isa, is_double);
  const auto interpreted = [&](const bridge_program& call, Memory&) {
    run_on(reference, view, call, nullptr);
    return std::string();
  };
  // The longest rows run in parts of columns and are written past the caches; the others are not.
  const auto generated = [&](const bridge_program& call, Memory&) {
    if (call.cols > 4 * kSumChunk && !machine.has_whole_rows)
      run_split(machine, view, call, split_into(2, kSumChunk, nullptr), ~uint32_t{0});
    else
      run_on(machine, view, call, nullptr);
    return std::string();
  };
  try {
    const std::string why = compare(view, words, dtypes, interpreted, generated);
    return why.empty() ? BRIDGE_OK : fail(BRIDGE_INTERNAL, "program: %.400s", why.c_str());
  } catch (const std::bad_alloc&) {
    return fail(BRIDGE_OUT_OF_MEMORY, "program: no memory to check it");
  }
}

}  // namespace bridge::interpreter
