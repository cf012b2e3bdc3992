// bias_dropout_add on the CPU.
#include "ops/bias_dropout_add.h"

#include <stdint.h>

#include <new>
#include <vector>

#include "cpu/error.h"
#include "cpu/float_environment.h"
#include "math/convert.h"
#include "math/philox.h"
#include "ops/column_sum_tree.h"

namespace bridge {
namespace {

template <class Real>
Real load(const bridge_array& array, int64_t index) {
  switch (array.dtype) {
    case BRIDGE_FLOAT16:
      return math::to_float(static_cast<const math::float16*>(array.data)[index]);
    case BRIDGE_BFLOAT16:
      return math::to_float(static_cast<const math::bfloat16*>(array.data)[index]);
    case BRIDGE_FLOAT32:
      return static_cast<const float*>(array.data)[index];
    default:
      return static_cast<Real>(static_cast<const double*>(array.data)[index]);
  }
}

template <class Real>
void store(const bridge_array& array, int64_t index, Real value) {
  switch (array.dtype) {
    case BRIDGE_FLOAT16:
      static_cast<math::float16*>(array.data)[index] = math::round_to<math::float16>(value);
      break;
    case BRIDGE_BFLOAT16:
      static_cast<math::bfloat16*>(array.data)[index] = math::round_to<math::bfloat16>(value);
      break;
    case BRIDGE_FLOAT32:
      static_cast<float*>(array.data)[index] = math::round_to<float>(value);
      break;
    default:
      static_cast<double*>(array.data)[index] = math::round_to<double>(value);
  }
}

template <class Real>
Real tree(std::vector<Real>& nodes) {
  for (size_t count = nodes.size(); count > 1; count = (count + 1) / 2) {
    for (size_t i = 0; i < count / 2; ++i) nodes[i] = nodes[2 * i] + nodes[2 * i + 1];
    if (count % 2 != 0) nodes[count / 2] = nodes[count - 1];
  }
  return nodes.empty() ? Real(0) : nodes[0];
}

template <class Real>
void run_in(const bridge_bias_dropout_add& call) {
  const Keep keep = keep_of(call);
  const Real factor = static_cast<Real>(call.factor);
  for (int64_t batch = 0; batch < call.batch; ++batch) {
    const uint64_t seed = keep == Keep::some ? integer_at(call.seed, batch) : 0;
    const uint64_t offset = keep == Keep::some ? integer_at(call.offset, batch) : 0;
    const uint64_t start = keep == Keep::some ? integer_at(call.start, batch) : 0;
    for (int64_t col = 0; col < call.cols; ++col) {
      std::vector<Real> lanes;
      for (int64_t row = 0; row < call.rows; ++row) {
        Real value = 0;
        bool kept = keep == Keep::all;
        if (keep == Keep::some) {
          const uint64_t i = start +
                             static_cast<uint64_t>(row) * static_cast<uint64_t>(call.index_cols) +
                             static_cast<uint64_t>(col);
          kept = math::philox(seed, offset, i / 4).words[i % 4] >= call.threshold;
        }
        if (kept) {
          value = load<Real>(call.input.full, batch * call.input.full.batch_stride +
                                                  row * call.input.full.row_stride + col);
          if (is_present(call.input.row))
            value = value + load<Real>(call.input.row, batch * call.input.row.batch_stride + col);
          if (keep == Keep::some) value = value * factor;
        }
        if (is_present(call.residual))
          value = load<Real>(call.residual, batch * call.residual.batch_stride +
                                                row * call.residual.row_stride + col) +
                  value;
        const bridge_array& full = call.output.full;
        if (is_present(full))
          store(full, batch * full.batch_stride + row * full.row_stride + col, value);
        if (row % kLaneRows == 0) lanes.push_back(Real(-0.0));
        lanes.back() = lanes.back() + value;
      }
      const bridge_array& sums = call.output.row;
      if (is_present(sums)) store(sums, batch * sums.batch_stride + col, tree(lanes));
    }
  }
}

bridge_status run(const bridge_bias_dropout_add& call) {
  const bridge_status status = validate(call, error_message(), kErrorBytes);
  if (status != BRIDGE_OK) return status;
  if (call.batch == 0 || call.cols == 0) return BRIDGE_OK;
  const FloatEnvironment ieee;
  if (is_double(call))
    run_in<double>(call);
  else
    run_in<float>(call);
  return BRIDGE_OK;
}

}  // namespace
}  // namespace bridge

extern "C" bridge_status bridge_bias_dropout_add_cpu(const bridge_bias_dropout_add* call,
                                                     const bridge_executor* /*executor*/) {
  using bridge::fail;
  if (call == nullptr) return fail(BRIDGE_INVALID_ARGUMENT, "bias_dropout_add: the call is null");
  try {
    return bridge::run(*call);
  } catch (const std::bad_alloc&) {
    return fail(BRIDGE_OUT_OF_MEMORY, "bias_dropout_add: no memory for the partial column sums");
  } catch (...) {
    return fail(BRIDGE_INTERNAL, "bias_dropout_add: an unexpected exception");
  }
}
