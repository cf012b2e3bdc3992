// The sums of the cotangents of equal ids, compiled once for each instruction set.
#include <string.h>

#include <type_traits>

#include "cpu/tile.h"
#include "embedding/embedding.h"
#include "tiles/column_stack.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

using embedding::Part;

template <class T>
void run(const Part& part, void* scratch) {
  using Real = real_of<T>;
  const bridge_embedding_gradient& call = *part.call;
  const auto address = reinterpret_cast<uintptr_t>(scratch);
  Real* const tile = reinterpret_cast<Real*>((address + 63) / 64 * 64);
  Real* const nodes = tile + round_up(part.cols);
  ColumnStack<Real> stack;
  for (int64_t row = part.first; row < part.end; ++row) {
    char* const to = part.result + row * call.cols * static_cast<int64_t>(sizeof(T));
    const int64_t begin = part.starts[row], end = part.starts[row + 1];
    if (begin == end) {
      memset(to, 0, static_cast<size_t>(part.cols) * sizeof(T));
      continue;
    }
    stack.begin(nodes, part.cols);
    stack.clear_leaf();
    for (int64_t i = begin; i < end; ++i) {
      const T* const term = reinterpret_cast<const T*>(part.terms) + part.order[i] * call.cols;
      if constexpr (std::is_same_v<T, Real>) {
        add_to(stack.leaf(), term, part.cols);
      } else {
        load_run_of<T>(term, tile, part.cols);
        add_to(stack.leaf(), tile, part.cols);
      }
      stack.row_is_added();
    }
    stack.write({nullptr, {to, call.dtype}}, part.cols);
  }
}

size_t scratch_bytes(int64_t count, int64_t cols) {
  const int64_t numbers = round_up(cols) + ColumnStack<double>::size(count, cols);
  return static_cast<size_t>(numbers) * sizeof(double) + 64;
}

}  // namespace

constexpr embedding::Table embedding_table = {
    scratch_bytes, {run<math::float16>, run<math::bfloat16>, run<float>, run<double>}};

}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge
