#include "interpreter/generated_check.h"

#include <new>

#include "cpu/error.h"
#include "interpreter/comparison.h"
#include "interpreter/generated_programs.h"

namespace bridge::interpreter {

bridge_status check_generated(const View& view, const std::vector<int32_t>& words,
                              const int32_t* dtypes, int isa, const MachineTable& machine) {
  bool is_double = false;
  for (int32_t i = 0; i < view.header.operands + view.header.results; ++i)
    is_double = is_double || dtypes[i] == BRIDGE_FLOAT64;
  const auto runs_on = [&view](const MachineTable& table) {
    return [&view, &table](const bridge_program& call, Memory&) {
      run_on(table, view, call, nullptr);
      return std::string();
    };
  };
  try {
    const std::string why = compare(
        view, words, dtypes, runs_on(interpreting_machine(isa, is_double)), runs_on(machine));
    return why.empty() ? BRIDGE_OK : fail(BRIDGE_INTERNAL, "program: %.400s", why.c_str());
  } catch (const std::bad_alloc&) {
    return fail(BRIDGE_OUT_OF_MEMORY, "program: no memory to check it");
  }
}

}  // namespace bridge::interpreter
