// The row driver of a program generated as C++ (bridge/lang/emission/cpu.py): loops over rows and
// their columns. Include it only in generated files, each compiled for one instruction set. Every
// order of additions is the order of machine.cpp.
//
// A generated program is a struct with the constants and types used below, and
//   rows_<n>    a row section: per-row values of all current rows;
//   Tile_<n>    a tile section: lists of its loads and stores, and body<kFlat>(places, count), a
//               loop over `count` elements, a multiple of kStep: of one row, or, flat, of several
//               short rows side by side, for which per-row values are arrays too.
//               kFetchesAhead: the section prefetches the next row.
//               kFolds: chunk(places, reductions) runs on a whole chunk of one row and reduces it.
//               kPicks: picks(places, width, reductions) adds to sums with a term in one column.
#ifndef BRIDGE_GENERATED_CPU_ROW_DRIVER_H_
#define BRIDGE_GENERATED_CPU_ROW_DRIVER_H_

#include "cpu/stream.h"
#include "generated/cpu/machine_values.h"
#include "program/elementwise.h"
#include "tiles/blocks.h"
#include "tiles/draws.h"
#include "tiles/position.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

template <class P>
class GeneratedMachine : public GeneratedValues<P> {
 public:
  using Values = GeneratedValues<P>;
  using typename Values::Memory, typename Values::Real;
  using Values::integer_row, Values::row;
  static constexpr int64_t kPiece = Memory::kPiece, kBytes = Memory::kBytes;

  GeneratedMachine(const View& view, const bridge_program& call, const Rows& rows,
                   const ColumnSplit& split, MemoryParts parts)
      : Values(view, call, rows, split, parts),
        fetches_ahead_(rows.count * call.cols * kBytes >= kLeastFetched) {
    for (int i = 0; i < P::kColumnSums; ++i) stacks_[i].begin(memory_.sums[i], call.cols);
    P::set_constants(*this);
  }

  void run() {
    for_sums(
        [this](int s, int64_t begin, int64_t end) { stacks_[s].part(begin, end).clear_leaf(); });
    here_.walk(rows_, rows_.count, [this] {
      if (!is_converted_) convert_vectors();
      find_lines();
      const int64_t count = here_.count, at_once = Memory::rows_at_once(call_, split_);
      for (row_ = 0; row_ < count; row_ += at_once) {
        here_.count = smaller(at_once, count - row_);
        load_blocks();
        P::run(*this);
        here_.skip(here_.count);
      }
      here_.count = count;
    });
    for_sums([this](int s, int64_t begin, int64_t end) {
      stacks_[s].part(begin, end).write(rows_.sums[P::column_sum(s)], call_.cols);
    });
    if (rows_.streamed != 0) end_stream();
  }

  // ---- For tile sections. ----

  template <class Tile>
  void tile() {
    if (Memory::is_flat(call_)) return run_flat<Tile>();
    if (split_.tasks > 1) return run_parts<Tile>();
    for (int64_t i = 0; i < here_.count; ++i) {
      run_columns<Tile>(i, 0, call_.cols);
      for (int r = 0; r < Tile::kReduces; ++r) end(Tile::kReductions[r], reductions_[r], i);
    }
  }

 private:
  using Values::call_, Values::constants_, Values::convert_vectors, Values::find_ahead;
  using Values::find_lines, Values::gathered, Values::here_, Values::is_converted_;
  using Values::last_dropped_, Values::loads_, Values::memory_, Values::row_, Values::rows_;
  using Values::load_blocks;
  using Values::split_, Values::stores_, Values::term, Values::words;

  // Calls run(column sum, begin, end) for each part of the columns, or for all columns.
  template <class Run>
  void for_sums(const Run& run) const {
    if (P::kColumnSums == 0) return;
    for_columns(split_, call_.cols, [&](int64_t begin, int64_t end) {
      for (int s = 0; s < P::kColumnSums; ++s) run(s, begin, end);
    });
  }

  // ---- One row, in pieces. ----

  // True if random words are used where they are drawn: the buffer holds the words of one draw.
  template <class Tile>
  static constexpr bool kDrawsInPlace = Tile::Words::kCount == 1 && Tile::kReduces == 0;

  // The number of columns that are prefetched at once: more requests than a core can have in flight
  // wait for each other. Only arrays of at least kLeastFetched bytes are, because the cache does
  // not hold these.
  static constexpr int64_t kFetched = 256, kLeastFetched = int64_t{1} << 20;

  // Runs a tile section on the columns [begin, end) of row i. `begin` is a multiple of kPiece.
  template <class Tile>
  void run_columns(int64_t i, int64_t begin, int64_t end) {
    for (int r = 0; r < Tile::kReduces; ++r) reductions_[r].begin();
    Places<P> places;
    places.constant = constants_;
    places.last_dropped = last_dropped_;
    places.range = ranges_;
    if (Tile::kFetchesAhead) fill(places.ahead, P::kLoadCount, static_cast<const char*>(nullptr));
    Tile::Rows::each([&](int r) { places.row[r] = row(r) + i; });
    Tile::IntegerRows::each([&](int r) { places.integer_row[r] = integer_row(r) + i; });
    const bool fetches = Tile::kFetchesAhead && fetches_ahead_;
    const int64_t most = kDrawsInPlace<Tile>              ? RandomWords::kMost
                         : fetches && Tile::kReduces == 0 ? kFetched
                                                          : kPiece;
    for (int64_t col = begin; col < end; col += most) {
      const int64_t width = smaller(most, end - col);
      places.col = col;
      for (int k = 0; k < P::kKept; ++k)
        places.kept[k] = memory_.kept + k * memory_.kept_stride + i * round_up(call_.cols) + col;
      if (fetches) find_ahead(places, i, col);
      if (Tile::kFetchesAhead && (!Tile::kFolds || width < kSumChunk)) places.fetch(0, width);
      run_piece<Tile, false>(places, i, 1, col, width);
    }
    Tile::ColumnSums::each([&](int s) { stacks_[s].row_is_added(); });
  }

  // Runs a tile section on parts of the columns of all rows, distributed over tasks. A task is a
  // copy of this machine with memory of its own, except for results and column sums: each task
  // writes only its columns of these. The reductions of all parts are combined here.
  template <class Tile>
  void run_parts() {
    deal_columns(split_, call_.cols, [&](int64_t number, const auto& parts) {
      GeneratedMachine task = *this;
      task.memory_.own = memory_.of_task(number);
      parts([&](const ColumnPart& part) {
        Tile::ColumnSums::each(
            [&](int s) { task.stacks_[s] = stacks_[s].part(part.begin, part.end); });
        for (int64_t i = 0; i < here_.count; ++i) {
          task.template run_columns<Tile>(i, part.begin, part.end);
          for (int r = 0; r < Tile::kReduces; ++r)
            memory_.part_of_row(i, r, part.number) = task.reductions_[r].part();
        }
      });
      if (rows_.streamed != 0) end_stream();
    });
    for (int64_t i = 0; i < here_.count; ++i) {
      for (int r = 0; r < Tile::kReduces; ++r) {
        const Reduces& in = Tile::kReductions[r];
        reductions_[r].begin();
        for (int64_t part = 0; part < memory_.part_count; ++part)
          reductions_[r].take_part(in.operation, memory_.part_of_row(i, r, part));
        end(in, reductions_[r], i);
      }
    }
    Tile::ColumnSums::each([&](int s) { stacks_[s].rows_are_added(here_.count); });
  }

  // Returns the stream of the other half of a result, or -1 if the section does not write it.
  template <class Tile>
  static constexpr int other_half(int s) {
    int other = -1;
    Tile::Stores::each([&](int o) {
      if (o != s && P::store(o).array == P::store(s).array) other = o;
    });
    return other;
  }
  static bool are_adjacent_pairs(const bridge_program_array& array) {
    return array.pairs != 0 && array.col_stride == 2;
  }

  // Returns true if a store is collected in a tile and written from there past the caches.
  template <bool kFlat>
  bool is_streamed(int s) const {
    return !kFlat && (rows_.streamed >> P::store(s).array & 1) != 0 && stores_[s].first != nullptr;
  }

  // Runs a tile section on `width` columns of row i, or of all rows if they are flat.
  template <class Tile, bool kFlat>
  void run_piece(Places<P>& places, int64_t i, int64_t rows, int64_t col, int64_t width) {
    const int64_t count = rows * width, whole = count / kStep * kStep;
    const Piece piece{here_, i, rows, col, width};
    Tile::Loads::each([&](int l) {
      const Line& line = loads_[l];
      const Stream& stream = P::load(l);
      if (line.first == nullptr) {
        places.load[l] = loads_of<Real>(stream, piece, gathered(l));
      } else if (!stream.is_converted || line.is_converted) {
        places.load[l] = line.at(row_ + i, col);
      } else {
        load_run(call_.operand[stream.array].dtype, line.at(row_ + i, col),
                 reinterpret_cast<Real*>(gathered(l)), width);
        places.load[l] = gathered(l);
      }
    });
    Tile::Stores::each([&](int s) {
      const Line& line = stores_[s];
      places.store[s] =
          P::store(s).is_converted || is_streamed<kFlat>(s) ? gathered(P::kLoadCount + s)
          : line.first != nullptr ? line.at(row_ + i, col)
                                  : stores_of(P::store(s), piece, gathered(P::kLoadCount + s));
    });
    Tile::Words::each([&](int d) {
      uint32_t* const to = words(d);
      const Draws& by = P::draws(d);
      const DrawIntegers of{integer_row(by.seed), integer_row(by.offset),
                            by.start < 0 ? nullptr : integer_row(by.start)};
      places.words[d] = to;
      if constexpr (!kFlat && kDrawsInPlace<Tile>)
        places.words[d] = drawn(*memory_.own.random, of, here_, i, col, width);
      else
        draw(*memory_.own.random, of, here_, i, rows, col, width,
             [=](const uint32_t* from, int64_t at, int64_t some) { copy(to + at, from, some); });
    });
    for (int t = 0; t < P::kTerms; ++t) places.term[t] = term(t);
    if (!kFlat) {
      Tile::ColumnSums::each([&](int s) { places.leaf[s] = stacks_[s].leaf() + col; });
    }
    if constexpr (!kFlat && Tile::kPicks) Tile::picks(places, width, reductions_);
    bool is_reduced = kFlat;
    if constexpr (!kFlat && Tile::kFolds) {
      is_reduced = width == kSumChunk;
      if (is_reduced) Tile::chunk(places, reductions_);
    }
    if (kFlat || !is_reduced) {
      if (whole > 0) Tile::template body<kFlat>(places, whole);
      if (whole < count) run_tail<Tile, kFlat>(places, whole, count - whole);
    }
    for (int r = 0; r < Tile::kReduces && !is_reduced; ++r)
      reduce(Tile::kReductions[r], reductions_[r], col, width);
    Tile::Stores::each([&](int s) {
      const Line& line = stores_[s];
      const Stream& to = P::store(s);
      const char* const tile = gathered(P::kLoadCount + s);
      const int other = other_half<Tile>(s);
      if (line.first == nullptr && other >= 0 && are_adjacent_pairs(call_.result[to.array])) {
        if (to.half == 0) write_pairs<Real>(to, piece, tile, gathered(P::kLoadCount + other));
      } else if (line.first == nullptr)
        write_stores<Real>(to, piece, tile);
      else if (to.is_converted)
        store_run(call_.result[to.array].dtype, line.at(row_ + i, col),
                  reinterpret_cast<const Real*>(tile), width);
      else if (is_streamed<kFlat>(s))
        stream(line.at(row_ + i, col), tile, width * line.element_bytes);
    });
  }

  // Runs a tile section on the last elements, fewer than a step, in buffers of a whole step.
  template <class Tile, bool kFlat>
  void run_tail(Places<P>& places, int64_t whole, int64_t rest) {
    char* written[P::kStoreCount + 1];
    Tile::Loads::each([&](int l) {
      char* const tail = memory_.own.tails + l * kStep * kBytes;
      with_size(P::load(l).bytes, [&](auto element) {
        using T = decltype(element);
        load_few<kStep>(reinterpret_cast<const T*>(places.load[l]) + whole,
                        reinterpret_cast<T*>(tail), rest);
      });
      places.load[l] = tail;
    });
    Tile::Stores::each([&](int s) {
      written[s] = places.store[s] + whole * P::store(s).bytes;
      places.store[s] = memory_.own.tails + (P::kLoadCount + s) * kStep * kBytes;
    });
    for (int t = 0; t < P::kTerms; ++t) places.term[t] += whole;
    for (int k = 0; k < P::kKept; ++k) places.kept[k] += whole;
    Tile::Words::each([&](int d) { places.words[d] += whole; });
    Tile::ColumnSums::each([&](int s) { places.leaf[s] += whole; });
    if (kFlat) {
      Tile::Rows::each([&](int r) { places.row[r] += whole; });
      Tile::IntegerRows::each([&](int r) { places.integer_row[r] += whole; });
      places.columns += whole;
    } else {
      places.col += whole;
    }
    Tile::template body<kFlat>(places, kStep);
    Tile::Stores::each([&](int s) {
      with_size(P::store(s).bytes, [&](auto element) {
        using T = decltype(element);
        store_few<kStep>(reinterpret_cast<T*>(written[s]),
                         reinterpret_cast<const T*>(places.store[s]), rest);
      });
    });
  }

  // ---- Several short rows side by side. ----

  template <class Tile>
  void run_flat() {
    const int64_t cols = call_.cols, rows = here_.count, count = rows * cols;
    Places<P> places;
    places.constant = constants_;
    places.last_dropped = last_dropped_;
    const auto spread = [&](auto* to, const auto* from) {
      // Fills whole steps, which reach into the next row.
      const int64_t padded = round_up(cols);
      if (padded % kStep != 0) __builtin_unreachable();
      for (int64_t i = 0; i < rows; ++i) fill(to + i * cols, padded, from[i]);
      fill(to + count, round_up(count) - count, from[0]);
      return to;
    };
    Tile::Rows::each(
        [&](int r) { places.row[r] = spread(memory_.spread + r * Memory::kSpread, row(r)); });
    Tile::IntegerRows::each([&](int r) {
      places.integer_row[r] = spread(memory_.integer_spread + r * Memory::kSpread, integer_row(r));
    });
    for (int k = 0; k < P::kKept; ++k) places.kept[k] = memory_.kept + k * memory_.kept_stride;
    places.columns = memory_.columns;
    // Column sums are added row by row, from terms.
    Tile::ColumnSums::each([&](int s) { places.leaf[s] = term(Tile::kReduces + s); });
    run_piece<Tile, true>(places, 0, rows, 0, cols);
    for (int r = 0; r < Tile::kReduces; ++r) {
      const Reduces& in = Tile::kReductions[r];
      Real* const x = term(in.term);
      if (in.operation == kSum) sum_rows(x, rows, cols, row(in.to));
      for (int64_t i = 0; i < rows && in.operation != kSum; ++i) {
        if (in.operation == kMax)
          row(in.to)[i] = number_of<Real>(largest_order<Real>(x + i * cols, cols));
        else
          integer_row(in.to)[i] = place_of_largest(x + i * cols, cols);
      }
    }
    Tile::ColumnSums::each([&](int s) {
      const Real* const terms = term(Tile::kReduces + s);
      for (int64_t i = 0; i < rows; ++i) {
        Real* const leaf = stacks_[s].leaf();
        for (int64_t j = 0; j < cols; ++j) leaf[j] = leaf[j] + terms[i * cols + j];
        stacks_[s].row_is_added();
      }
    });
  }

  // ---- Reductions of a row that comes in pieces. ----

  void reduce(const Reduces& in, Reduction<Real>& reduction, int64_t col, int64_t width) const {
    Real* const x = term(in.term);
    if (in.is_picked) return;
    if (in.operation == kSum)
      reduction.add_chunk(x, width);
    else if (in.operation == kMax)
      reduction.take_largest(x, col, width);
    else
      reduction.take_place(x, col, width);
  }

  void end(const Reduces& in, Reduction<Real>& reduction, int64_t i) {
    if (in.operation == kSum) {
      row(in.to)[i] = reduction.tree.end();
    } else if (in.operation == kMax) {
      const Real largest = row(in.to)[i] = number_of<Real>(reduction.largest);
      // +0 equals -0 though it is larger in order, and nothing is less than NaN.
      const bool is_found = here_.count == 1 && largest != 0 && largest == largest;
      ranges_[in.to] = is_found ? reduction.range : ColumnRange{0, call_.cols};
    } else {
      integer_row(in.to)[i] = reduction.place;
    }
  }

  bool fetches_ahead_;
  ColumnStack<Real> stacks_[P::kColumnSums + 1];
  Reduction<Real> reductions_[P::kMostReductions + 1];
  ColumnRange ranges_[P::kRows + 1];  // chunks with the largest number, by row register
};

template <class P>
void run_generated(const View& view, const bridge_program& call, const Rows& rows,
                   const ColumnSplit& split, void* scratch) {
  GeneratedMachine<P>(view, call, rows, split, MemoryParts(scratch)).run();
}

template <class P>
constexpr MachineTable generated_table = {scratch_bytes<typename GeneratedMachine<P>::Memory>,
                                          run_generated<P>, add_nodes<typename P::Real>};

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_GENERATED_CPU_ROW_DRIVER_H_
