#include "bindings/calls/embedding_call.h"

#include <string>

namespace bridge::bindings {
bool bind_embedding(const EmbeddingArguments& given, bridge_embedding_gradient* call,
                    CallError* error) {
  struct Named {
    const char* name;
    const Operand& operand;
    int32_t ndim;
  };
  for (const Named& each : {Named{"the cotangent", given.terms, 3}, Named{"ids", given.ids, 2},
                            Named{"order", given.order, 2}, Named{"the result", given.result, 3}}) {
    if (!each.operand.present) {
      if (&each.operand == &given.order && given.terms.device == Device::cpu) continue;
      return error->set(std::string(each.name) + " is missing");
    }
    if (each.operand.ndim != each.ndim)
      return error->set(std::string(each.name) + " has shape " + describe_shape(each.operand) +
                        ", expected " + std::to_string(each.ndim) + " dimensions");
    if (!is_compact(each.operand)) return error->set(std::string(each.name) + " is not compact");
    if (!same_device(each.operand, given.terms))
      return error->set(std::string(each.name) + " is on another device than the cotangent");
  }
  const bool has_order = given.order.present;
  if (given.result.dtype != given.terms.dtype ||
      (has_order && given.order.dtype != given.ids.dtype))
    return error->set("the cotangent is " + std::string(describe_dtype(given.terms.dtype)) +
                      ", the result " + describe_dtype(given.result.dtype) + ", ids " +
                      describe_dtype(given.ids.dtype) + " and order " +
                      describe_dtype(given.order.dtype) + ", expected two equal pairs");
  const int64_t* const terms = given.terms.shape;
  const int64_t* const result = given.result.shape;
  bool fits = terms[0] == result[0] && terms[2] == result[2];
  for (const Operand* each : {&given.ids, has_order ? &given.order : &given.ids})
    fits = fits && each->shape[0] == terms[0] && each->shape[1] == terms[1];
  if (!fits)
    return error->set("the cotangent " + describe_shape(given.terms) + ", ids " +
                      describe_shape(given.ids) + " and the result " +
                      describe_shape(given.result) + " do not fit each other");
  *call = {terms[0],
           terms[1],
           result[1],
           terms[2],
           given.terms.dtype,
           given.ids.dtype,
           address_of(given.ids),
           has_order ? address_of(given.order) : nullptr,
           address_of(given.terms),
           address_of(given.result)};
  return true;
}

}  // namespace bridge::bindings
