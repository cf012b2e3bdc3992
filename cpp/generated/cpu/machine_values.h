// The numbers and addresses of a program generated as C++: per-row values, constants, rows in
// arrays and in scratch memory. A part of generated/cpu/row_driver.h.
#ifndef BRIDGE_GENERATED_CPU_MACHINE_VALUES_H_
#define BRIDGE_GENERATED_CPU_MACHINE_VALUES_H_

#include "generated/cpu/memory.h"
#include "tiles/draws.h"
#include "tiles/position.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

template <class P>
class GeneratedValues {
 public:
  using Real = typename P::Real;
  using Memory = GeneratedMemory<P>;
  static constexpr int64_t kPiece = Memory::kPiece, kBytes = Memory::kBytes;

  // ---- For row sections. ----

  Real* row(int32_t i) const { return memory_.rows + i * memory_.row_stride; }
  int64_t* integer_row(int32_t i) const { return memory_.integer_rows + i * memory_.row_stride; }
  void set_row(int32_t to, Real value) const { fill(row(to), memory_.row_stride, value); }
  void set_integer_row(int32_t to, int64_t value) const {
    fill(integer_row(to), memory_.row_stride, value);
  }
  // Row sections compute this many values. The padding behind the last row is not computed: it may
  // be longer than the rows, and its numbers may be slow to compute.
  int64_t row_count() const { return here_.count; }
  Real constant(int i) const { return constants_[i]; }
  int64_t cols() const { return call_.cols; }
  void load_row(int32_t operand, int32_t to) const {
    here_.load_rows(call_.operand[operand], row(to));
  }
  void load_label(int32_t operand, int32_t to) const {
    here_.load_labels(call_.operand[operand], integer_row(to));
  }
  void store_row(int32_t result, int32_t from) const {
    here_.store_rows(call_.result[result], row(from));
  }

 protected:
  GeneratedValues(const View& view, const bridge_program& call, const Rows& rows,
                  const ColumnSplit& split, MemoryParts parts)
      : call_(call),
        rows_(rows),
        split_(split),
        memory_(parts, view, call, rows.count, split),
        here_{call} {
    if (Memory::is_flat(call))
      number_columns(smaller(Memory::rows_at_once(call, split), rows.count));
    for (int i = 0; i < P::kConstants; ++i) constants_[i] = constant_of(call.code, i);
    for (int i = 0; i < P::kThresholds; ++i)
      last_dropped_[i] = last_dropped(view.constants, P::threshold(i));
  }

  // Finds the addresses of the rows from the current one on, unless rows are flat.
  void find_lines() {
    for (int l = 0; l < P::kLoadCount && !Memory::is_flat(call_); ++l) {
      const Stream& stream = P::load(l);
      loads_[l] = stream.is_vector && memory_.vector_stride > 0
                      ? Line{reinterpret_cast<char*>(vector(P::vector(l))), 0, kBytes, true}
                      : Line::of(here_, call_.operand[stream.array], stream);
    }
    for (int s = 0; s < P::kStoreCount && !Memory::is_flat(call_); ++s)
      stores_[s] = Line::of(here_, call_.result[P::store(s).array], P::store(s));
  }

  // Transposes the current rows of loads whose rows are adjacent, and finds the new addresses.
  void load_blocks() {
    for (int l = 0; l < P::kLoadCount && memory_.block_bytes > 0; ++l) {
      const Stream& stream = P::load(l);
      const bridge_program_array& array = call_.operand[stream.array];
      if (stream.block > 0 || stream.is_vector || !has_adjacent_rows(call_, array)) continue;
      const Piece piece{here_, 0, here_.count, 0, call_.cols};
      const char* const from = piece.first_of(array, stream);
      char* const to = memory_.blocks + l * memory_.block_bytes;
      if (stream.is_converted)
        load_adjacent_rows_as(array.dtype, from, array.col_stride, here_.count, call_.cols,
                              reinterpret_cast<Real*>(to));
      else
        with_size(stream.bytes, [&](auto element) {
          using T = decltype(element);
          load_adjacent_rows(reinterpret_cast<const T*>(from), array.col_stride, here_.count,
                             call_.cols, reinterpret_cast<T*>(to));
        });
      const int64_t bytes = stream.is_converted ? kBytes : stream.bytes;
      loads_[l] = Line{to - row_ * call_.cols * bytes, call_.cols * bytes, bytes, true};
    }
  }

  // Finds the addresses of column `col` in the row after row i.
  void find_ahead(Places<P>& places, int64_t i, int64_t col) const {
    for (int l = 0; l < P::kLoadCount; ++l) {
      const Line& line = loads_[l];
      const bool is_other = line.first != nullptr && line.row_bytes != 0;
      places.ahead[l] = is_other ? line.at(row_ + i + 1, col) : nullptr;
      places.ahead_bytes[l] = line.element_bytes;
    }
  }

  Real* vector(int number) const { return memory_.vectors + number * memory_.vector_stride; }
  // Converts each vector once: all rows belong to one batch.
  void convert_vectors() {
    is_converted_ = true;
    for (int l = 0; l < P::kLoadCount && memory_.vector_stride > 0; ++l) {
      if (!P::load(l).is_vector) continue;
      const bridge_program_array& array = call_.operand[P::load(l).array];
      load_strided(array.dtype, here_.data(array), array.col_stride, vector(P::vector(l)),
                   call_.cols);
    }
  }

  char* gathered(int number) const { return memory_.own.gathered + number * kPiece * kBytes; }
  Real* term(int number) const { return memory_.own.terms + number * (kPiece + kStep); }
  uint32_t* words(int number) const { return memory_.own.words + number * (kPiece + kStep); }

  // Numbers the columns of `count` rows and of their padding. Numbering a whole piece would cost a
  // tiny call more than everything else.
  void number_columns(int64_t count) const {
    const int64_t cols = call_.cols, places = round_up(count * cols);
    for (int64_t i = 0, col = 0; i < places; ++i) {
      memory_.columns[i] = col;
      if (++col == cols) col = 0;
    }
  }

  // Returns constant i of a call's bytecode.
  static Real constant_of(const int32_t* words, int i) {
    double constant;
    memcpy(&constant, words + kHeaderWords + 2 * i, sizeof constant);
    return static_cast<Real>(constant);
  }

  const bridge_program& call_;
  const Rows& rows_;
  const ColumnSplit& split_;
  Memory memory_;
  Position here_;    // of the current rows
  int64_t row_ = 0;  // the first of them, counted from the first row of the lines
  Line loads_[P::kLoadCount + 1] = {};
  Line stores_[P::kStoreCount + 1] = {};
  bool is_converted_ = false;
  Real constants_[P::kConstants + 1];
  uint32_t last_dropped_[P::kThresholds + 1];
};

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_GENERATED_CPU_MACHINE_VALUES_H_
