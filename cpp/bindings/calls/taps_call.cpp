#include "bindings/calls/taps_call.h"

#include <string>

namespace bridge::bindings {

bool bind_taps(const TapsArguments& given, bridge_taps* call, CallError* error) {
  struct Named {
    const char* name;
    const Operand& operand;
    bool is_needed;
  };
  const Operand &x = given.x, &table = given.table, &weights = given.weights,
                &chosen = given.chosen, &result = given.result;
  const bool has_table = given.kind >= 0 && given.kind <= BRIDGE_TAPS_LARGEST;
  const bool has_weights = has_table && given.kind != BRIDGE_TAPS_LARGEST;
  const bool has_chosen = !has_table && given.kind != BRIDGE_TAPS_ROW_MEAN;
  for (const Named& each :
       {Named{"x", x, true}, Named{"the table", table, has_table},
        Named{"the weights", weights, has_weights}, Named{"chosen", chosen, has_chosen},
        Named{"the result", result, true}}) {
    if (each.operand.present != each.is_needed)
      return error->set(std::string(each.name) +
                        (each.is_needed ? " is missing" : " is given, expected none"));
    if (!each.is_needed) continue;
    if (!is_compact(each.operand)) return error->set(std::string(each.name) + " is not compact");
    if (!same_device(each.operand, x))
      return error->set(std::string(each.name) + " is on another device than x");
  }
  const int32_t along = x.ndim - 1 - (given.has_inner ? 1 : 0);
  if (along < 0) return error->set("x " + describe_shape(x) + " has too few dimensions");
  bool fits = result.ndim == x.ndim;
  for (int32_t d = 0; fits && d < x.ndim; ++d) fits = d == along || result.shape[d] == x.shape[d];
  const int32_t wide = x.dtype == BRIDGE_FLOAT64 ? BRIDGE_FLOAT64 : BRIDGE_FLOAT32;
  const int32_t of_result = given.kind == BRIDGE_TAPS_LARGEST ? int32_t{BRIDGE_INT32} : x.dtype;
  fits = fits && result.dtype == of_result;
  if (fits && has_table) {
    fits = table.ndim == 2 && table.dtype == BRIDGE_INT32 && table.shape[1] == result.shape[along];
    if (has_weights)
      fits = fits && weights.dtype == wide && weights.ndim == 2 &&
             weights.shape[1] == result.shape[along] &&
             weights.shape[0] == (given.kind == BRIDGE_TAPS_AVERAGE ? 1 : table.shape[0]);
  } else if (fits && has_chosen) {
    const Operand& like = given.kind == BRIDGE_TAPS_CHOSEN ? result : x;
    fits = chosen.dtype == BRIDGE_INT32 && chosen.ndim == like.ndim;
    for (int32_t d = 0; fits && d < like.ndim; ++d) fits = chosen.shape[d] == like.shape[d];
  }
  if (!fits)
    return error->set("x " + describe_shape(x) + ", its tables and the result " +
                      describe_shape(result) + " do not fit each other");
  int64_t outer = 1;
  for (int32_t d = 0; d < along; ++d) outer *= x.shape[d];
  const auto address = [](const Operand& each) {
    return each.present ? address_of(each) : nullptr;
  };
  *call = {given.kind,
           x.dtype,
           outer,
           x.shape[along],
           result.shape[along],
           given.has_inner ? x.shape[along + 1] : 1,
           has_table ? table.shape[0] : 0,
           address_of(x),
           static_cast<const int32_t*>(address(table)),
           address(weights),
           static_cast<const int32_t*>(address(chosen)),
           address_of(result)};
  return true;
}

}  // namespace bridge::bindings
