// Convolutions on the CPU: checks a call, makes products of it and divides them among threads.
#include <algorithm>
#include <atomic>
#include <memory>
#include <new>

#include "convolution/as_product.h"
#include "convolution/call.h"
#include "convolution/channels_last.h"
#include "convolution/kernels.h"
#include "convolution/padded.h"
#include "convolution/problem.h"
#include "cpu/error.h"
#include "cpu/parallel.h"
#include "products/product.h"

namespace bridge {
namespace {

using convolution::Depthwise;
using convolution::Kernels;
using convolution::Part;
using convolution::Planes;
using convolution::Problem;

constexpr PerIsa<ConvolutionTables> kTables = BRIDGE_PER_ISA(convolution_tables);
// Most rows and columns of a part: its packed panels and waiting sums stay in a cache.
constexpr int64_t kMostCols = 1024, kMostDeepRows = 512, kMostDeepCols = 512;
constexpr size_t kMostScratch = size_t{8} << 20;         // bytes of a thread
constexpr int64_t kMostChannels = 256, kLeastRows = 64;  // of a part of a depthwise call
// Fewest multiplications for which a second thread is worth waking.
constexpr double kLeastWork = 1 << 20;

int64_t parts_of(int64_t size, int64_t most) { return size <= most ? 1 : (size + most - 1) / most; }

struct Grid {
  int64_t row_parts, col_parts, rows, cols;  // the last part may be smaller
  size_t bytes;                              // of scratch memory

  Grid(const Problem& problem, const Kernels& kernels, int64_t given_row_parts,
       int64_t given_col_parts) {
    const auto cut = [](int64_t size, int64_t parts, int64_t step) {
      const int64_t each = (size + parts - 1) / parts;
      return (each + step - 1) / step * step;
    };
    rows = cut(problem.row_count, given_row_parts, kernels.tile_rows);
    cols = cut(problem.col_count, given_col_parts, kernels.tile_cols);
    row_parts = (problem.row_count + rows - 1) / rows;
    col_parts = (problem.col_count + cols - 1) / cols;
    bytes = kernels.scratch_bytes(problem, std::min(rows, problem.row_count),
                                  std::min(cols, problem.col_count));
  }
};

Grid grid_of(const Problem& problem, const Kernels& kernels, int64_t batches, int64_t threads) {
  const bool is_deep = problem.term_count > products::kDeep;
  int64_t row_parts = is_deep ? parts_of(problem.row_count, kMostDeepRows) : 1;
  int64_t col_parts = parts_of(problem.col_count, is_deep ? kMostDeepCols : kMostCols);
  // Parts for all threads, and a multiple of them if they are few, so that all end together.
  const auto parts = [&] { return batches * row_parts * col_parts; };
  for (;;) {
    const bool has_enough = parts() >= 4 * threads || parts() % threads == 0;
    const Grid grid(problem, kernels, row_parts, col_parts);
    if (has_enough && grid.bytes <= kMostScratch) return grid;
    const bool can_split_rows = grid.rows > kernels.tile_rows;
    const bool can_split_cols = grid.cols > kernels.tile_cols;
    if (!can_split_rows && !can_split_cols) return grid;
    // A part packs its rows and its columns: the longer side is cut.
    if (can_split_rows && (!can_split_cols || grid.rows >= grid.cols))
      ++row_parts;
    else
      ++col_parts;
  }
}

// Vectors of a tile go along columns: they write runs of memory, if the channels fill them.
Problem oriented(const Problem& problem, const Kernels& kernels) {
  const int64_t vectors = (problem.col_count + kernels.tile_cols - 1) / kernels.tile_cols;
  const bool are_full = 4 * problem.col_count >= 3 * vectors * kernels.tile_cols;
  const int last = convolution::kAxisDims - 1;
  const bool has_lines = problem.cols.stride[last] == 1;
  const bool has_row_lines = problem.rows.stride[last] == 1 && problem.rows.size[last] > 1;
  return are_full && (has_lines || !has_row_lines) ? problem : convolution::transposed(problem);
}

struct Runner {
  const bridge_convolution& call;
  const bridge_executor* executor;
  int64_t threads;
  const Kernels& kernels;

  bridge_status run_class(int64_t number) const {
    if (convolution::is_depthwise(call)) {
      const Depthwise all = convolution::depthwise_of(call, number);
      const bool has_work = all.problem.row_count > 0 && all.problem.term_count > 0;
      if (has_work && all.a_stride == 1) return run_channelwise(all);
      const int64_t most = kernels.channel_block, bytes = convolution::bytes_of_block(call, most);
      if (has_work && call.kind == BRIDGE_CONVOLUTION_WEIGHT && 2 * call.groups > most &&
          bytes <= static_cast<int64_t>(kMostScratch))
        return run_blocks(static_cast<size_t>(bytes));
      // Gradients of weights have no planes, and perhaps no class of places.
      if (has_work && call.kind != BRIDGE_CONVOLUTION_WEIGHT) {
        const Planes planes = convolution::planes_of(call, number);
        if (convolution::has_planes(call, planes, products::kProductLeaf))
          return each_unit(
              planes.images * planes.channels, kernels.planes_bytes(planes),
              [&](int64_t unit, void* scratch) { kernels.run_plane(planes, unit, scratch); });
      }
    }
    const Problem given = convolution::problem_of(call, number, 0);
    bridge_product product;
    if (call.groups == 1 && convolution::as_product(given, &product))
      return bridge_product_cpu(&product, executor);
    const Problem first = oriented(given, kernels);
    if (first.row_count == 0 || first.col_count == 0) return BRIDGE_OK;
    const Grid grid = grid_of(first, kernels, call.groups, threads);
    const int64_t parts = grid.row_parts * grid.col_parts;
    return each_unit(call.groups * parts, grid.bytes, [&](int64_t unit, void* scratch) {
      const Problem problem =
          oriented(convolution::problem_of(call, number, unit / parts), kernels);
      const int64_t part = unit % parts;
      const int64_t row = part / grid.col_parts * grid.rows;
      const int64_t col = part % grid.col_parts * grid.cols;
      kernels.run(problem,
                  {row, std::min(grid.rows, problem.row_count - row), col,
                   std::min(grid.cols, problem.col_count - col)},
                  scratch);
    });
  }

  // The gradient of weights, a block of channels at a time, from copies of x and y.
  bridge_status run_blocks(size_t bytes) const {
    const int64_t most = kernels.channel_block, blocks = (call.groups + most - 1) / most;
    const Depthwise whole = convolution::depthwise_of(call, 0);
    const size_t panels = kernels.channelwise_bytes(whole, most);
    const size_t before = (bytes + 63) / 64 * 64;
    return each_unit(blocks, before + panels, [&](int64_t unit, void* scratch) {
      const int64_t first = unit * most, channels = std::min<int64_t>(most, call.groups - first);
      char* const memory = static_cast<char*>(scratch);
      const bridge_convolution own = convolution::with_channels_last(call, first, channels, memory);
      const Depthwise all = convolution::depthwise_of(own, 0);
      kernels.run_channelwise(all, {0, all.problem.row_count, 0, channels}, memory + before);
    });
  }

  // Channels are cut first: a part packs the weights of its channels.
  bridge_status run_channelwise(const Depthwise& all) const {
    const int64_t block = kernels.channel_block, wanted = threads == 1 ? 1 : 4 * threads;
    const int64_t blocks = (all.channels + block - 1) / block;
    const int64_t most = std::max<int64_t>(1, kMostChannels / block);
    const int64_t col_parts = std::max((blocks + most - 1) / most, std::min(blocks, wanted));
    const int64_t cols = (blocks + col_parts - 1) / col_parts * block;
    const int64_t col_count = (all.channels + cols - 1) / cols;
    const int64_t row_parts = std::max<int64_t>(
        1, std::min((wanted + col_count - 1) / col_count, all.problem.row_count / kLeastRows));
    const int64_t rows = (all.problem.row_count + row_parts - 1) / row_parts;
    const int64_t row_count = (all.problem.row_count + rows - 1) / rows;
    return each_unit(row_count * col_count, kernels.channelwise_bytes(all, cols),
                     [&](int64_t unit, void* scratch) {
                       const int64_t row = unit / col_count * rows, col = unit % col_count * cols;
                       kernels.run_channelwise(all,
                                               {row, std::min(rows, all.problem.row_count - row),
                                                col, std::min(cols, all.channels - col)},
                                               scratch);
                     });
  }

  // Runs body(unit, scratch) for all units.
  template <class Body>
  bridge_status each_unit(int64_t units, size_t bytes, const Body& body) const {
    const int64_t tasks = std::min(units, threads == 1 ? 1 : 4 * threads);
    std::atomic<bool> failed{false};
    parallel_for(threads == 1 ? nullptr : executor, tasks, [&](int64_t task) {
      const std::unique_ptr<char[]> scratch(new (std::nothrow) char[bytes]);
      if (scratch == nullptr) {
        failed = true;
        return;
      }
      const int64_t end = part_begin(units, tasks, task + 1);
      for (int64_t unit = part_begin(units, tasks, task); unit < end; ++unit)
        body(unit, scratch.get());
    });
    if (!failed) return BRIDGE_OK;
    return fail(BRIDGE_OUT_OF_MEMORY, "convolution: no memory for its panels");
  }
};

// The multiplications of a call, and its results.
double work_of(const bridge_convolution& call) {
  double places = static_cast<double>(call.images), inputs = places;
  double positions = static_cast<double>(call.in_channels / call.groups);
  for (int d = 0; d < convolution::kSpace; ++d) {
    places *= static_cast<double>(call.out[d]);
    inputs *= static_cast<double>(call.in[d]);
    positions *= static_cast<double>(call.kernel[d]);
  }
  return static_cast<double>(call.out_channels) * (places + 1) * (positions + 1) +
         inputs * static_cast<double>(call.in_channels);
}

// Runs a call for values or weights on copies of x, at most `images` images at a time.
bridge_status run_on_copies(const Runner& given, const convolution::Padded& padded,
                            int64_t images) {
  const bridge_convolution& call = given.call;
  const size_t bytes = static_cast<size_t>(padded.bytes(call)) * static_cast<size_t>(images);
  const std::unique_ptr<char[]> copy(new (std::nothrow) char[bytes]);
  if (copy == nullptr) return fail(BRIDGE_OUT_OF_MEMORY, "convolution: no memory for its images");
  for (int64_t first = 0; first < call.images; first += images) {
    bridge_convolution part = call;
    part.images = std::min(images, call.images - first);
    part.x.data = convolution::place_in(call.x, first * call.x.batch_stride);
    if (call.kind == BRIDGE_CONVOLUTION_FORWARD)
      part.y.data = convolution::place_in(call.y, first * call.y.batch_stride);
    const int64_t lines = part.images * padded.size[0] * padded.size[1];
    const int64_t tasks = std::min(lines, given.threads == 1 ? 1 : 4 * given.threads);
    parallel_for(given.threads == 1 ? nullptr : given.executor, tasks, [&](int64_t task) {
      const int64_t end = part_begin(lines, tasks, task + 1);
      for (int64_t line = part_begin(lines, tasks, task); line < end; ++line)
        convolution::copy_line(part, padded, line, copy.get());
    });
    const bridge_convolution own = convolution::on_copy(part, padded, copy.get());
    const bridge_status status =
        Runner{own, given.executor, given.threads, given.kernels}.run_class(0);
    if (status != BRIDGE_OK) return status;
  }
  return BRIDGE_OK;
}

bridge_status run(const bridge_convolution& call, const bridge_executor* executor) {
  if (const char* wrong = convolution::wrong_with(call))
    return fail(BRIDGE_INVALID_ARGUMENT, "convolution: %s", wrong);
  if (call.tensor_cores != 0)
    return fail(BRIDGE_INVALID_ARGUMENT, "convolution: tensor cores on a CPU");
  const int64_t classes = convolution::classes_of(call);
  const double work = work_of(call);
  const int isa = isa_for(static_cast<int64_t>(std::min(work, 1e18)));
  if (isa < 0) return BRIDGE_INVALID_ARGUMENT;
  const int64_t most = executor == nullptr || executor->run == nullptr ? 1 : executor->threads;
  const auto worth = static_cast<int64_t>(std::min(work / kLeastWork, 1e6));
  const int64_t threads = std::max<int64_t>(1, std::min(most, worth));
  const Kernels& kernels = kTables.tables[isa]->of[convolution::is_double(call)];
  if (convolution::gains_by_copy(call)) {
    const convolution::Padded padded(call);
    const double most_bytes = static_cast<double>(kMostScratch) * static_cast<double>(threads);
    const double images =
        std::min(static_cast<double>(call.images), most_bytes / padded.bytes(call));
    const bool has_all = images == static_cast<double>(call.images);
    if (has_all || (images >= 1 && call.kind == BRIDGE_CONVOLUTION_FORWARD))
      return run_on_copies({call, executor, threads, kernels}, padded,
                           static_cast<int64_t>(images));
  }
  const Runner runner{call, executor, threads, kernels};
  for (int64_t number = 0; number < classes; ++number) {
    const bridge_status status = runner.run_class(number);
    if (status != BRIDGE_OK) return status;
  }
  return BRIDGE_OK;
}

}  // namespace
}  // namespace bridge

extern "C" bridge_status bridge_convolution_cpu(const bridge_convolution* call,
                                                const bridge_executor* executor) {
  if (call == nullptr)
    return bridge::fail(BRIDGE_INVALID_ARGUMENT, "convolution: the call is null");
  return bridge::run(*call, executor);
}
