// A convolution whose operands are matrices as they lie in memory, such as one with a kernel of one
// position: a product without patches.
#ifndef BRIDGE_CONVOLUTION_AS_PRODUCT_H_
#define BRIDGE_CONVOLUTION_AS_PRODUCT_H_

#include <bridge/bridge.h>

#include "convolution/views.h"

namespace bridge::convolution {

// Cuts the last dimension of an axis into runs of `size`, if it is the only one.
inline Axis cut(const Axis& axis, int64_t size) {
  constexpr int last = kAxisDims - 1;
  Axis all = axis;
  if (axis.size[last - 1] != 1 || size < 1 || axis.size[last] % size != 0) return all;
  all.size[last - 1] = axis.size[last] / size;
  all.stride[last - 1] = size * axis.stride[last];
  all.size[last] = size;
  return all;
}

inline bool has_dims(const Axis& axis, int dims) {
  for (int d = 0; d < kAxisDims - dims; ++d)
    if (axis.size[d] != 1) return false;
  return true;
}

// Returns false if the problem is no such product.
inline bool as_product(const Problem& problem, bridge_product* product) {
  constexpr int last = kAxisDims - 1;
  if (problem.a.places != Places::none || problem.b.places != Places::none) return false;
  if (problem.row_count == 0 || problem.col_count == 0 || problem.term_count == 0) return false;
  const Axis a_terms = joined(problem.a.terms), b_terms = joined(problem.b.terms);
  const Axis b_lanes = joined(problem.b.lanes), cols = joined(problem.cols);
  Axis lanes = joined(problem.a.lanes), rows = joined(problem.rows);
  for (const Axis* axis : {&a_terms, &b_terms, &b_lanes, &cols})
    if (!has_dims(*axis, 1)) return false;
  if (!has_dims(lanes, 2) || !has_dims(rows, 2)) return false;
  if (lanes.size[last] > rows.size[last]) lanes = cut(lanes, rows.size[last]);
  if (rows.size[last] > lanes.size[last]) rows = cut(rows, lanes.size[last]);
  if (rows.size[last] != lanes.size[last] || rows.size[last - 1] != lanes.size[last - 1])
    return false;
  // Products without a bias run along the rows of c if these are adjacent.
  if (problem.bias != nullptr && (problem.has_row_bias || cols.stride[last] != 1)) return false;
  bridge_product all{};
  all.dims = rows.size[last - 1] > 1 ? 1 : 0;
  all.size[0] = rows.size[last - 1];
  all.m = problem.row_count / all.size[0];
  all.n = problem.col_count;
  all.k = problem.term_count;
  const auto address = [](const View& view) {
    return const_cast<char*>(view.data) + view.offset * element_bytes(view.dtype);
  };
  all.a.data = address(problem.a);
  all.a.dtype = problem.a.dtype;
  all.a.stride[0] = lanes.stride[last - 1];
  all.a.row_stride = lanes.stride[last], all.a.col_stride = a_terms.stride[last];
  all.b.data = address(problem.b);
  all.b.dtype = problem.b.dtype;
  all.b.row_stride = b_terms.stride[last], all.b.col_stride = b_lanes.stride[last];
  all.c.data = problem.c;
  all.c.dtype = problem.c_dtype;
  all.c.stride[0] = rows.stride[last - 1];
  all.c.row_stride = rows.stride[last], all.c.col_stride = cols.stride[last];
  all.bias.data = const_cast<char*>(problem.bias);
  all.bias.dtype = problem.bias_dtype;
  all.bias.col_stride = problem.bias_stride;
  *product = all;
  return true;
}

}  // namespace bridge::convolution

#endif  // BRIDGE_CONVOLUTION_AS_PRODUCT_H_
