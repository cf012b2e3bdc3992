// The interpreter of programs on the CPU, compiled once for each instruction set into a namespace
// of its own. Everything but the table is internal to this file, and nothing of the standard
// library is used: an inline function compiled here for AVX-512 must never be the copy that other
// code links to.
#include "program/machine.h"

#include "cpu/tile.h"
#include "interpreter/machine_memory.h"
#include "interpreter/register_loops.h"
#include "tiles/blocks.h"
#include "tiles/column_parts.h"
#include "tiles/column_stack.h"
#include "tiles/draws.h"
#include "tiles/memory_parts.h"
#include "tiles/position.h"
#include "tiles/reductions.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

using namespace interpreter;  // NOLINT: one name for the parts of a program

// ---- Loads. ----

template <class Real>
void load_mask(const char* from, int64_t stride, Real* to, int64_t count) {
  if (stride == 1) {
    for (int64_t i = 0; i < count; ++i) to[i] = truth<Real>(from[i] != 0);
    return;
  }
  for (int64_t i = 0; i < count; ++i) to[i] = truth<Real>(from[i * stride] != 0);
}

// Clears the elements up to the next whole step, because loops compute whole steps.
template <class Number>
void pad(Number* tile, int64_t count) {
  fill(tile + count, round_up(count) - count, Number(0));
}

// ---- The machine. ----

template <class Real>
class Machine {
 public:
  using Memory = MachineMemory<Real>;
  static constexpr int64_t kWidth = Memory::kWidth;

  Machine(const View& view, const bridge_program& call, const Rows& rows, const ColumnSplit& split,
          MemoryParts parts)
      : view_(view),
        call_(call),
        rows_(rows),
        split_(split),
        memory_(parts, view, call, rows.count, split),
        here_{call},
        end_(call.cols) {
    for (int32_t i = 0; i < view.header.results; ++i) {
      if (view.result_role(i) != Role::row) continue;
      stacks_[i].begin(memory_.sums[i], call.cols);
      stacks_[i].clear_leaf();
    }
    // A piece is several short rows, or a part of a long one.
    at_once_ = call.cols > kWidth / 2 ? 1 : call.cols == 0 ? kWidth : kWidth / call.cols;
    at_once_ = smaller(at_once_, rows.count);
    one_piece_ = call.cols <= kWidth;
    write_constants();
  }

  void run() {
    here_.walk(rows_, at_once_, [this] {
      count_ = here_.count;
      run_rows();
    });
    for (int32_t i = 0; i < view_.header.results; ++i) {
      if (view_.result_role(i) == Role::row) stacks_[i].write(rows_.sums[i], call_.cols);
    }
  }

 private:
  Real* tile(int32_t i) const { return memory_.own.tiles + i * kWidth; }
  Real* row(int32_t i) const { return memory_.rows + i * kWidth; }
  int64_t* integer_tile(int32_t i) const { return memory_.own.integer_tiles + i * kWidth; }
  int64_t* integer_row(int32_t i) const { return memory_.integer_rows + i * kWidth; }

  void write_constants() const {
    const int64_t width = smaller(round_up(at_once_ * call_.cols), kWidth);
    const int64_t rows = round_up(at_once_);
    for (int32_t i = 0; i < view_.header.constants; ++i) {
      double value;
      memcpy(&value, view_.constants + 2 * i, sizeof value);
      fill(tile(i), width, static_cast<Real>(value));
      fill(row(i), rows, static_cast<Real>(value));
    }
    for (int32_t i = 0; i < view_.header.integers; ++i) {
      int64_t value;
      memcpy(&value, view_.integers + 2 * i, sizeof value);
      fill(integer_tile(i), width, value);
      fill(integer_row(i), rows, value);
    }
  }

  void run_rows() {
    const Instruction* next = view_.code;
    for (int32_t phase = 0;; ++phase) {
      const int32_t row_count = view_.sections[2 * phase];
      for (int32_t i = 0; i < row_count; ++i) run_on_rows(*next++);
      if (phase == view_.header.phases) return;
      const int32_t tile_count = view_.sections[2 * phase + 1];
      if (one_piece_) {
        width_ = call_.cols;
        run_piece(next, tile_count, 0, phase > 0);
      } else {
        begin_reductions(next, tile_count);
        if (split_.tasks > 1)
          run_parts(next, tile_count);
        else
          run_columns(next, tile_count, 0);
        end_reductions(next, tile_count);
      }
      next += tile_count;
    }
  }

  // Runs a tile section on the columns [begin, end_) of a row.
  void run_columns(const Instruction* code, int32_t count, int64_t begin) {
    for (int64_t col = begin; col < end_; col += kWidth) {
      width_ = smaller(kWidth, end_ - col);
      run_piece(code, count, col, false);
    }
  }

  // Runs a tile section on the parts of a row's columns, distributed over tasks. A task is a copy
  // of this machine with memory of its own, except for results and column sums: each task writes
  // only its columns of these.
  void run_parts(const Instruction* code, int32_t count) {
    deal_columns(split_, call_.cols, [&](int64_t number, const auto& parts) {
      Machine task = *this;
      task.memory_.own = memory_.of_task(number, view_);
      bool has_tiles = false;
      parts([&](const ColumnPart& part) {
        if (!has_tiles) task.memory_.own.copy_tiles(memory_.own, view_);
        has_tiles = true;
        task.begin_reductions(code, count);
        for (int32_t i = 0; i < view_.header.results; ++i) {
          if (view_.result_role(i) == Role::row)
            task.stacks_[i] = stacks_[i].part(part.begin, part.end);
        }
        task.end_ = part.end;
        task.run_columns(code, count, part.begin);
        for (int32_t i = 0; i < count; ++i) {
          const int32_t number = code[i].extra;
          if (is_reduction(code[i].operation))
            memory_.part_of_row(number, part.number) = task.memory_.own.reductions[number].part();
        }
      });
    });
    for (int32_t i = 0; i < count; ++i) {
      const Instruction& in = code[i];
      if (in.operation == kAddColumns) stacks_[in.a].rows_are_added(1);
      for (int64_t part = 0; is_reduction(in.operation) && part < memory_.part_count; ++part)
        memory_.own.reductions[in.extra].take_part(in.operation,
                                                   memory_.part_of_row(in.extra, part));
    }
  }

  void begin_reductions(const Instruction* code, int32_t count) const {
    for (int32_t i = 0; i < count; ++i) {
      if (is_reduction(code[i].operation)) memory_.own.reductions[code[i].extra].begin();
    }
  }
  void end_reductions(const Instruction* code, int32_t count) const {
    for (int32_t i = 0; i < count; ++i) {
      const Instruction& in = code[i];
      if (!is_reduction(in.operation)) continue;
      PiecewiseReduction<Real>& reduction = memory_.own.reductions[in.extra];
      if (in.operation == kSum)
        row(in.to)[0] = reduction.tree.end();
      else if (in.operation == kMax)
        row(in.to)[0] = number_of<Real>(reduction.largest);
      else
        integer_row(in.to)[0] = reduction.place;
    }
  }

  template <class T>
  void spread(T* to, const T* from) const {
    if (count_ == 1) return fill(to, smaller(round_up(call_.cols), kWidth), from[0]);
    for (int64_t i = 0; i < count_; ++i) fill(to + i * call_.cols, call_.cols, from[i]);
    pad(to, count_ * call_.cols);
  }

  void run_on_rows(const Instruction& in) const {
    switch (in.operation) {
      case kLoadRow:
        return here_.load_rows(call_.operand[in.a], row(in.to));
      case kLoadLabel:
        return here_.load_labels(call_.operand[in.a], integer_row(in.to));
      case kColumns:
        return fill(row(in.to), round_up(count_), static_cast<Real>(call_.cols));
      case kIntegerColumns:
        return fill(integer_row(in.to), round_up(count_), call_.cols);
      case kSpread:
        return spread(tile(in.to), row(in.a));
      case kIntegerSpread:
        return spread(integer_tile(in.to), integer_row(in.a));
      case kStoreRow:
        return here_.store_rows(call_.result[in.a], row(in.b));
      default:
        run_on_registers<kWidth>(in, in.operation, memory_.rows, memory_.integer_rows,
                                 round_up(count_));
    }
  }

  // `known`: skip instructions marked kAgain, because an earlier phase has computed their values.
  void run_piece(const Instruction* code, int32_t count, int64_t col, bool known) {
    const int64_t padded = round_up(count_ * width_);
    for (int32_t i = 0; i < count; ++i) {
      const Instruction& in = code[i];
      if ((in.operation & kAgain) != 0 && known) continue;
      run_on_tiles(in, in.operation & ~kAgain, col, padded);
    }
  }

  // Calls access(address, offset in the tile, elements) for each row, or once for all rows if they
  // are adjacent in memory.
  template <class Access>
  void for_runs(const bridge_program_array& array, int64_t col, int32_t half,
                const Access& access) const {
    const int64_t bytes = element_bytes(array.dtype), stride = here_.row_stride(array);
    char* const data = here_.data(array, element_of(array, call_.cols, half, col));
    if (count_ == 1 || (array.col_stride == 1 && stride == width_)) {
      return access(data, int64_t{0}, count_ * width_);
    }
    for (int64_t i = 0; i < count_; ++i) access(data + i * stride * bytes, i * width_, width_);
  }

  // Loads the number of each block to all of its columns.
  void load_blocks(const bridge_program_array& array, int64_t col, Real* to) const {
    const int64_t block = array.pairs, some = width_ / block;
    const int64_t step = here_.row_stride(array) * element_bytes(array.dtype);
    const char* from = here_.data(array, element_of(array, call_.cols, 0, col));
    alignas(64) Real numbers[kWidth / kLeastBlock];
    for (int64_t i = 0; i < count_; ++i, from += step) {
      load_strided(array.dtype, from, array.col_stride, numbers, some);
      for (int64_t b = 0; b < some; ++b) fill(to + i * width_ + b * block, block, numbers[b]);
    }
    pad(to, count_ * width_);
  }
  void store_blocks(const bridge_program_array& array, int64_t col, const Real* from) const {
    const int64_t block = array.pairs, some = width_ / block;
    const int64_t step = here_.row_stride(array) * element_bytes(array.dtype);
    char* to = here_.data(array, element_of(array, call_.cols, 0, col));
    alignas(64) Real numbers[kWidth / kLeastBlock];
    for (int64_t i = 0; i < count_; ++i, to += step) {
      for (int64_t b = 0; b < some; ++b) numbers[b] = from[i * width_ + b * block];
      store_strided(array.dtype, to, array.col_stride, numbers, some);
    }
  }

  void load(const bridge_program_array& array, int64_t col, int32_t half, Real* to) const {
    if (array.pairs > 1) return load_blocks(array, col, to);
    if (count_ > 1 && here_.row_stride(array) == 0) {  // the same for all rows: read once
      load_strided(array.dtype, here_.data(array, element_of(array, call_.cols, half, col)),
                   array.col_stride, to, width_);
      for (int64_t i = 1; i < count_; ++i) copy(to + i * width_, to, width_);
    } else {
      for_runs(array, col, half, [&](const char* from, int64_t at, int64_t elements) {
        load_strided(array.dtype, from, array.col_stride, to + at, elements);
      });
    }
    pad(to, count_ * width_);
  }

  void run_on_tiles(const Instruction& in, int32_t operation, int64_t col, int64_t padded) {
    switch (operation) {
      case kLoad:
        return load(call_.operand[in.a], col, in.b, tile(in.to));
      case kLoadMask: {
        const bridge_program_array& array = call_.operand[in.a];
        Real* to = tile(in.to);
        for_runs(array, col, 0, [&](const char* from, int64_t at, int64_t elements) {
          load_mask(from, array.col_stride, to + at, elements);
        });
        return pad(to, count_ * width_);
      }
      case kColumn: {
        int64_t* to = integer_tile(in.to);
        for (int64_t i = 0; i < width_; ++i) to[i] = col + i;
        for (int64_t i = 1; i < count_; ++i) copy(to + i * width_, to, width_);
        return pad(to, count_ * width_);
      }
      case kKeep:
        return keep(in, col);
      case kStore: {
        const bridge_program_array& array = call_.result[in.a];
        const Real* from = tile(in.b);
        if (array.pairs > 1) return store_blocks(array, col, from);
        return for_runs(array, col, in.c, [&](char* to, int64_t at, int64_t elements) {
          store_strided(array.dtype, to, array.col_stride, from + at, elements);
        });
      }
      case kAddColumns: {
        ColumnStack<Real>& stack = stacks_[in.a];
        const Real* from = tile(in.b);
        for (int64_t i = 0; i < count_; ++i) {
          Real* sum = stack.leaf() + col;
          for (int64_t j = 0; j < width_; ++j) sum[j] = sum[j] + from[i * width_ + j];
          if (col + width_ == end_) stack.row_is_added();
        }
        return;
      }
      case kBlockSum:
      case kBlockMax:
      case kBlockArgmax:
        return reduce_blocks(in, operation, col);
      case kSum:
      case kMax:
      case kArgmax:
        return reduce(in, operation, col);
      default:
        run_on_registers<kWidth>(in, operation, memory_.own.tiles, memory_.own.integer_tiles,
                                 padded);
    }
  }

  void reduce(const Instruction& in, int32_t operation, int64_t col) {
    Real* x = tile(in.a);
    if (!one_piece_) {
      PiecewiseReduction<Real>& reduction = memory_.own.reductions[in.extra];
      if (operation == kSum)
        reduction.add(x, col, width_, end_);
      else if (operation == kMax)
        reduction.take_largest(x, col, width_);
      else
        reduction.take_place(x, col, width_);
      return;
    }
    const int64_t cols = call_.cols;
    if (operation == kSum) {
      sum_rows(x, count_, cols, row(in.to));
      return pad(row(in.to), count_);
    }
    if (operation == kMax) {
      for (int64_t i = 0; i < count_; ++i)
        row(in.to)[i] = number_of<Real>(largest_order<Real>(x + i * cols, cols));
      return pad(row(in.to), count_);
    }
    for (int64_t i = 0; i < count_; ++i)
      integer_row(in.to)[i] = place_of_largest(x + i * cols, cols);
    pad(integer_row(in.to), count_);
  }

  void reduce_blocks(const Instruction& in, int32_t operation, int64_t col) const {
    const int64_t count = count_ * width_;
    with_block(in.extra, [&](auto block) {
      constexpr int kBlock = block;
      if (operation == kBlockSum) return add_blocks<kBlock>(tile(in.a), tile(in.to), count);
      if (operation == kBlockMax)
        return take_largest_of_blocks<kBlock>(tile(in.a), tile(in.to), count);
      find_largest_of_blocks<kBlock>(tile(in.a), integer_tile(in.to), count, col, width_);
    });
    if (operation == kBlockArgmax) return pad(integer_tile(in.to), count);
    pad(tile(in.to), count);
  }

  void keep(const Instruction& in, int64_t col) {
    Real* to = tile(in.to);
    const uint32_t dropped = last_dropped(view_.constants, in.extra);
    const DrawIntegers of{integer_row(in.a), integer_row(in.b),
                          in.c < 0 ? nullptr : integer_row(in.c)};
    draw(*memory_.own.words, of, here_, 0, count_, col, width_,
         [=](const uint32_t* words, int64_t at, int64_t count) {
           for (int64_t j = 0; j < count; ++j) to[at + j] = truth<Real>(words[j] > dropped);
         });
    pad(to, count_ * width_);
  }

  const View& view_;
  const bridge_program& call_;
  const Rows& rows_;
  const ColumnSplit& split_;
  Memory memory_;
  ColumnStack<Real> stacks_[BRIDGE_MAX_PROGRAM_RESULTS];  // of the column sums
  int64_t at_once_;                                       // most rows of a piece
  bool one_piece_;                                        // a row fits in one piece
  Position here_;                                         // of the current rows
  int64_t count_ = 0;                                     // number of current rows
  int64_t end_;                                           // of the columns that this machine runs
  int64_t width_ = 0;                                     // columns of the current piece
};

template <class Real>
void run_machine(const View& view, const bridge_program& call, const Rows& rows,
                 const ColumnSplit& split, void* scratch) {
  Machine<Real>(view, call, rows, split, MemoryParts(scratch)).run();
}

template <class Real>
constexpr MachineTable table_of() {
  return {scratch_bytes<typename Machine<Real>::Memory>, run_machine<Real>, add_nodes<Real>};
}

}  // namespace

constexpr Machines interpreter_machines = {{table_of<float>(), table_of<double>()}};

}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge
