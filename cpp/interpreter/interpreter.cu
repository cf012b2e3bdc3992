// Programs on CUDA: packs a program into the parameters of a kernel, enqueues it, and after it the
// kernels that sum over rows.
#include "program/interpreter.h"

#include <stdio.h>

#include <algorithm>
#include <new>

#include "cuda/last_error.h"
#include "drivers/columns/column_sum_tree.h"
#include "drivers/columns/column_sums_cuda.h"
#include "drivers/dtypes.h"
#include "generated/cuda/hand_written.h"
#include "generated/cuda/kernels.h"
#include "interpreter/chunk_sums.cuh"
#include "interpreter/packing.h"
#include "interpreter/program_kernel.cuh"
#include "program/interpreter_cuda.h"

namespace bridge::interpreter {
namespace {

constexpr const char* kName = "program";

struct Kernels {
  const char* (*run_few)(simt::Grid, size_t, void*, const ProgramParams<kFewBytes>&);
  const char* (*run_most)(simt::Grid, size_t, void*, const ProgramParams<kMostBytes>&);
  const char* (*add_chunks)(simt::Grid, size_t, void*, const ChunkSumsParams&);
  const char* (*load_few)();
  const char* (*load_most)();
  const char* (*load_chunks)();
};

template <class Real>
constexpr Kernels kernels_of() {
  return {
      simt::launch<ProgramKernel<Real, kFewBytes>>, simt::launch<ProgramKernel<Real, kMostBytes>>,
      simt::launch<ChunkSumsKernel<Real>>,          simt::load<ProgramKernel<Real, kFewBytes>>,
      simt::load<ProgramKernel<Real, kMostBytes>>,  simt::load<ChunkSumsKernel<Real>>};
}

constexpr Kernels kKernels[] = {kernels_of<float>(), kernels_of<double>()};

// A validated call.
struct Call {
  const bridge_program& call;
  View view;
  Counts counts;
  bool is_double;
  RowLeaves rows;
  int32_t column_sums;

  // Rows are distributed in whole leaves if the call is large enough, and always for verification.
  Call(const bridge_program& given, const View& checked, bool is_check = false)
      : call(given),
        view(checked),
        counts(counts_of(given)),
        is_double(interpreter::is_double(given)),
        rows{counts.batches * leaf_count(counts.rows), leaf_count(counts.rows), counts.rows,
             static_cast<int32_t>(kLeafRows)},
        column_sums(column_sum_count(checked)) {
    const bool are_many = rows.count >= simt::kManyLeaves && call.cols > 0 &&
                          counts.batches * counts.rows >= simt::kManyElements / call.cols;
    if (!are_many && !is_check) rows = {counts.batches * counts.rows, counts.rows, counts.rows, 1};
  }

  // The terms of a column sum: the sums of leaves, or single rows.
  columns::Leaves leaves() const { return {counts.batches, rows.of_batch, call.cols, is_double}; }
  columns::Leaves chunks(int64_t batches) const {
    return {batches, chunk_count(counts.rows), call.cols, is_double};
  }
  size_t lane_bytes() const {
    const auto numbers = static_cast<size_t>(rows.count * call.cols);
    return numbers * (is_double ? sizeof(double) : sizeof(float));
  }
  // Returns the bytes of the terms of all column sums, a multiple of 16.
  size_t all_lanes_bytes() const {
    return (static_cast<size_t>(column_sums) * lane_bytes() + 15) / 16 * 16;
  }
  // Returns the bytes of one column sum whose chunks are added by the row kernel, or by the next
  // one.
  size_t chunks_bytes() const {
    if (counts.rows <= kChunkRows) return 0;
    return columns::bytes_of(chunks(counts.batches)) + columns::tree_bytes(chunks(counts.batches));
  }
  size_t workspace_bytes() const {
    if (column_sums == 0 || rows.count == 0) return 0;
    const size_t tree = rows.rows > 1 ? columns::tree_bytes(leaves()) : chunks_bytes();
    return std::max(all_lanes_bytes() + tree, static_cast<size_t>(column_sums) * chunks_bytes());
  }
};

template <int kBytes>
const char* launch(const PackedProgram& packed,
                   const char* (*kernel)(simt::Grid, size_t, void*, const ProgramParams<kBytes>&),
                   void* stream) {
  ProgramParams<kBytes> params;
  params.program = packed.program;
  std::copy(packed.words.begin(), packed.words.end(), params.words);
  const int64_t teams = packed.program.threads / packed.program.team;
  simt::Grid grid;
  grid.x = std::min(columns::ceil_divide(packed.program.row_leaves.count, teams), simt::kMaxGridX);
  grid.threads = packed.program.threads;
  return kernel(grid, packed.shared_bytes, stream, params);
}

// Enqueues the column sums of `batches` batches, equally spaced in `output`. `values` is [batch,
// leaves or rows, cols].
const char* enqueue_sums(const Call& call, int64_t batches, const columns::Array& output,
                         const char* values, void* workspace, void* stream) {
  if (call.rows.rows > 1) {
    columns::Leaves leaves = call.leaves();
    leaves.batch = batches;
    return columns::enqueue_tree(leaves, values, output, workspace, stream);
  }
  const columns::Leaves chunks = call.chunks(batches);
  if (chunks.count > 0) {
    ChunkSumsParams params{};
    params.batch = batches;
    params.rows = call.counts.rows;
    params.cols = chunks.cols;
    params.values = values;
    params.sums = chunks.count > 1 ? workspace : nullptr;
    params.row = output;
    simt::Grid grid;
    grid.x = columns::ceil_divide(chunks.cols, ChunkSumsKernel<float>::kColumns);
    grid.y = std::min(batches * chunks.count, simt::kMaxGridYZ);
    const char* error = kKernels[call.is_double].add_chunks(grid, 0, stream, params);
    if (error != nullptr || chunks.count == 1) return error;
  }
  char* const tree = static_cast<char*>(workspace) + columns::bytes_of(chunks);
  return columns::enqueue_tree(chunks, workspace, output, tree, stream);
}

// Enqueues the column sums of one result. The last batch dimensions are summed together, as far as
// the result is equally spaced in them.
const char* enqueue_sums(const Call& call, const bridge_program_array& result, const char* values,
                         void* workspace, void* stream) {
  int64_t together = 1, stride = 0;
  int32_t d = call.call.batch_dims - 1;
  for (; d >= 0; --d) {
    const int64_t size = call.call.size[d];
    if (size == 1) continue;
    if (together > 1 && result.stride[d] != stride * together) break;
    if (together == 1) stride = result.stride[d];
    together *= size;
  }
  const int64_t step = static_cast<int64_t>(call.lane_bytes()) / call.counts.batches * together;
  for (int64_t group = 0; group < call.counts.batches / together; ++group) {
    int64_t offset = 0, rest = group;
    for (int32_t e = d; e >= 0; --e) {
      offset += rest % call.call.size[e] * result.stride[e];
      rest /= call.call.size[e];
    }
    const columns::Array output{
        static_cast<char*>(result.data) + offset * element_bytes(result.dtype), result.dtype,
        stride};
    const char* error =
        enqueue_sums(call, together, output, values + group * step, workspace, stream);
    if (error != nullptr) return error;
  }
  return nullptr;
}

// Returns the distance (numbers) in the workspace between the chunk sums of two column sums.
int64_t chunks_step(const Call& call) {
  return static_cast<int64_t>(call.chunks_bytes() /
                              (call.is_double ? sizeof(double) : sizeof(float)));
}

// Enqueues the column sums of a call with one batch, from the sums of chunks of rows in the
// workspace.
const char* enqueue_trees(const Call& call, void* workspace, void* stream) {
  const columns::Leaves leaves = call.chunks(1);
  const size_t step = call.chunks_bytes();
  char* chunks = static_cast<char*>(workspace);
  for (int32_t i = 0; i < call.call.results && step > 0; ++i) {
    if (call.view.result_role(i) != Role::row) continue;
    const bridge_program_array& result = call.call.result[i];
    const columns::Array output{result.data, result.dtype, 0};
    char* const tree = chunks + columns::bytes_of(leaves);
    const char* error = columns::enqueue_tree(leaves, chunks, output, tree, stream);
    if (error != nullptr) return error;
    chunks += step;
  }
  return nullptr;
}

// Enqueues all column sums. Their terms are at the beginning of the workspace.
const char* enqueue_all_sums(const Call& call, void* workspace, void* stream) {
  if (call.call.cols == 0) return nullptr;
  const char* values = static_cast<const char*>(workspace);
  char* const tree = static_cast<char*>(workspace) + call.all_lanes_bytes();
  for (int32_t i = 0; i < call.call.results; ++i) {
    if (call.view.result_role(i) != Role::row) continue;
    const char* error = enqueue_sums(call, call.call.result[i], values, tree, stream);
    if (error != nullptr) return error;
    values += call.lane_bytes();
  }
  return nullptr;
}

const char* enqueue_rows(const Call& call, PackedProgram& packed, void* workspace, void* stream) {
  const Kernels& kernels = kKernels[call.is_double];
  packed.program.sums = workspace;
  packed.program.row_leaves = call.rows;
  const bool is_short = packed.words.size() <= ProgramParams<kFewBytes>::kWords;
  return is_short ? launch(packed, kernels.run_few, stream)
                  : launch(packed, kernels.run_most, stream);
}

// Returns an address in the call's memory, which tells its device.
const void* memory_of(const bridge_program& call) {
  for (int32_t i = 0; i < call.results; ++i) {
    if (call.result[i].data != nullptr) return call.result[i].data;
  }
  return nullptr;
}

bridge_status fits(const bridge_program& call, const PackedProgram& packed) {
  constexpr int64_t kWords = ProgramParams<kMostBytes>::kWords;
  const auto words = static_cast<int64_t>(packed.words.size());
  if (words <= kWords) return BRIDGE_OK;
  const int64_t instructions = (words - kWords + kPackedWords - 1) / kPackedWords;
  snprintf(cuda::error_message(), cuda::kMessageBytes,
           "%s: its %lld words are too many for the parameters of a CUDA kernel, into which, with "
           "its constants and arrays, %lld fit",
           kName, static_cast<long long>(call.words),
           static_cast<long long>(call.words - instructions * kInstructionWords));
  return BRIDGE_INVALID_ARGUMENT;
}

// Packs the program into the parameters of a kernel.
bridge_status pack_checked(const Call& call, PackedProgram* packed) {
  if (!pack(call.view, call.call, call.is_double, packed)) {
    return cuda::fail(BRIDGE_INVALID_ARGUMENT, kName,
                      "its registers are too many for the shared memory of a CUDA kernel");
  }
  return fits(call.call, *packed);
}

bridge_status run_checked(const Call& call, void* workspace, size_t workspace_bytes, void* stream,
                          const GeneratedKernels* kernels) {
  if (call.counts.batches == 0 || (call.counts.rows == 0 && call.column_sums == 0))
    return BRIDGE_OK;
  if (!cuda::is_enough(kName, workspace, workspace_bytes, call.workspace_bytes()))
    return BRIDGE_INVALID_ARGUMENT;
  const char* error = nullptr;
  if (call.counts.rows > 0) {
    GeneratedLaunch launch{};
    if (kernels != nullptr && plan_generated(*kernels, call.call, call.view, call.rows, &launch)) {
      error = launch_generated(*kernels, launch, call.call, workspace, chunks_step(call), stream);
      if (error == nullptr && launch.kind == kColumnsAligned) {
        error = enqueue_trees(call, workspace, stream);
        return error == nullptr ? BRIDGE_OK : cuda::fail(BRIDGE_CUDA_ERROR, kName, error);
      }
    } else {
      PackedProgram packed;
      const bridge_status status = pack_checked(call, &packed);
      if (status != BRIDGE_OK) return status;
      error = enqueue_rows(call, packed, workspace, stream);
    }
  }
  if (error == nullptr) error = enqueue_all_sums(call, workspace, stream);
  return error == nullptr ? BRIDGE_OK : cuda::fail(BRIDGE_CUDA_ERROR, kName, error);
}

bridge_status run(const bridge_program& given, void* workspace, size_t workspace_bytes,
                  void* stream) {
  View view;
  bridge_status status = validate(given, &view, cuda::error_message(), cuda::kMessageBytes);
  if (status != BRIDGE_OK) return status;
  int entered = -1;
  if (const char* error = simt::make_current(memory_of(given), &entered))
    return cuda::fail(BRIDGE_CUDA_ERROR, kName, error);
  try {
    if (const HandKernel* const hand = hand_kernel(given, view)) {
      status = enqueue_by_hand(*hand, given, view, stream);
      simt::restore_current(entered);
      return status;
    }
    const GeneratedKernels* kernels = generated_kernels(given, simt::current_device());
    status = run_checked(Call(given, view), workspace, workspace_bytes, stream, kernels);
  } catch (const std::bad_alloc&) {
    status = cuda::fail(BRIDGE_OUT_OF_MEMORY, kName, "no memory for its words");
  }
  simt::restore_current(entered);
  return status;
}

}  // namespace

bridge_status run_program(const bridge_program& given, void* workspace, size_t workspace_bytes,
                          void* stream, const GeneratedKernels* kernels) {
  View view;
  const bridge_status status = validate(given, &view, cuda::error_message(), cuda::kMessageBytes);
  if (status != BRIDGE_OK) return status;
  const bool is_check = kernels != nullptr && !kernels->are_added;
  return run_checked(Call(given, view, is_check), workspace, workspace_bytes, stream, kernels);
}

const char* load_kernels() {
  for (const Kernels& kernels : kKernels) {
    for (const auto load : {kernels.load_few, kernels.load_most, kernels.load_chunks}) {
      if (const char* error = load()) return error;
    }
  }
  return columns::load_tree();
}

}  // namespace bridge::interpreter

extern "C" BRIDGE_EXPORT size_t bridge_program_cuda_workspace(const bridge_program* call) {
  using namespace bridge::interpreter;  // NOLINT
  char message[bridge::cuda::kMessageBytes];
  View view;
  try {
    if (call == nullptr || validate(*call, &view, message, sizeof message) != BRIDGE_OK) return 0;
  } catch (const std::bad_alloc&) {
    return 0;
  }
  return Call(*call, view).workspace_bytes();
}

extern "C" BRIDGE_EXPORT bridge_status bridge_program_cuda(const bridge_program* call,
                                                           void* workspace, size_t workspace_bytes,
                                                           void* stream) {
  using bridge::cuda::fail;
  if (call == nullptr) return fail(BRIDGE_INVALID_ARGUMENT, "program", "call is NULL");
  try {
    return bridge::interpreter::run(*call, workspace, workspace_bytes, stream);
  } catch (const std::bad_alloc&) {
    return fail(BRIDGE_OUT_OF_MEMORY, "program", "no memory for its words");
  }
}
