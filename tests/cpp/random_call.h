// Calls of programs on random arrays, in any layout that their roles allow.
#ifndef BRIDGE_TESTS_RANDOM_CALL_H_
#define BRIDGE_TESTS_RANDOM_CALL_H_

#include <bridge/bridge.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "drivers/integers.h"
#include "program/program.h"
#include "random_arrays.h"

namespace bridge::random {

using namespace interpreter;  // NOLINT: the words of a program

// A call with its descriptors. The words of the program must outlive it.
struct ProgramCall {
  bridge_program call{};
  std::vector<bridge_program_array> operands, results;
  std::string text;

  ProgramCall() = default;
  ProgramCall(const ProgramCall&) = delete;
  ProgramCall& operator=(const ProgramCall&) = delete;
};

// Numbers of columns around the steps of vectors, chunks and their parts.
inline const int64_t kCols[] = {0,    1,    2,    3,    7,    8,    15,  16,  31,  32,
                                33,   64,   100,  127,  128,  129,  255, 256, 257, 300,
                                511,  512,  513,  600,  767,  768,  769, 900, 999, 1023,
                                1024, 1025, 1100, 1537, 2048, 2500, 3073};

inline View view_of(const std::vector<int32_t>& words) {
  View view;
  const char* why = nullptr;
  if (!bridge::interpreter::read(words.data(), static_cast<int64_t>(words.size()), &view, &why)) {
    check(false, std::string("a program that was written is refused: ") + why);
    exit(1);
  }
  return view;
}

using Allocate = std::function<char*(int64_t bytes)>;

// Mostly numbers without extremes, because with extremes most sums are NaN. Some arrays have few
// different numbers, so that several are the largest, or only zeros.
inline void fill_reals(char* data, int32_t dtype, int64_t count) {
  const int64_t kind = pick(10);
  if (kind >= 7) fill(data, dtype, count);
  std::normal_distribution<double> normal(0.0, 1.5);
  for (int64_t i = 0; i < count; ++i) {
    if (kind < 4) reference::store(data, dtype, i, normal(random_bits));
    if (kind == 4 || kind == 5) reference::store(data, dtype, i, static_cast<double>(pick(4) - 2));
    if (kind == 6) reference::store(data, dtype, i, chance(98) ? -0.0 : 0.0);
    const int64_t bytes = element_bytes(dtype);
    if (kind == 9 && pick(60) == 0) {  // a NaN with another payload
      memset(data + i * bytes, 0xFF, static_cast<size_t>(bytes));
    }
  }
}

inline void fill_integers(char* data, int32_t dtype, int64_t count, int64_t cols) {
  const int64_t bytes = element_bytes(dtype);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t value = chance(80) ? pick(cols + 6) - 3 : static_cast<int64_t>(random_bits());
    memcpy(data + i * bytes, &value, static_cast<size_t>(bytes));
  }
}

// Makes an array of any layout that the role allows, in memory of exactly its extent.
// `block`: the columns of a block, for an array with a number for each; else 0.
inline bridge_program_array make_array(Role role, bool pairs, int32_t block, bool is_result,
                                       int32_t dtype, const bridge_program& call,
                                       const Allocate& allocate) {
  bridge_program_array array{};
  array.dtype = dtype;
  const bool has_columns = role != Role::per_row && role != Role::label && role != Role::integer;
  const bool of_batch = role == Role::integer || role == Role::row;
  const bool broadcasts = role == Role::table || role == Role::mask;
  const int64_t width = role == Role::halves ? 2 * call.cols
                        : block > 0          ? call.cols / block
                                             : call.cols;
  struct Dimension {
    int64_t size;
    int64_t* stride;
    bool columns;
  };
  std::vector<Dimension> dimensions;
  if (has_columns) dimensions.push_back({width, &array.col_stride, true});
  for (int32_t d = call.dims - 1; d >= 0; --d) {
    if (!of_batch || d < call.batch_dims)
      dimensions.push_back({call.size[d], &array.stride[d], false});
  }
  const bool adjacent = is_result && role == Role::row;
  if (chance(20) && !adjacent) std::shuffle(dimensions.begin(), dimensions.end(), random_bits);
  const bool padded = chance(25);
  int64_t span = 1, low = 0;
  bool empty = false;
  for (const Dimension& dimension : dimensions) {
    empty = empty || dimension.size == 0;
    if (!is_result && chance(broadcasts ? 35 : 4)) continue;  // stride 0
    if (padded && !(adjacent && dimension.columns)) span += pick(4);
    *dimension.stride = span;
    const int64_t last = dimension.size > 0 ? dimension.size - 1 : 0;
    const int64_t reach = last * span;
    if (chance(6) && !(adjacent && dimension.columns)) {
      *dimension.stride = -span;
      low += reach;
    }
    span += reach;
  }
  const int64_t count = empty ? 0 : span;
  const int64_t bytes = element_bytes(dtype);
  char* const data = allocate(count * bytes);
  if (dtype > BRIDGE_FLOAT64 && dtype <= BRIDGE_UINT64)
    fill_integers(data, dtype, count, call.cols);
  else
    fill_reals(data, dtype, count);
  array.data = data + (empty ? 0 : low) * bytes;
  array.pairs = pairs ? 1 : block;
  if (pairs) array.col_stride *= 2;
  return array;
}

inline int32_t any_dtype(Role role, bool allows_double) {
  switch (role) {
    case Role::mask:
      return chance(50) ? BRIDGE_BOOL : BRIDGE_UINT8;
    case Role::label:
      return static_cast<int32_t>(BRIDGE_BOOL + pick(BRIDGE_UINT64 - BRIDGE_BOOL + 1));
    case Role::integer:
      return BRIDGE_INT64;
    case Role::full:
    case Role::per_row:
    case Role::per_block:
    case Role::halves:
      if (chance(10)) {
        static const int32_t kNarrow[] = {BRIDGE_INT8, BRIDGE_FLOAT8_E4M3FN, BRIDGE_FLOAT8_E5M2,
                                          BRIDGE_FLOAT8_E8M0FNU};
        return kNarrow[pick(4)];
      }
      [[fallthrough]];
    default:
      return static_cast<int32_t>(pick(allows_double ? 4 : 3));
  }
}

// Returns true if every element of the array has a place of its own.
inline bool is_one_to_one(const bridge_program_array& array, const bridge_program& call) {
  bool apart = array.col_stride != 0;
  for (int32_t d = 0; d < call.dims; ++d) apart = apart && array.stride[d] != 0;
  return apart;
}

// Fills `made`, whose call has its sizes, with arrays for the program `words`. `dtypes` lists the
// dtypes of operands, then of results; without it the dtypes are random.
inline void make_arrays(const std::vector<int32_t>& words, const View& view, bool stores_last,
                        const Allocate& allocate, ProgramCall* made,
                        const int32_t* dtypes = nullptr) {
  bridge_program& call = made->call;
  call.code = words.data();
  call.words = static_cast<int64_t>(words.size());
  if (view.block > 0) call.cols = (call.cols + view.block - 1) / view.block * view.block;
  call.index_cols = call.cols + (chance(30) ? pick(30) : 0);
  const bool allows_double = chance(35);
  const auto dtype_of = [&](Role role, int32_t i) {
    return dtypes != nullptr ? dtypes[i] : any_dtype(role, allows_double);
  };
  made->text = "[";
  for (int32_t d = 0; d < call.dims; ++d) made->text += std::to_string(call.size[d]) + ",";
  made->text += std::to_string(call.cols) + "] of " + std::to_string(call.batch_dims) + " batches,";
  for (int32_t i = 0; i < view.header.operands; ++i) {
    const Role role = view.operand_role(i);
    made->operands.push_back(make_array(role, view.operand_has_pairs(i), view.operand_block(i),
                                        false, dtype_of(role, i), call, allocate));
  }
  std::vector<bool> taken(made->operands.size());
  for (int32_t i = 0; i < view.header.results; ++i) {
    const Role role = view.result_role(i);
    size_t in_place = made->operands.size();
    if (stores_last && (role == Role::full || role == Role::halves) && chance(30)) {
      for (size_t j = 0; j < made->operands.size(); ++j) {
        const bool has_dtype = dtypes == nullptr || dtypes[j] == dtypes[view.header.operands + i];
        const auto number = static_cast<int32_t>(j);
        const bool has_role = view.operand_role(number) == role &&
                              view.operand_has_pairs(number) == view.result_has_pairs(i);
        if (has_role && !taken[j] && has_dtype && is_one_to_one(made->operands[j], call)) {
          in_place = j;
        }
      }
    }
    if (in_place < made->operands.size()) {
      taken[in_place] = true;
      made->results.push_back(made->operands[in_place]);
      made->text += " in place";
    } else {
      made->results.push_back(make_array(role, view.result_has_pairs(i), view.result_block(i), true,
                                         dtype_of(role, view.header.operands + i), call, allocate));
    }
  }
  call.operands = view.header.operands;
  call.results = view.header.results;
  call.operand = made->operands.data();
  call.result = made->results.data();
  made->text += " " + std::to_string(view.instructions) + " instructions in " +
                std::to_string(view.header.phases) + " phases";
}

// Chooses the sizes of a call: up to three batch dimensions and up to four dimensions in all.
inline void choose_sizes(int64_t cols, int64_t most_elements, bridge_program* call) {
  call->cols = cols;
  const auto elements = [call] {
    int64_t count = std::max<int64_t>(call->cols, 1);
    for (int32_t d = 0; d < call->dims; ++d) count *= std::max<int64_t>(call->size[d], 1);
    return count;
  };
  call->dims = static_cast<int32_t>(pick(5));
  call->batch_dims = static_cast<int32_t>(std::min<int64_t>(pick(4), call->dims));
  static const int64_t sizes[] = {1, 2, 3, 5, 9, 17, 33, 130};
  for (int32_t d = 0; d < call->dims; ++d) call->size[d] = chance(3) ? 0 : sizes[pick(8)];
  while (elements() > most_elements && call->dims > 0) {
    int64_t& size = call->size[pick(call->dims)];
    size = size > 1 ? size / 2 : size;
    if (std::all_of(call->size, call->size + call->dims, [](int64_t s) { return s <= 1; })) break;
  }
}

}  // namespace bridge::random

#endif  // BRIDGE_TESTS_RANDOM_CALL_H_
