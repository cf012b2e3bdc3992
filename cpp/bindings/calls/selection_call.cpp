#include "bindings/calls/selection_call.h"

#include <algorithm>
#include <string>

namespace bridge::bindings {

bool bind_selection(const SelectionArguments& given, const SelectionNumbers& numbers,
                    bridge_selection* call, CallError* error) {
  struct Named {
    const char* name;
    const Operand& operand;
  };
  const Operand &x = given.x, &words = given.words, &result = given.result;
  for (const Named& each : {Named{"x", x}, Named{"words", words}, Named{"the result", result}}) {
    if (!each.operand.present) {
      if (&each.operand == &words) continue;
      return error->set(std::string(each.name) + " is missing");
    }
    if (each.operand.ndim < 1)
      return error->set(std::string(each.name) + " is 0-dimensional, expected rows");
    if (!is_compact(each.operand)) return error->set(std::string(each.name) + " is not compact");
    if (!same_device(each.operand, x))
      return error->set(std::string(each.name) + " is on another device than x");
  }
  const auto last = [](const Operand& each) { return each.shape[each.ndim - 1]; };
  const auto has_rows_of_x = [&](const Operand& each) {
    return each.ndim == x.ndim && std::equal(x.shape, x.shape + x.ndim - 1, each.shape);
  };
  const bool has_right_words =
      !words.present ||
      (has_rows_of_x(words) && ((words.dtype == BRIDGE_UINT32 && last(words) == 4) ||
                                (words.dtype == BRIDGE_INT64 && last(words) == 2)));
  if (!has_right_words || !has_rows_of_x(result))
    return error->set("x " + describe_shape(x) + ", the words and the result " +
                      describe_shape(result) + " do not fit each other");
  int64_t rows = 1;
  for (int32_t d = 0; d < x.ndim - 1; ++d) rows *= x.shape[d];
  *call = {rows,
           last(x),
           last(result),
           x.dtype,
           result.dtype,
           address_of(x),
           words.present ? address_of(words) : nullptr,
           address_of(result),
           numbers.top_k,
           numbers.temperature,
           numbers.top_p,
           numbers.min_p};
  return true;
}

}  // namespace bridge::bindings
