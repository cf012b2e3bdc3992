// Gradients of embeddings on the CPU: checks a call and divides its result among threads.
#include "embedding/embedding.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>

#include "cpu/error.h"
#include "cpu/parallel.h"
#include "drivers/dtypes.h"

namespace bridge {
namespace {

using embedding::index_at;
using embedding::Part;

constexpr PerIsa<EmbeddingTable> kTables = BRIDGE_PER_ISA(embedding_table);
// Most columns of a part, whose sums stay in a cache, and the fewest that are worth a part.
constexpr int64_t kMostCols = 1024, kFewestCols = 64;

const char* wrong_with(const bridge_embedding_gradient& call) {
  if (call.batches < 0 || call.count < 0 || call.rows < 0 || call.cols < 0)
    return "a negative size";
  if (!is_floating(call.dtype)) return "a dtype that is not floating";
  if (call.index_dtype != BRIDGE_INT32 && call.index_dtype != BRIDGE_INT64)
    return "indices that are neither int32 nor int64";
  const auto is_aligned = [](const void* data, int32_t dtype) {
    return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(element_bytes(dtype)) == 0;
  };
  if (!is_aligned(call.ids, call.index_dtype) || !is_aligned(call.terms, call.dtype) ||
      !is_aligned(call.result, call.dtype))
    return "an array that is not aligned to its elements";
  return nullptr;
}

// The places of each id, in each batch.
struct Places {
  std::unique_ptr<int64_t[]> starts;  // [batches, rows + 2], the last of them unused
  std::unique_ptr<int64_t[]> order;   // [batches, count]

  static Places of(const bridge_embedding_gradient& call) {
    const auto numbers = [&](int64_t each) {
      return std::unique_ptr<int64_t[]>(new (std::nothrow)
                                            int64_t[static_cast<size_t>(call.batches * each)]);
    };
    return {numbers(call.rows + 2), numbers(call.count)};
  }
  // Sorts the places of a batch by their ids. Equal ids keep their order.
  void sort(const bridge_embedding_gradient& call, int64_t batch) const {
    int64_t* const start = starts.get() + batch * (call.rows + 2);
    int64_t* const place = order.get() + batch * call.count;
    const auto for_ids = [&](const auto& use) {
      for (int64_t i = 0; i < call.count; ++i) {
        const int64_t id = index_at(call.ids, call.index_dtype, batch * call.count + i);
        if (id >= 0 && id < call.rows) use(id, i);
      }
    };
    std::fill(start, start + call.rows + 2, 0);
    for_ids([&](int64_t id, int64_t) { ++start[id + 2]; });
    for (int64_t row = 1; row < call.rows; ++row) start[row + 1] += start[row];
    for_ids([&](int64_t id, int64_t i) { place[start[id + 1]++] = i; });
  }
};

// The result in rows and columns. Parts of rows of a batch have about as much work each: a row
// counts as one place, because it is written.
struct Division {
  const bridge_embedding_gradient& call;
  const Places& places;
  int64_t row_parts, col_parts;

  const int64_t* starts(int64_t batch) const {
    return places.starts.get() + batch * (call.rows + 2);
  }
  int64_t first_row(int64_t batch, int64_t part) const {
    const int64_t work = part_begin(call.rows + call.count, row_parts, part);
    int64_t begin = 0, end = call.rows;
    while (begin < end) {
      const int64_t row = begin + (end - begin) / 2;
      if (row + starts(batch)[row] < work)
        begin = row + 1;
      else
        end = row;
    }
    return part == row_parts ? call.rows : begin;
  }
  // True if one id has so many places that its part takes twice as long as others.
  bool is_uneven() const {
    const int64_t most = 2 * ((call.rows + call.count) / row_parts + 1);
    for (int64_t batch = 0; batch < call.batches; ++batch) {
      int64_t before = 0;
      for (int64_t part = 1; part <= row_parts; ++part) {
        const int64_t row = first_row(batch, part), work = row + starts(batch)[row];
        if (work - before > most) return true;
        before = work;
      }
    }
    return false;
  }
  Part part(int64_t number) const {
    const int64_t col_part = number % col_parts, row_part = number / col_parts % row_parts;
    const int64_t batch = number / (col_parts * row_parts);
    const int64_t col = part_begin(call.cols, col_parts, col_part);
    const int64_t cols = part_begin(call.cols, col_parts, col_part + 1) - col;
    const int64_t bytes = element_bytes(call.dtype);
    return {&call,
            starts(batch),
            places.order.get() + batch * call.count,
            static_cast<const char*>(call.terms) + (batch * call.count * call.cols + col) * bytes,
            static_cast<char*>(call.result) + (batch * call.rows * call.cols + col) * bytes,
            first_row(batch, row_part),
            first_row(batch, row_part + 1),
            cols};
  }
};

bridge_status run(const bridge_embedding_gradient& call, const bridge_executor* executor) {
  if (const char* wrong = wrong_with(call))
    return fail(BRIDGE_INVALID_ARGUMENT, "embedding: %s", wrong);
  if (call.batches == 0 || call.rows == 0 || call.cols == 0) return BRIDGE_OK;
  const int64_t elements = call.batches * (call.rows + call.count) * call.cols;
  const EmbeddingTable* const table = kTables.for_elements(elements);
  if (table == nullptr) return BRIDGE_INVALID_ARGUMENT;
  constexpr const char* kNoMemory = "embedding: no memory for its places and sums";
  const Places places = Places::of(call);
  if (places.starts == nullptr || places.order == nullptr)
    return fail(BRIDGE_OUT_OF_MEMORY, "%s", kNoMemory);
  const int64_t wanted = parts_for(elements, executor);
  parallel_for_parts(executor, call.batches, wanted,
                     [&](int64_t batch) { places.sort(call, batch); });
  Division division{call, places, (wanted + call.batches - 1) / call.batches,
                    (call.cols + kMostCols - 1) / kMostCols};
  if (division.row_parts > 1 && division.is_uneven())
    division.col_parts = std::max(division.col_parts, std::min(wanted, call.cols / kFewestCols));
  const int64_t parts = call.batches * division.row_parts * division.col_parts;
  const int64_t tasks = std::min(parts, wanted);
  const size_t bytes = table->scratch_bytes(call.count, std::min(call.cols, kMostCols));
  std::atomic<bool> failed{false};
  parallel_for(executor, tasks, [&](int64_t task) {
    const std::unique_ptr<char[]> scratch(new (std::nothrow) char[bytes]);
    if (scratch == nullptr) {
      failed = true;
      return;
    }
    const int64_t end = part_begin(parts, tasks, task + 1);
    for (int64_t i = part_begin(parts, tasks, task); i < end; ++i)
      table->run[call.dtype](division.part(i), scratch.get());
  });
  return failed ? fail(BRIDGE_OUT_OF_MEMORY, "%s", kNoMemory) : BRIDGE_OK;
}

}  // namespace
}  // namespace bridge

extern "C" bridge_status bridge_embedding_gradient_cpu(const bridge_embedding_gradient* call,
                                                       const bridge_executor* executor) {
  if (call == nullptr) return bridge::fail(BRIDGE_INVALID_ARGUMENT, "embedding: the call is null");
  return bridge::run(*call, executor);
}
