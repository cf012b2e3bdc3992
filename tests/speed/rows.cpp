#include "rows.h"

#include <algorithm>

namespace bridge::speed {
namespace {

constexpr int32_t kBfloat16 = BRIDGE_BFLOAT16, kFloat16 = BRIDGE_FLOAT16, kFloat32 = BRIDGE_FLOAT32;

// What a row is besides its shape.
struct Variant {
  std::string op;
  std::string kind;
  std::string dtype;
  int rank;
  bool is_attention;
  int64_t element_bytes;
  std::function<AnyCall(Operands&, const Shape&)> make;
};

struct Dtype {
  const char* name;
  int rank;
  int32_t number;
};
constexpr Dtype kDtypes[] = {
    {"bfloat16", 0, kBfloat16}, {"float32", 1, kFloat32}, {"float16", 2, kFloat16}};

struct Columns {
  int64_t cols;
  int64_t few_rows;
  int rank;
};
constexpr Columns kColumns[] = {{4096, 0, 0},   {1024, 0, 1},   {32768, 0, 1}, {262144, 64, 1},
                                {256, 0, 2},    {16384, 0, 2},  {65536, 0, 2}, {262144, 0, 2},
                                {4099, 0, 2},  // no row but the first begins at a multiple of 8
                                {32768, 64, 3}, {4096, 2048, 3}};

AnyCall make_copy(Operands& memory, const Shape& shape, bool by_kernel) {
  Copy copy{};
  copy.from = memory.numbers(kBfloat16, shape.elements());
  copy.to = memory.result(kBfloat16, shape.elements());
  copy.bytes = shape.elements() * dtype_bytes(kBfloat16);
  copy.by_kernel = by_kernel;
  return copy;
}

bridge_row_space space_of(const Shape& shape, bool causal) {
  return {3, causal ? 1 : 0, {shape.batch, shape.heads, shape.queries}, shape.cols};
}
bridge_rows rows_at(void* data, const Shape& shape) {
  const int64_t head = shape.queries * shape.cols;
  return {data, {shape.heads * head, head, shape.cols}};
}
// The last query sees every column, each one before it a column less.
int64_t visible(const Shape& shape, bool causal) {
  if (!causal) return shape.elements();
  const int64_t hidden = shape.queries * (shape.queries - 1) / 2;
  return shape.elements() - shape.batch * shape.heads * hidden;
}

enum class Hidden { nothing, by_mask, causal };

AnyCall make_softmax(Operands& memory, const Shape& shape, int32_t dtype, Hidden hidden) {
  const bool causal = hidden == Hidden::causal;
  bridge_softmax call{};
  call.space = space_of(shape, causal);
  call.dtype = dtype;
  call.scale = 0.125;
  call.x = rows_at(memory.numbers(dtype, shape.elements(), visible(shape, causal)), shape);
  if (hidden == Hidden::by_mask) {  // one for all heads
    const int64_t one = shape.queries * shape.cols;
    const void* mask = memory.add({Values::mask, 0, shape.batch * one});
    call.mask = {static_cast<const uint8_t*>(mask), {one, 0, shape.cols}, 1};
  }
  call.output = rows_at(memory.result(dtype, shape.elements()), shape);
  return call;
}

AnyCall make_softmax_backward(Operands& memory, const Shape& shape, int32_t dtype, bool causal) {
  const int64_t count = shape.elements(), moved = visible(shape, causal);
  bridge_softmax_derivative call{};
  call.space = space_of(shape, causal);
  call.dtype = dtype;
  call.terms = BRIDGE_SOFTMAX_PRODUCT | BRIDGE_SOFTMAX_U;
  call.scale = 0.125;
  // About as large as the shares of a softmax, which add up to 1.
  const float largest = 2.0f / static_cast<float>(shape.cols);
  call.u = rows_at(memory.add({Values::numbers, dtype, count, 0, largest}, moved), shape);
  call.v = rows_at(memory.numbers(dtype, count, moved), shape);
  call.output = rows_at(memory.result(dtype, count), shape);
  return call;
}

std::vector<Variant> softmax_variants() {
  struct Kind {
    const char* name;
    Hidden hidden;
    bool backward;
    int rank;
  };
  constexpr Kind kKinds[] = {{"forward", Hidden::nothing, false, 0},
                             {"forward_masked", Hidden::by_mask, false, 0},
                             {"forward_causal", Hidden::causal, false, 0},
                             {"backward", Hidden::nothing, true, 0},
                             {"backward_causal", Hidden::causal, true, 1}};
  std::vector<Variant> variants;
  for (const Kind& kind : kKinds) {
    for (const Dtype& each : kDtypes) {
      const int32_t dtype = each.number;
      variants.push_back(
          {"softmax", kind.name, each.name, kind.rank + each.rank, kind.hidden != Hidden::nothing,
           dtype_bytes(dtype), [dtype, kind](Operands& memory, const Shape& shape) {
             return kind.backward
                        ? make_softmax_backward(memory, shape, dtype, kind.hidden == Hidden::causal)
                        : make_softmax(memory, shape, dtype, kind.hidden);
           }});
    }
  }
  return variants;
}

std::vector<Variant> copy_variants() {
  std::vector<Variant> variants;
  for (const bool by_kernel : {false, true})
    variants.push_back({"copy", by_kernel ? "kernel" : "driver", "bfloat16", 0, false,
                        dtype_bytes(kBfloat16), [by_kernel](Operands& memory, const Shape& shape) {
                          return make_copy(memory, shape, by_kernel);
                        }});
  return variants;
}

}  // namespace

std::string Row::name() const {
  const std::string rows = few_rows > 0 ? std::to_string(few_rows) + "x" : "";
  return op + "." + kind + "." + dtype + "." + rows + std::to_string(cols);
}

Shape Row::shape(int64_t array_bytes) const {
  const int64_t most = std::max<int64_t>(1, array_bytes / (cols * element_bytes));
  const int64_t rows = few_rows > 0 ? std::min(few_rows, most) : most;
  if (!is_attention) return {1, 1, rows, cols};
  // As many queries as keys and 16 heads, where there are rows enough.
  const int64_t queries = std::min(rows, cols);
  const int64_t heads = std::clamp<int64_t>((rows + queries / 2) / queries, 1, 16);
  const int64_t one = queries * heads;
  return {std::max<int64_t>(1, (rows + one / 2) / one), heads, queries, cols};
}

std::vector<Row> all_rows() {
  std::vector<Row> rows;
  for (const auto& variants : {copy_variants(), softmax_variants()})
    for (const Variant& variant : variants)
      for (const Columns& columns : kColumns) {
        Row row{variant.op,
                variant.kind,
                variant.dtype,
                columns.cols,
                columns.few_rows,
                variant.is_attention,
                variant.element_bytes,
                variant.rank + columns.rank,
                variant.make};
        // A copy knows of no columns: one large one, and one of each small size.
        if (row.is_copy() && columns.few_rows == 0 && columns.rank > 0) continue;
        if (row.is_copy()) row.rank = -1;
        rows.push_back(row);
      }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.rank < b.rank; });
  return rows;
}

std::vector<std::string> profiled_rows() {
  return {"softmax.forward_masked.bfloat16.1024", "softmax.forward.bfloat16.32768",
          "softmax.backward.bfloat16.4096"};
}

}  // namespace bridge::speed
