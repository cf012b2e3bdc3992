// Checks the CUDA kernels of softmax and its derivative, through their C functions, on the emulator
// or a GPU. Every result must have the bits of the definition (tests/cpp/softmax_reference.h) and,
// where it is linked, of the CPU kernel, for any order of a block's threads. Buffers have exactly
// the size of their operand, and the gaps of an output must keep their bytes.
//
//   softmax_simt [number of random calls [only]]     only: omits the systematic calls
#include <bridge/bridge.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "../cpp/softmax_reference.h"
#include "drivers/rows/row_operands.h"
#include "executor.h"
#include "ops/softmax/softmax_cuda.h"
#ifndef BRIDGE_EXECUTOR_GPU
#include "drivers/rows/row_nodes.cuh"
#endif

namespace {

namespace executor = bridge::executor;

std::mt19937_64 g_random(1);
int g_passed = 0;
int g_failed = 0;

int64_t below(int64_t limit) {
  return static_cast<int64_t>(g_random() % static_cast<uint64_t>(limit));
}
bool one_in(int64_t n) { return below(n) == 0; }

void expect(bool holds, const std::string& name, const char* what) {
  if (holds) {
    ++g_passed;
    return;
  }
  ++g_failed;
  if (g_failed <= 20) std::printf("FAILED %s: %s\n", name.c_str(), what);
}

// Layouts of the rows of an operand.
enum class Layout { dense, shifted, apart, gaps, vector_gaps, reversed, swapped, repeated, count };

Layout any_layout() { return static_cast<Layout>(below(static_cast<int64_t>(Layout::count))); }

struct Operand {
  executor::Memory memory;
  size_t bytes = 0;
  bridge_rows rows{};
};

// Makes an operand with `cols` elements of `bytes` bytes in each row of the space.
Operand make_operand(const bridge_row_space& space, int64_t cols, int64_t bytes, Layout layout) {
  const int64_t vector = 16 / bytes;
  int64_t row = cols, offset = 0;
  if (layout == Layout::shifted) offset = 1;
  if (layout == Layout::apart) offset = below(vector);
  if (layout == Layout::gaps) row += 1 + below(3);
  if (layout == Layout::vector_gaps) row = (row / vector + 2) * vector;
  Operand operand;
  int64_t order[BRIDGE_MAX_DIMS];
  for (int d = 0; d < space.dims; ++d) order[d] = space.dims - 1 - d;  // innermost first
  if (layout == Layout::swapped && space.dims > 1) std::swap(order[0], order[1]);
  int64_t extent = row;
  for (int i = 0; i < space.dims; ++i) {
    const int64_t d = order[i];
    operand.rows.stride[d] = extent;
    if (layout == Layout::repeated && (i == 0 || one_in(2))) {
      operand.rows.stride[d] = 0;
    } else {
      extent *= space.size[d];
    }
  }
  int64_t first = 0, last = cols;
  for (int d = 0; d < space.dims; ++d) {
    int64_t& stride = operand.rows.stride[d];
    last += stride * (space.size[d] - 1);
    if (layout != Layout::reversed || one_in(2)) continue;
    first += stride * (space.size[d] - 1);
    stride = -stride;
  }
  if (bridge::row_count(space) == 0) first = last = 0;
  operand.bytes = static_cast<size_t>((offset + last) * bytes);
  operand.memory = executor::allocate(operand.bytes);
  std::memset(operand.memory.get(), 0xA5, operand.bytes);
  operand.rows.data = operand.memory.get() + (offset + first) * bytes;
  return operand;
}

constexpr double kSpecial[] = {
    0.0, -0.0, 1e30, -1e30, 3e38, -3e38, -1e-40, 6e-8, 65504.0, -100.0, -__builtin_inf(), 700.0};

// The contents of a row.
enum class Content { ordinary, special, infinite, nan, count };

void fill(Operand& operand, int dtype, Content content) {
  std::normal_distribution<double> normal(0.0, 2.0);
  const int64_t count =
      static_cast<int64_t>(operand.bytes) / bridge::element_bytes(static_cast<int32_t>(dtype));
  for (int64_t i = 0; i < count; ++i) {
    double value = normal(g_random);
    if (content == Content::infinite) value = -__builtin_inf();
    if (content == Content::special && one_in(20)) {
      value = kSpecial[below(sizeof kSpecial / sizeof kSpecial[0])];
    }
    if (content == Content::nan && one_in(200)) value = one_in(2) ? NAN : __builtin_inf();
    bridge::reference::store(operand.memory.get(), dtype, i, value);
  }
}

// Fills with mostly small numbers, for second derivatives; some are exactly 0, like softmax's
// results.
void fill_probabilities(Operand& operand, int dtype, bool special) {
  const int64_t count =
      static_cast<int64_t>(operand.bytes) / bridge::element_bytes(static_cast<int32_t>(dtype));
  for (int64_t i = 0; i < count; ++i) {
    double value = static_cast<double>(below(1000)) / 4000;
    if (one_in(5)) value = one_in(2) ? 0.0 : -0.0;
    if (special && one_in(300)) value = NAN;
    bridge::reference::store(operand.memory.get(), dtype, i, value);
  }
}

void fill_mask(Operand& operand, bridge_mask* mask) {
  const int kind = static_cast<int>(below(5));
  const int64_t run = 1 + below(40);
  for (size_t i = 0; i < operand.bytes; ++i) {
    bool hidden = one_in(3);
    if (kind == 1) hidden = true;
    if (kind == 2) hidden = one_in(50);
    if (kind == 3) hidden = static_cast<int64_t>(i) / run % 2 == 0;  // whole vectors
    if (kind == 4) hidden = !one_in(50);
    operand.memory.get()[i] = static_cast<char>(hidden ? (one_in(2) ? 1 : 1 + below(255)) : 0);
  }
  mask->data = static_cast<const uint8_t*>(operand.rows.data);
  std::copy(operand.rows.stride, operand.rows.stride + BRIDGE_MAX_DIMS, mask->stride);
}

bridge_status run_cuda(const bridge_softmax& call, void* workspace, size_t bytes) {
  return bridge_softmax_cuda(&call, workspace, bytes, nullptr);
}
bridge_status run_cuda(const bridge_softmax_derivative& call, void* workspace, size_t bytes) {
  return bridge_softmax_derivative_cuda(&call, workspace, bytes, nullptr);
}
size_t workspace_of(const bridge_softmax& call) { return bridge_softmax_cuda_workspace(&call); }
size_t workspace_of(const bridge_softmax_derivative& call) {
  return bridge_softmax_derivative_cuda_workspace(&call);
}
#ifdef BRIDGE_SIMT_WITH_CPU
bridge_status run_cpu(const bridge_softmax& call) { return bridge_softmax_cpu(&call, nullptr); }
bridge_status run_cpu(const bridge_softmax_derivative& call) {
  return bridge_softmax_derivative_cpu(&call, nullptr);
}
#endif

// Returns the contents of the output's memory after `run`, and restores the former contents.
template <class Run>
std::vector<char> result_of(Operand& output, Run&& run) {
  const std::vector<char> before(output.memory.get(), output.memory.get() + output.bytes);
  run();
  std::vector<char> after(output.memory.get(), output.memory.get() + output.bytes);
  std::copy(before.begin(), before.end(), output.memory.get());
  return after;
}

template <class Call>
void check(const Call& call, Operand& output, const std::string& name) {
  const auto expected = result_of(output, [&] { bridge::reference::run(call); });
  executor::next_order();
  const auto found = result_of(output, [&] {
    const size_t bytes = workspace_of(call);
    executor::Memory workspace = executor::allocate(bytes);
    std::memset(workspace.get(), 0xff, bytes);
    void* const memory = bytes > 0 ? executor::placed(workspace) : nullptr;
    const bridge_status status = run_cuda(executor::placed(call), memory, bytes);
    if (status != BRIDGE_OK) expect(false, name, bridge_cuda_last_error());
    const std::string failure = executor::finish();
    if (!failure.empty()) expect(false, name, failure.c_str());
  });
  expect(found == expected, name, "the output differs from the definition");
#ifdef BRIDGE_SIMT_WITH_CPU
  const auto cpu = result_of(output, [&] {
    if (run_cpu(call) != BRIDGE_OK) expect(false, name, bridge_last_error());
  });
  expect(found == cpu, name, "the output differs from the CPU kernel");
#endif
}

struct Shape {
  std::vector<int64_t> size;
  int64_t cols;
};

bridge_row_space make_space(const Shape& shape, bool causal) {
  bridge_row_space space{};
  space.dims = static_cast<int32_t>(shape.size.size());
  space.causal = causal && space.dims > 0;
  std::copy(shape.size.begin(), shape.size.end(), space.size);
  space.cols = shape.cols;
  return space;
}

std::string name_of(const char* op, const bridge_row_space& space, int dtype, double scale,
                    const char* more) {
  std::string text = std::string(op) + " [";
  for (int d = 0; d < space.dims; ++d) text += std::to_string(space.size[d]) + ", ";
  text += std::to_string(space.cols) + "] dtype " + std::to_string(dtype) + " scale " +
          std::to_string(scale) + (space.causal ? " causal" : "") + more;
  return text;
}

constexpr double kScales[] = {1.0, 0.125, -0.5, 1.7, 0.0, -1e30, 1e-70};

enum class Mask { none, columns, rows };

void run_softmax(const Shape& shape, int dtype, Mask kind, bool causal, Layout layout,
                 Content content) {
  bridge_softmax call{};
  call.space = make_space(shape, causal);
  call.dtype = dtype;
  call.scale = one_in(2) ? kScales[0] : kScales[below(sizeof kScales / sizeof kScales[0])];
  const int64_t bytes = bridge::element_bytes(dtype);
  Operand x = make_operand(call.space, shape.cols, bytes, layout);
  fill(x, dtype, content);
  call.x = x.rows;
  Operand mask;
  if (kind != Mask::none) {
    const Layout mask_layout = one_in(2) ? Layout::repeated : one_in(2) ? layout : any_layout();
    mask = make_operand(call.space, kind == Mask::rows ? 1 : shape.cols, 1, mask_layout);
    fill_mask(mask, &call.mask);
    call.mask.col_stride = kind == Mask::rows ? 0 : 1;
  }
  const bool in_place = layout != Layout::repeated && one_in(3);
  const Layout output_layout = layout == Layout::repeated ? Layout::dense
                               : one_in(4)                ? Layout::gaps
                                                          : layout;
  Operand apart;
  if (!in_place) apart = make_operand(call.space, shape.cols, bytes, output_layout);
  Operand& output = in_place ? x : apart;
  call.output = output.rows;
  check(call, output,
        name_of("softmax", call.space, dtype, call.scale,
                kind == Mask::none      ? ""
                : kind == Mask::columns ? " mask"
                                        : " row mask") +
            " layout " + std::to_string(static_cast<int>(layout)) + (in_place ? " in place" : ""));
}

// terms 0 selects the Jacobian; scale NaN selects a random scale.
void run_derivative(const Shape& shape, int dtype, int terms, bool causal, Layout layout,
                    double scale = NAN) {
  bridge_softmax_derivative call{};
  call.space = make_space(shape, causal);
  call.dtype = dtype;
  call.terms = terms == 0 ? BRIDGE_SOFTMAX_PRODUCT | BRIDGE_SOFTMAX_U : terms;
  call.scale = scale == scale ? scale : kScales[below(sizeof kScales / sizeof kScales[0])];
  const int64_t bytes = bridge::element_bytes(dtype);
  std::vector<Operand> operands(terms == 0 ? 2 : 3);
  for (size_t i = 0; i < operands.size(); ++i) {
    const Layout own = one_in(5) ? Layout::repeated : layout;
    operands[i] = make_operand(call.space, shape.cols, bytes, own);
    if (i == 1) {
      fill(operands[i], dtype, one_in(4) ? Content::special : Content::ordinary);
    } else {
      fill_probabilities(operands[i], dtype, one_in(6));
    }
  }
  call.u = operands[0].rows;
  call.v = operands[1].rows;
  if (terms != 0) call.w = operands[2].rows;
  Operand apart;
  Operand* output = &operands[static_cast<size_t>(below(static_cast<int64_t>(operands.size())))];
  bool in_place = one_in(2);
  for (int d = 0; d < call.space.dims; ++d) {
    in_place = in_place && (output->rows.stride[d] != 0 || call.space.size[d] == 1);
  }
  if (!in_place) {
    apart = make_operand(call.space, shape.cols, bytes,
                         layout == Layout::repeated ? Layout::dense : layout);
    output = &apart;
  }
  call.output = output->rows;
  check(call, *output,
        name_of("derivative", call.space, dtype, call.scale, "") + " terms " +
            std::to_string(terms) + " layout " + std::to_string(static_cast<int>(layout)) +
            (in_place ? " in place" : ""));
}

// Sizes around the limits of vectors, groups of threads, warps, chunks (1024), blocks and segments.
constexpr int64_t kCols[] = {1,     2,     3,     7,     8,     9,     15,    16,    17,    31,
                             32,    33,    63,    64,    65,    127,   128,   129,   255,   256,
                             257,   384,   511,   512,   513,   768,   1000,  1023,  1024,  1025,
                             1536,  2047,  2048,  2049,  4095,  4096,  4097,  8191,  8192,  8193,
                             16383, 16384, 16385, 32760, 32767, 32768, 32769, 40960, 70001, 73728};

Shape shape_for(int64_t cols) {
  const int64_t most = cols <= 64 ? 20 : cols <= 1024 ? 5 : cols <= 4100 ? 3 : 1;
  if (one_in(12)) return {{}, cols};
  if (one_in(3)) return {{1 + below(most)}, cols};
  if (one_in(3)) return {{1 + below(3), 1, 1 + below(most)}, cols};
  return {{1 + below(2), 1 + below(most)}, cols};
}

// Chooses as many queries as keys, fewer (all see a prefix), or more (some see nothing).
Shape causal_shape_for(int64_t cols) {
  const int64_t most = cols <= 300 ? cols + 20 : 4;
  const int64_t queries = cols <= 300 && one_in(2) ? cols : 1 + below(most);
  if (one_in(2)) return {{queries}, cols};
  return {{cols <= 64 ? 2 : 1, queries}, cols};
}

void run_grid() {
  int turn = 0;
  for (const int64_t cols : kCols) {
    for (int dtype = 0; dtype < 4; ++dtype) {
      if (cols > 40000 && dtype % 2 == turn % 2) {
        ++turn;
        continue;
      }
      for (const Layout layout : {Layout::dense, any_layout()}) {
        const Content content = turn % 3 == 0
                                    ? static_cast<Content>(below(static_cast<int>(Content::count)))
                                    : Content::ordinary;
        const Mask mask = static_cast<Mask>(turn % 3);
        const bool causal = turn % 4 == 3;
        const Shape shape = causal ? causal_shape_for(cols) : shape_for(cols);
        run_softmax(shape, dtype, mask, causal, layout, content);
        run_derivative(shape, dtype, 0, causal, layout);
        if (cols <= 2100 || cols % 8191 == 0 || cols == 70001) {
          run_derivative(shape, dtype, 1 + static_cast<int>(below(15)), one_in(4) && causal,
                         layout);
        }
        ++turn;
      }
    }
  }
}

void run_random(int cases) {
  constexpr int64_t kCount = sizeof kCols / sizeof kCols[0];
  for (int i = 0; i < cases; ++i) {
    int64_t cols = one_in(2) ? 1 + below(300) : kCols[below(one_in(10) ? kCount : 34)];
    if (one_in(20)) cols = 1025 + below(9000);
    const bool causal = one_in(3);
    const Shape shape = causal ? causal_shape_for(cols) : shape_for(cols);
    const int dtype = static_cast<int>(below(4));
    const Layout layout = one_in(2) ? Layout::dense : any_layout();
    if (one_in(2)) {
      const auto content = static_cast<Content>(below(static_cast<int64_t>(Content::count)));
      run_softmax(shape, dtype, static_cast<Mask>(below(3)), causal, layout, content);
    } else {
      run_derivative(shape, dtype, one_in(3) ? 1 + static_cast<int>(below(15)) : 0, causal, layout);
    }
  }
}

// Runs more rows than the grid has room for, many dimensions, several batches of long rows, and
// empty calls.
void run_many_rows() {
  for (int dtype = 0; dtype < 4; ++dtype) {
    run_softmax({{40, 41}, 8}, dtype, Mask::columns, false, Layout::dense, Content::ordinary);
    run_softmax({{17}, 1032}, dtype, Mask::none, true, Layout::dense, Content::ordinary);
    // One block takes several rows, in every order of its threads.
    for (int order = 0; order < 4; ++order) {
      run_derivative({{17}, 1027}, dtype, 0, false, Layout::dense, 1.0);
      run_derivative({{15}, 1032}, dtype, 0, false, Layout::dense, 1.0);
    }
    run_derivative({{120, 2}, 5}, dtype, 14, false, Layout::dense);
    run_softmax({{2, 1, 3, 2, 1, 2, 3, 2}, 24}, dtype, Mask::columns, dtype % 2 == 0,
                Layout::repeated, Content::ordinary);
    run_derivative({{2, 1, 3, 2, 1, 2, 3, 2}, 40}, dtype, 0, dtype % 2 == 1, Layout::gaps);
    run_softmax({{0, 3}, 5}, dtype, Mask::none, false, Layout::dense, Content::ordinary);
    run_softmax({{3}, 0}, dtype, Mask::none, false, Layout::dense, Content::ordinary);
    run_derivative({{3, 0}, 7}, dtype, 0, false, Layout::dense);
  }
  run_softmax({{5}, 33000}, BRIDGE_FLOAT32, Mask::columns, true, Layout::dense, Content::ordinary);
  run_softmax({{6}, 40001}, BRIDGE_BFLOAT16, Mask::none, false, Layout::gaps, Content::special);
  run_derivative({{5}, 33003}, BRIDGE_FLOAT16, 0, true, Layout::dense);
  run_derivative({{5}, 40968}, BRIDGE_BFLOAT16, 0, false, Layout::dense);
  run_derivative({{4}, 8200}, BRIDGE_FLOAT64, 0, true, Layout::dense);
  // Rows too long for the emulator's clusters.
  run_softmax({{5}, 66000}, BRIDGE_FLOAT32, Mask::columns, true, Layout::dense, Content::ordinary);
  run_softmax({{6}, 66001}, BRIDGE_BFLOAT16, Mask::none, false, Layout::gaps, Content::special);
  run_derivative({{5}, 66003}, BRIDGE_FLOAT16, 0, true, Layout::dense);
  run_derivative({{7}, 9001}, BRIDGE_FLOAT64, 15, true, Layout::dense);
}

#ifndef BRIDGE_EXECUTOR_GPU
// Rows of millions of columns have more levels of nodes, but are too long to run here in full.
template <class Op, class Real>
void run_levels(int64_t rows, int64_t segments, const char* name) {
  namespace rows_of = bridge::rows;
  const size_t bytes = rows_of::node_bytes(rows, segments, sizeof(Real));
  executor::Memory memory = executor::allocate(bytes);
  Real* leaves = reinterpret_cast<Real*>(memory.get());
  std::normal_distribution<double> normal(0.0, 1.0);
  for (int64_t i = 0; i < rows * segments; ++i) leaves[i] = static_cast<Real>(normal(g_random));
  executor::next_order();
  const rows_of::Nodes nodes = rows_of::nodes_at(memory.get(), rows, segments, sizeof(Real));
  expect(rows_of::enqueue_levels<Op, Real>(nodes, rows, segments, nullptr) == nullptr, name,
         "the levels are enqueued");
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<Real> level(leaves + row * segments, leaves + (row + 1) * segments);
    while (static_cast<int64_t>(level.size()) > nodes.root_count) {
      // A level of nodes is ten levels of the tree.
      for (int pairs = 0; pairs < 10; ++pairs) {
        std::vector<Real> parents;
        for (size_t i = 0; i < level.size(); i += 2) {
          parents.push_back(i + 1 < level.size() ? Op::of(level[i], level[i + 1]) : level[i]);
        }
        level = parents;
      }
    }
    const Real* roots = static_cast<const Real*>(nodes.roots) + row * nodes.root_count;
    expect(std::equal(level.begin(), level.end(), roots, roots + nodes.root_count), name,
           "the roots are those of the tree");
  }
  const std::string failure = executor::finish();
  expect(failure.empty(), name, failure.c_str());
}
#endif

void run_refusals() {
  std::vector<float> row(40000, 1.0f);
  bridge_softmax call{};
  call.space.cols = 40000;
  call.dtype = BRIDGE_FLOAT32;
  call.scale = 1;
  call.x.data = row.data();
  call.output.data = row.data();
  const size_t needed = bridge_softmax_cuda_workspace(&call);
  expect(needed == 32 + 48, "workspace",
         "five keys and five sums in two parts, in units of 16 bytes");
  alignas(16) char workspace[64];
  expect(bridge_softmax_cuda(&call, workspace, needed - 1, nullptr) == BRIDGE_INVALID_ARGUMENT,
         "workspace", "too small a workspace is refused");
  expect(bridge_softmax_cuda(&call, nullptr, needed, nullptr) == BRIDGE_INVALID_ARGUMENT,
         "workspace", "no workspace is refused");
  expect(bridge_softmax_cuda(nullptr, nullptr, 0, nullptr) == BRIDGE_INVALID_ARGUMENT, "call",
         "NULL is refused");
  call.space.dims = BRIDGE_MAX_DIMS + 1;
  expect(bridge_softmax_cuda(&call, workspace, needed, nullptr) == BRIDGE_INVALID_ARGUMENT &&
             std::strstr(bridge_cuda_last_error(), "dims") != nullptr,
         "dims", "too many dimensions are refused by name");
  bridge_softmax_derivative derivative{};
  expect(
      bridge_softmax_derivative_cuda(&derivative, nullptr, 0, nullptr) == BRIDGE_INVALID_ARGUMENT &&
          std::strstr(bridge_cuda_last_error(), "terms") != nullptr,
      "terms", "no terms are refused by name");
  expect(bridge_softmax_derivative_cuda(nullptr, nullptr, 0, nullptr) == BRIDGE_INVALID_ARGUMENT,
         "call", "NULL is refused");
#ifndef BRIDGE_EXECUTOR_GPU
  expect(bridge::softmax::load_kernels() == nullptr, "load_kernels", "every kernel loads");
  expect(bridge::softmax_derivative::load_kernels() == nullptr, "load_kernels",
         "every kernel loads");
#endif
}

}  // namespace

int main(int argc, char** argv) {
  const int random_calls = argc > 1 ? std::atoi(argv[1]) : 400;
  if (argc <= 2) {
    run_grid();
    run_many_rows();
    run_refusals();
#ifndef BRIDGE_EXECUTOR_GPU
    run_levels<bridge::rows::Sum, float>(3, 1025, "levels of sums");
    run_levels<bridge::rows::Sum, double>(2, 5000, "levels of sums, float64");
    run_levels<bridge::rows::Largest, float>(2, 3333, "levels of maxima");
#endif
  }
  run_random(random_calls);
  std::printf("%d passed, %d failed\n", g_passed, g_failed);
  return g_failed == 0 ? 0 : 1;
}
