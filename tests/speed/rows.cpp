#include "rows.h"

#include <algorithm>
#include <cmath>
#include <utility>

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

// The result is also the cotangent's dtype, and the residual's.
struct Dtypes {
  const char* name;
  int rank;
  int32_t x;
  int32_t bias;
  int32_t result;
};
constexpr Dtypes kSingle[] = {{"bfloat16", 0, kBfloat16, kBfloat16, kBfloat16},
                              {"float32", 1, kFloat32, kFloat32, kFloat32},
                              {"float16", 2, kFloat16, kFloat16, kFloat16}};
// What a model in bfloat16 with float32 parameters calls: a bias promotes bias_gelu's result, ...
constexpr Dtypes kGeluBias = {"bfloat16_float32_bias", 1, kBfloat16, kFloat32, kFloat32};
// ... while that of bias_dropout_add has the residual's dtype.
constexpr Dtypes kDropoutBias = {"bfloat16_float32_bias", 1, kBfloat16, kFloat32, kBfloat16};
constexpr Dtypes kDropoutResidual = {"bfloat16_float32_residual", 1, kBfloat16, kBfloat16,
                                     kFloat32};

struct Columns {
  int64_t cols;
  int64_t few_rows;
  int rank;
};
constexpr Columns kColumns[] = {{4096, 0, 0},   {1024, 0, 1},   {32768, 0, 1}, {262144, 64, 1},
                                {256, 0, 2},    {16384, 0, 2},  {65536, 0, 2}, {262144, 0, 2},
                                {4099, 0, 2},  // no row but the first begins at a multiple of 8
                                {32768, 64, 3}, {4096, 2048, 3}};

bridge_array matrix(void* data, int32_t dtype, const Shape& shape) {
  return {data, dtype, 0, shape.cols};
}
bridge_array vector(void* data, int32_t dtype) { return {data, dtype, 0, 0}; }

AnyCall make_copy(Operands& memory, const Shape& shape, bool by_kernel) {
  Copy copy{};
  copy.from = memory.numbers(kBfloat16, shape.elements());
  copy.to = memory.result(kBfloat16, shape.elements());
  copy.bytes = shape.elements() * dtype_bytes(kBfloat16);
  copy.by_kernel = by_kernel;
  return copy;
}

enum class Pass { forward, backward, backward_dbias };

AnyCall make_bias_gelu(Operands& memory, const Shape& shape, const Dtypes& dtypes, int32_t form,
                       Pass pass) {
  const int64_t count = shape.elements();
  bridge_bias_gelu call{};
  call.form = form;
  call.batch = 1;
  call.rows = shape.rows();
  call.cols = shape.cols;
  call.input.full = matrix(memory.numbers(dtypes.x, count), dtypes.x, shape);
  call.input.row = vector(memory.numbers(dtypes.bias, shape.cols), dtypes.bias);
  int32_t output = dtypes.result;
  if (pass != Pass::forward) {
    output = dtypes.x;
    call.order = call.factors = 1;
    call.factor[0].full = matrix(memory.numbers(dtypes.result, count), dtypes.result, shape);
  }
  call.output.full = matrix(memory.result(output, count), output, shape);
  if (pass == Pass::backward_dbias)
    call.output.row = vector(memory.result(dtypes.bias, shape.cols), dtypes.bias);
  return call;
}

struct Dropout {
  const char* kind;
  int rank;
  bool bias;
  bool residual;
  double p;
  Pass pass = Pass::forward;
};
constexpr Dropout kDropouts[] = {{"forward", 0, true, true, 0.1},
                                 {"backward_dbias", 0, true, false, 0.1, Pass::backward_dbias},
                                 {"backward", 1, false, false, 0.1, Pass::backward},
                                 {"forward_inference", 1, true, true, 0.0},
                                 {"forward_no_bias", 1, false, true, 0.1},
                                 {"forward_no_residual", 1, true, false, 0.1}};

AnyCall make_bias_dropout_add(Operands& memory, const Shape& shape, const Dtypes& dtypes,
                              const Dropout& dropout) {
  const int64_t count = shape.elements();
  const bool forward = dropout.pass == Pass::forward;
  const int32_t input = forward ? dtypes.x : dtypes.result;
  const int32_t output = forward ? dtypes.result : dtypes.x;
  bridge_bias_dropout_add call{};
  call.batch = 1;
  call.rows = shape.rows();
  call.cols = call.index_cols = shape.cols;
  call.threshold = std::llround(dropout.p * 0x1p32);
  call.factor = 1.0 / (1.0 - dropout.p);
  if (dropout.p > 0) {
    call.seed.data = static_cast<int64_t*>(memory.add({Values::integer, 0, 1}));
    call.offset.data = static_cast<int64_t*>(memory.add({Values::integer, 0, 1}));
  }
  call.input.full = matrix(memory.numbers(input, count), input, shape);
  if (forward && dropout.bias)
    call.input.row = vector(memory.numbers(dtypes.bias, shape.cols), dtypes.bias);
  if (dropout.residual)
    call.residual = matrix(memory.numbers(dtypes.result, count), dtypes.result, shape);
  call.output.full = matrix(memory.result(output, count), output, shape);
  if (dropout.pass == Pass::backward_dbias)
    call.output.row = vector(memory.result(dtypes.bias, shape.cols), dtypes.bias);
  return call;
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

std::vector<Variant> bias_gelu_variants() {
  // By bridge_gelu_form, the sooner to be timed first.
  constexpr const char* kForms[] = {"tanh", "none", "sigmoid"};
  constexpr std::pair<const char*, Pass> kKinds[] = {{"forward", Pass::forward},
                                                     {"backward_dbias", Pass::backward_dbias},
                                                     {"backward", Pass::backward}};
  std::vector<Variant> variants;
  for (int32_t form = 0; form < 3; ++form) {
    for (const auto& [name, pass] : kKinds) {
      auto add = [&, kind = std::string(name) + "." + kForms[form],
                  pass = pass](const Dtypes& dtypes) {
        variants.push_back({"bias_gelu", kind, dtypes.name, form + dtypes.rank, false,
                            dtype_bytes(dtypes.x),
                            [dtypes, form, pass](Operands& memory, const Shape& shape) {
                              return make_bias_gelu(memory, shape, dtypes, form, pass);
                            }});
      };
      for (const Dtypes& dtypes : kSingle) add(dtypes);
      add(kGeluBias);
    }
  }
  return variants;
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
    for (const Dtypes& dtypes : kSingle) {
      const int32_t dtype = dtypes.x;
      variants.push_back({"softmax", kind.name, dtypes.name, kind.rank + dtypes.rank,
                          kind.hidden != Hidden::nothing, dtype_bytes(dtype),
                          [dtype, kind](Operands& memory, const Shape& shape) {
                            return kind.backward
                                       ? make_softmax_backward(memory, shape, dtype,
                                                               kind.hidden == Hidden::causal)
                                       : make_softmax(memory, shape, dtype, kind.hidden);
                          }});
    }
  }
  return variants;
}

std::vector<Variant> bias_dropout_add_variants() {
  std::vector<Variant> variants;
  for (const Dropout& dropout : kDropouts) {
    auto add = [&](const Dtypes& dtypes) {
      const int32_t input = dropout.pass == Pass::forward ? dtypes.x : dtypes.result;
      variants.push_back({"bias_dropout_add", dropout.kind, dtypes.name, dropout.rank + dtypes.rank,
                          false, dtype_bytes(input),
                          [dtypes, dropout](Operands& memory, const Shape& shape) {
                            return make_bias_dropout_add(memory, shape, dtypes, dropout);
                          }});
    };
    for (const Dtypes& dtypes : kSingle) add(dtypes);
    if (dropout.bias) add(kDropoutBias);
    if (dropout.residual || dropout.pass != Pass::forward) add(kDropoutResidual);
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
  for (const auto& variants :
       {copy_variants(), bias_gelu_variants(), softmax_variants(), bias_dropout_add_variants()})
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
  return {"bias_gelu.forward.tanh.bfloat16.4096",   "bias_gelu.backward_dbias.tanh.bfloat16.4096",
          "bias_dropout_add.forward.bfloat16.4096", "softmax.forward_masked.bfloat16.1024",
          "softmax.forward.bfloat16.32768",         "softmax.backward.bfloat16.4096"};
}

}  // namespace bridge::speed
