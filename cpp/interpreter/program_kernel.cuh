// The interpreter of programs on CUDA: the code of a thread. A row has a row team, each thread of
// which computes one of the row's elements after the other. Every thread computes all per-row
// values.
#ifndef BRIDGE_INTERPRETER_PROGRAM_KERNEL_CUH_
#define BRIDGE_INTERPRETER_PROGRAM_KERNEL_CUH_

#include "cuda/division.h"
#include "drivers/columns/elements.cuh"
#include "drivers/integers.h"
#include "drivers/rows/row_sum_tree.h"
#include "interpreter/kernel_program.h"
#include "interpreter/team_exchange.cuh"
#include "math/philox.h"
#include "program/elementwise.h"
#include "program/order.h"
#include "program/row_leaves.cuh"

namespace bridge::interpreter {

// Calls compute() for an operation in [kBegin, kEnd), found by bisection.
template <int32_t kBegin, int32_t kEnd, class Real>
BRIDGE_DEVICE Real evaluate(int32_t operation, Real a, Real b, Real c) {
  if constexpr (kEnd - kBegin == 1) {
    return compute<kBegin>(a, b, c);
  } else {
    constexpr int32_t kMiddle = (kBegin + kEnd) / 2;
    return operation < kMiddle ? evaluate<kBegin, kMiddle>(operation, a, b, c)
                               : evaluate<kMiddle, kEnd>(operation, a, b, c);
  }
}

template <class Real, class Params>
class ProgramThread {
 public:
  explicit BRIDGE_DEVICE ProgramThread(const Params& params)
      : params_(params),
        program_(params.program),
        threads_(params.program.threads),
        in_team_(simt::thread_index() % params.program.team) {
    const int thread = simt::thread_index();
    exchanged_ = simt::dynamic_shared<int64_t>();
    integers_ = exchanged_ + threads_ + thread;
    reals_ =
        reinterpret_cast<Real*>(exchanged_ + (1 + program_.integer_registers) * threads_) + thread;
  }

  BRIDGE_DEVICE void run() {
    for (int32_t i = 0; i < program_.constants; ++i) {
      const auto bits = static_cast<uint64_t>(wide(program_.constants_at + 2 * i));
      real(i) = static_cast<Real>(math::bit_cast<double>(bits));
    }
    for (int32_t i = 0; i < program_.integers; ++i) integer(i) = wide(program_.integers_at + 2 * i);
    const int32_t teams = threads_ / program_.team;
    const int64_t step = static_cast<int64_t>(simt::block_count().x) * teams;
    row_leaf_ =
        static_cast<int64_t>(simt::block_index().x) * teams + simt::thread_index() / program_.team;
    for (; row_leaf_ < program_.row_leaves.count; row_leaf_ += step) {
      const RowsOfLeaf rows(program_.row_leaves, row_leaf_);
      for (in_lane_ = 0; in_lane_ < rows.count; ++in_lane_) run_row(rows.first + in_lane_);
    }
  }

 private:
  struct Packed {
    uint32_t operation, to, a, b, c;
    uint32_t extra;
  };

  BRIDGE_DEVICE Real& real(uint32_t i) const { return reals_[static_cast<int>(i) * threads_]; }
  BRIDGE_DEVICE int64_t& integer(uint32_t i) const {
    return integers_[static_cast<int>(i) * threads_];
  }
  BRIDGE_DEVICE int64_t wide(int32_t at) const {
    return static_cast<int64_t>(params_.words[at] | static_cast<uint64_t>(params_.words[at + 1])
                                                        << 32);
  }
  BRIDGE_DEVICE Packed instruction(int32_t i) const {
    const uint32_t* words = params_.words + kPackedWords * i;
    return {words[0] & 0xFFFF, words[0] >> 16,    words[1] & 0xFFFF,
            words[1] >> 16,    words[2] & 0xFFFF, words[3]};
  }

  // ---- Rows ----

  BRIDGE_DEVICE void run_row(int64_t row) {
    find_index(row);
    int32_t next = 0;
    for (int32_t section = 0; section < program_.sections; ++section) {
      const bool is_tile = section % 2 != 0;
      const int32_t end =
          next + static_cast<int32_t>(params_.words[program_.sections_at + 2 * section]);
      const int32_t last =
          end + static_cast<int32_t>(params_.words[program_.sections_at + 2 * section + 1]);
      for (int32_t i = end; i < last; ++i) begin_reduction(instruction(i));
      depth_ = 0;
      const int64_t chunks = is_tile ? program_.chunks : 1;
      const int32_t leaves = is_tile ? program_.leaves : 1;
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int32_t below = depth_;
        for (leaf_ = 0; leaf_ < leaves; ++leaf_) {
          col_ = chunk * kSumChunk + program_.leaf_column[leaf_] + in_team_;
          is_in_ = !is_tile || col_ < program_.cols;
          // Threads without a column take part in the exchanges of blocks.
          if (is_in_ || (program_.has_blocks != 0 && col_ - in_team_ < program_.cols)) {
            for (int32_t i = next; i < end; ++i) run_instruction(instruction(i));
          } else {
            for (int32_t i = end; i < last; ++i) pass_over(instruction(i));
          }
          depth_ = depth_after(leaf_);
        }
        depth_ = below;
        for (int32_t i = end; i < last; ++i) end_chunk(instruction(i), chunk);
        depth_ = depth_after(chunk);
      }
      for (int32_t i = end; i < last; ++i) end_reduction(instruction(i));
      next = last;
    }
  }

  BRIDGE_DEVICE void find_index(int64_t row) {
    row_ = row;
    int64_t rest = row;
    for (int32_t d = program_.dims - 1; d >= 0; --d) {
      const int64_t above = simt::divide(rest, program_.size[d]);
      integer(static_cast<uint32_t>(program_.indices_at + d)) = rest - above * program_.size[d];
      rest = above;
    }
  }

  // ---- Reductions: nodes of the tree are on a stack, one for each 1 bit in their number, as in a
  // binary counter. The nodes of the current chunk are above those of earlier chunks. ----

  BRIDGE_DEVICE int32_t depth_after(int64_t number) const {
    int32_t depth = depth_ + 1;
    for (int64_t bits = number; bits & 1; bits >>= 1) --depth;
    return depth;
  }
  BRIDGE_DEVICE void push(uint32_t places, int64_t number, Real value) {
    auto at = places + static_cast<uint32_t>(depth_);
    for (int64_t bits = number; bits & 1; bits >>= 1) value = real(--at) + value;
    real(at) = value;
  }

  BRIDGE_DEVICE void begin_reduction(const Packed& in) {
    if (in.operation == kSum) return;
    real(in.extra) = Real(-__builtin_inf());
    if (in.operation == kArgmax) integer(in.c) = 0;
  }
  // Called for a column that the row lacks.
  BRIDGE_DEVICE void pass_over(const Packed& in) {
    if (in.operation == kSum) push(in.extra, leaf_, Real(-0.0));
  }
  BRIDGE_DEVICE void end_chunk(const Packed& in, int64_t chunk) {
    if (in.operation == kSum) {
      push(in.extra, chunk, sum_of_team(real(in.extra + static_cast<uint32_t>(depth_)), team()));
    }
  }
  BRIDGE_DEVICE void end_reduction(const Packed& in) {
    if (in.operation == kSum) {
      auto at = in.extra + static_cast<uint32_t>(depth_);
      Real sum = depth_ > 0 ? real(--at) : Real(-0.0);
      while (at > in.extra) sum = real(--at) + sum;
      real(in.to) = sum;
      return;
    }
    const Real own = real(in.extra);
    const Real largest =
        best_of_team(own, team(), [](Real a, Real b) { return order_of(a) > order_of(b); });
    if (in.operation == kMax) {
      real(in.to) = number_of<Real>(order_of(largest));
      return;
    }
    const int64_t place = order_of(own) == order_of(largest) ? integer(in.c) : program_.cols;
    integer(in.to) = best_of_team(place, team(), [](int64_t a, int64_t b) { return a < b; });
  }

  BRIDGE_DEVICE Team team() const { return {exchanged_, program_.team, in_team_}; }

  // ---- Arrays ----

  struct Place {
    columns::Array array;
    int64_t index;
  };
  BRIDGE_DEVICE Place place_of(int32_t at, int64_t col, uint32_t half) const {
    Place place{};
    place.array.data = reinterpret_cast<void*>(wide(at));
    place.array.dtype = static_cast<int32_t>(params_.words[at + 2]);
    const auto pairs = static_cast<int32_t>(params_.words[at + 3]);
    place.index = element_of(pairs, wide(at + 4), program_.cols, static_cast<int32_t>(half), col);
    for (int32_t d = 0; d < program_.dims; ++d) {
      place.index += integer(static_cast<uint32_t>(program_.indices_at + d)) * wide(at + 6 + 2 * d);
    }
    return place;
  }
  BRIDGE_DEVICE Place operand(uint32_t i, int64_t col, uint32_t half = 0) const {
    return place_of(program_.arrays_at + static_cast<int32_t>(i) * program_.array_words, col, half);
  }
  BRIDGE_DEVICE Place result(uint32_t i, int64_t col, uint32_t half = 0) const {
    return place_of(program_.results_at + static_cast<int32_t>(i) * program_.array_words, col,
                    half);
  }
  static BRIDGE_DEVICE Real load(const Place& place) {
    return columns::load_real<Real>(place.array, place.index);
  }
  static BRIDGE_DEVICE int64_t load_integer_at(const Place& place) {
    const int32_t dtype = place.array.dtype;
    return load_integer(
        dtype, static_cast<const char*>(place.array.data) + place.index * element_bytes(dtype));
  }
  static BRIDGE_DEVICE void store(const Place& place, Real value) {
    columns::store_real(place.array, place.index, value);
  }

  BRIDGE_DEVICE Real keep(const Packed& in) const {
    const auto start = in.c == kNoStart ? uint64_t{0} : static_cast<uint64_t>(integer(in.c));
    const int64_t row = row_ - simt::divide(row_, program_.batch_rows) * program_.batch_rows;
    const uint64_t index = start +
                           static_cast<uint64_t>(row) * static_cast<uint64_t>(program_.index_cols) +
                           static_cast<uint64_t>(col_);
    const math::Philox drawn = math::philox(static_cast<uint64_t>(integer(in.a)),
                                            static_cast<uint64_t>(integer(in.b)), index / 4);
    // No index is computed at run time: that would move the words out of registers.
    const uint32_t low = index % 2 != 0 ? drawn.words[1] : drawn.words[0];
    const uint32_t high = index % 2 != 0 ? drawn.words[3] : drawn.words[2];
    return truth<Real>((index % 4 >= 2 ? high : low) > in.extra);
  }

  // Adds a term to a column sum. The same thread has the column in all rows of a leaf.
  BRIDGE_DEVICE void add_column(uint32_t sum, Real term) {
    Real& kept = static_cast<Real*>(
        program_.sums)[(sum * program_.row_leaves.count + row_leaf_) * program_.cols + col_];
    kept = in_lane_ == 0 ? term : kept + term;
  }

  BRIDGE_DEVICE void take_place(const Packed& in) {
    // Zeros of both signs are equal here.
    const Real x = real(in.a) == 0 ? Real(0) : real(in.a);
    const auto order = order_of(x), before = order_of(real(in.extra));
    if (order < before || (order == before && col_ >= integer(in.c))) return;
    real(in.extra) = x;
    integer(in.c) = col_;
  }

  // ---- Blocks of columns: adjacent threads have adjacent columns. ----

  // Returns the combination of the numbers of this thread's block, in the order of a row of as many
  // columns (row_sum_tree.h).
  template <class T, class Combine>
  BRIDGE_DEVICE T combined(T own, int columns, const Combine& combine) const {
    T* const shared = reinterpret_cast<T*>(exchanged_);
    const int place = in_team_ % columns;
    simt::sync();  // the previous exchange has been read
    shared[in_team_] = own;
    simt::sync();
    for (int half = columns / 2; half > 0; half /= 2) {
      if (place < half) shared[in_team_] = combine(shared[in_team_], shared[in_team_ + half]);
      simt::sync();
    }
    return shared[in_team_ - place];
  }
  BRIDGE_DEVICE void reduce_block(const Packed& in) {
    const int columns = static_cast<int>(in.extra);
    const Real own = real(in.a);
    if (static_cast<int32_t>(in.operation) == kBlockSum) {
      real(in.to) = combined(own, columns, [](Real a, Real b) { return a + b; });
      return;
    }
    const bool is_place = static_cast<int32_t>(in.operation) == kBlockArgmax;
    // Zeros of both signs are equal in the search for a place.
    const auto order = order_of(is_place && own == 0 ? Real(0) : own);
    const auto most = combined(order, columns, [](auto a, auto b) { return a > b ? a : b; });
    if (is_place) {
      const int64_t place = order == most ? col_ : INT64_MAX;
      integer(in.to) = combined(place, columns, [](int64_t a, int64_t b) { return a < b ? a : b; });
    } else {
      real(in.to) = number_of<Real>(most);
    }
  }
  // Returns true if this thread stores its number: one thread does for a block.
  BRIDGE_DEVICE bool is_stored(uint32_t result) const {
    const int32_t at = program_.results_at + static_cast<int32_t>(result) * program_.array_words;
    const auto block = static_cast<int32_t>(params_.words[at + 3]);
    return is_in_ && (block <= 1 || in_team_ % block == 0);
  }

  // ---- Instructions ----

  BRIDGE_DEVICE uint64_t bits_of(uint32_t i) const { return static_cast<uint64_t>(integer(i)); }

  BRIDGE_DEVICE void run_instruction(const Packed& in) {
    const auto operation = static_cast<int32_t>(in.operation);
    if (operation < kElementwise) {
      real(in.to) = evaluate<0, kElementwise>(operation, real(in.a), real(in.b), real(in.c));
      return;
    }
    switch (operation) {
      case kIntegerNegative:
        integer(in.to) = static_cast<int64_t>(0 - bits_of(in.a));
        break;
      case kIntegerAdd:
        integer(in.to) = static_cast<int64_t>(bits_of(in.a) + bits_of(in.b));
        break;
      case kIntegerSubtract:
        integer(in.to) = static_cast<int64_t>(bits_of(in.a) - bits_of(in.b));
        break;
      case kIntegerMultiply:
        integer(in.to) = static_cast<int64_t>(bits_of(in.a) * bits_of(in.b));
        break;
      case kIntegerWhere:
        integer(in.to) = real(in.a) != 0 ? integer(in.b) : integer(in.c);
        break;
      case kIntegerLess:
        real(in.to) = truth<Real>(integer(in.a) < integer(in.b));
        break;
      case kIntegerLessEqual:
        real(in.to) = truth<Real>(integer(in.a) <= integer(in.b));
        break;
      case kIntegerEqual:
        real(in.to) = truth<Real>(integer(in.a) == integer(in.b));
        break;
      case kIntegerNotEqual:
        real(in.to) = truth<Real>(integer(in.a) != integer(in.b));
        break;
      case kFloat:
        real(in.to) = static_cast<Real>(integer(in.a));
        break;
      case kLoadRow:
        real(in.to) = load(operand(in.a, 0));
        break;
      case kLoadLabel:
        integer(in.to) = load_integer_at(operand(in.a, 0));
        break;
      case kColumns:
        real(in.to) = static_cast<Real>(program_.cols);
        break;
      case kIntegerColumns:
        integer(in.to) = program_.cols;
        break;
      case kSpread:
        real(in.to) = real(in.a);
        break;
      case kIntegerSpread:
        integer(in.to) = integer(in.a);
        break;
      case kStoreRow:
        if (in_team_ == 0) store(result(in.a, 0), real(in.b));
        break;
      case kLoad:
        real(in.to) = is_in_ ? load(operand(in.a, col_, in.b)) : Real(0);
        break;
      case kLoadMask:
        real(in.to) = truth<Real>(is_in_ && load_integer_at(operand(in.a, col_)) != 0);
        break;
      case kColumn:
        integer(in.to) = col_;
        break;
      case kKeep:
        real(in.to) = keep(in);
        break;
      case kStore:
        if (is_stored(in.a)) store(result(in.a, col_, in.c), real(in.b));
        break;
      case kAddColumns:
        if (is_in_) add_column(in.a, real(in.b));
        break;
      case kSum:
        push(in.extra, leaf_, is_in_ ? real(in.a) : Real(-0.0));
        break;
      case kMax:
        if (is_in_ && order_of(real(in.a)) > order_of(real(in.extra))) real(in.extra) = real(in.a);
        break;
      case kArgmax:
        if (is_in_) take_place(in);
        break;
      default:
        reduce_block(in);
    }
  }

  const Params& params_;
  const KernelProgram& program_;
  const int threads_;
  const int in_team_;  // index of the thread in its team
  int64_t* exchanged_;
  int64_t* integers_;
  Real* reals_;
  int64_t row_leaf_ = 0;
  int32_t in_lane_ = 0;  // index of the current row in its leaf
  int64_t row_ = 0;
  int64_t col_ = 0;
  bool is_in_ = true;  // the row has the column
  int32_t leaf_ = 0;   // index of the current element among the thread's in the chunk
  int32_t depth_ = 0;  // depth of the stacks
};

template <class Number, int kBytes>
struct ProgramKernel {
  using Real = Number;
  using Params = ProgramParams<kBytes>;
  static constexpr int kThreads = kProgramThreads;
  static constexpr int kMinBlocks = 2;

  static BRIDGE_DEVICE void run(const Params& params) { ProgramThread<Real, Params>(params).run(); }
};

}  // namespace bridge::interpreter

#endif  // BRIDGE_INTERPRETER_PROGRAM_KERNEL_CUH_
