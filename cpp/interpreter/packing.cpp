#include "interpreter/packing.h"

#include <string.h>

#include <initializer_list>

#include "cuda/shared_memory.h"
#include "drivers/rows/row_sum_tree.h"

namespace bridge::interpreter {
namespace {

constexpr int kWarp = 32;
// A row of at most this many columns has a warp, a longer one a block.
constexpr int64_t kWarpCols = 512;

class Packer {
 public:
  Packer(const View& view, const bridge_program& call, bool is_double, PackedProgram* out)
      : view_(view), call_(call), is_double_(is_double), out_(*out), program_(out->program) {}

  bool run() {
    describe_space();
    // More bytes leave room for fewer blocks, so only programs with more registers ask for them.
    for (const size_t most : {cuda::kSharedBytes, cuda::kMostSharedBytes}) {
      for (program_.threads = kProgramThreads; program_.threads >= kWarp; program_.threads /= 2) {
        if (program_.threads < view_.block) break;
        cut_row();
        out_.shared_bytes = registers_bytes() * static_cast<size_t>(program_.threads);
        if (out_.shared_bytes > most) continue;
        write_rest();
        return true;
      }
    }
    return false;
  }

 private:
  void cut_row() {
    // Threads exchange the numbers of a block, so all threads of a block of threads have one row.
    const bool is_warp = call_.cols <= kWarpCols && view_.block == 0;
    program_.team = is_warp ? kWarp : program_.threads;
    program_.has_blocks = view_.block > 0 ? 1 : 0;
    cut_chunk();
    write_code();
  }

  // Returns the bytes of a thread's registers and of its column.
  size_t registers_bytes() const {
    return sizeof(int64_t) * static_cast<size_t>(1 + program_.integer_registers) +
           static_cast<size_t>(reals_) * (is_double_ ? sizeof(double) : sizeof(float));
  }

  void describe_space() {
    const Counts counts = counts_of(call_);
    program_ = {};
    program_.rows = counts.batches * counts.rows;
    program_.batch_rows = counts.rows;
    program_.cols = call_.cols;
    program_.index_cols = call_.index_cols;
    program_.chunks = (call_.cols + kSumChunk - 1) / kSumChunk;
    program_.dims = call_.dims;
    for (int32_t d = 0; d < call_.dims; ++d) program_.size[d] = call_.size[d];
    program_.sections = 2 * view_.header.phases + 1;
    program_.constants = view_.header.constants;
    program_.integers = view_.header.integers;
    program_.array_words = 6 + 2 * call_.dims;
  }

  // Orders the columns of a thread so that adjacent ones are siblings in the tree: the quarters of
  // a chunk are innermost, and the bits of the rest of the column are reversed.
  void cut_chunk() {
    const int32_t each = static_cast<int32_t>(kSumQuarter) / program_.team;
    program_.leaves = 4 * each;
    for (int32_t i = 0; i < each; ++i) {
      int32_t reversed = 0;
      for (int32_t bit = 1, value = i; bit < each; bit *= 2, value /= 2) {
        reversed = 2 * reversed + value % 2;
      }
      for (int32_t quarter = 0; quarter < 4; ++quarter) {
        program_.leaf_column[4 * i + quarter] =
            static_cast<uint16_t>(quarter * kSumQuarter + reversed * program_.team);
      }
    }
  }

  // Returns the depth of a sum's stack: the nodes of all chunks but the last, and of the last
  // chunk's elements.
  int32_t sum_places() const {
    int32_t places = 0;
    for (int64_t last = program_.chunks - 1; last > 0; last /= 2) ++places;
    for (int32_t last = program_.leaves - 1; last > 0; last /= 2) ++places;
    return places;
  }

  int32_t row_register(int32_t i) const {
    const Header& header = view_.header;
    return i < header.constants ? i : header.tiles + i - header.constants;
  }
  int32_t integer_row_register(int32_t i) const {
    const Header& header = view_.header;
    return i < header.integers ? i : header.integer_tiles + i - header.integers;
  }

  void write_code() {
    const Header& header = view_.header;
    const int32_t places_at = header.tiles + header.rows - header.constants;
    program_.indices_at = header.integer_tiles + header.integer_rows - header.integers;
    reals_ = places_at;
    program_.integer_registers = program_.indices_at + call_.dims;
    out_.words.clear();
    counts_.clear();
    const Instruction* next = view_.code;
    for (int32_t section = 0; section < program_.sections; ++section) {
      is_tile_ = section % 2 != 0;
      place_ = places_at;
      integer_place_ = program_.indices_at + call_.dims;
      std::vector<uint32_t> reductions;
      for (int32_t i = 0; i < view_.sections[section]; ++i) write(*next++, &reductions);
      out_.words.insert(out_.words.end(), reductions.begin(), reductions.end());
      counts_.push_back(static_cast<uint32_t>(view_.sections[section]));
      counts_.push_back(static_cast<uint32_t>(reductions.size() / kPackedWords));
      if (place_ > reals_) reals_ = place_;
      if (integer_place_ > program_.integer_registers) program_.integer_registers = integer_place_;
    }
  }

  void write(const Instruction& in, std::vector<uint32_t>* reductions) {
    const int32_t operation = in.operation & ~kAgain;
    const auto real = [this](int32_t i) { return is_tile_ ? i : row_register(i); };
    const auto integer = [this](int32_t i) { return is_tile_ ? i : integer_row_register(i); };
    Instruction packed{operation, 0, 0, 0, 0, 0};
    if (operation < kElementwise) {
      const int inputs = arity(operation);
      packed.to = real(in.to);
      packed.a = real(in.a);
      packed.b = inputs > 1 ? real(in.b) : packed.a;
      packed.c = inputs > 2 ? real(in.c) : packed.a;
      return add(packed, &out_.words);
    }
    switch (operation) {
      case kIntegerNegative:
        packed.to = integer(in.to), packed.a = integer(in.a);
        break;
      case kIntegerAdd:
      case kIntegerSubtract:
      case kIntegerMultiply:
        packed.to = integer(in.to), packed.a = integer(in.a), packed.b = integer(in.b);
        break;
      case kIntegerWhere:
        packed.to = integer(in.to), packed.a = real(in.a);
        packed.b = integer(in.b), packed.c = integer(in.c);
        break;
      case kIntegerLess:
      case kIntegerLessEqual:
      case kIntegerEqual:
      case kIntegerNotEqual:
        packed.to = real(in.to), packed.a = integer(in.a), packed.b = integer(in.b);
        break;
      case kFloat:
        packed.to = real(in.to), packed.a = integer(in.a);
        break;
      case kLoadRow:
        packed.to = real(in.to), packed.a = in.a;
        break;
      case kLoadLabel:
        packed.to = integer(in.to), packed.a = in.a;
        break;
      case kColumns:
        packed.to = real(in.to);
        break;
      case kIntegerColumns:
        packed.to = integer(in.to);
        break;
      case kSpread:
        packed.to = in.to, packed.a = real(in.a);
        break;
      case kIntegerSpread:
        packed.to = in.to, packed.a = integer(in.a);
        break;
      case kStoreRow:
        packed.a = in.a, packed.b = real(in.b);
        break;
      case kLoad:
        packed.to = in.to, packed.a = in.a, packed.b = in.b;
        break;
      case kLoadMask:
        packed.to = in.to, packed.a = in.a;
        break;
      case kColumn:
        packed.to = in.to;
        break;
      case kKeep:
        packed.to = in.to, packed.a = integer_row_register(in.a);
        packed.b = integer_row_register(in.b);
        packed.extra = static_cast<int32_t>(last_dropped(view_.constants, in.extra));
        packed.c = in.c < 0 ? static_cast<int32_t>(kNoStart) : integer_row_register(in.c);
        break;
      case kStore:
        packed.a = in.a, packed.b = in.b, packed.c = in.c;
        break;
      case kAddColumns:
        packed.a = column_sums_before(in.a), packed.b = in.b;
        break;
      case kBlockSum:
      case kBlockMax:
      case kBlockArgmax:
        packed.to = in.to, packed.a = in.a, packed.extra = in.extra;
        break;
      default: {
        packed.to = operation == kArgmax ? integer_row_register(in.to) : row_register(in.to);
        packed.a = in.a;
        packed.extra = place_;
        place_ += operation == kSum ? sum_places() : 1;
        if (operation == kArgmax) packed.c = integer_place_++;
        add(packed, reductions);
      }
    }
    add(packed, &out_.words);
  }

  int32_t column_sums_before(int32_t result) const {
    int32_t count = 0;
    for (int32_t i = 0; i < result; ++i) count += view_.result_role(i) == Role::row;
    return count;
  }

  static void add(const Instruction& in, std::vector<uint32_t>* to) {
    const auto pair = [](int32_t low, int32_t high) {
      return static_cast<uint32_t>(low) | static_cast<uint32_t>(high) << 16;
    };
    to->push_back(pair(in.operation, in.to));
    to->push_back(pair(in.a, in.b));
    to->push_back(static_cast<uint32_t>(in.c));
    to->push_back(static_cast<uint32_t>(in.extra));
  }

  int32_t begin_part() {
    out_.words.resize((out_.words.size() + 3) / 4 * 4);
    return static_cast<int32_t>(out_.words.size());
  }
  void add_wide(int64_t value) {
    out_.words.push_back(static_cast<uint32_t>(value));
    out_.words.push_back(static_cast<uint32_t>(static_cast<uint64_t>(value) >> 32));
  }
  void add_words(const int32_t* words, int64_t count) {
    for (int64_t i = 0; i < count; ++i) out_.words.push_back(static_cast<uint32_t>(words[i]));
  }
  void add_arrays(const bridge_program_array* arrays, int32_t count) {
    for (int32_t i = 0; i < count; ++i) {
      add_wide(static_cast<int64_t>(reinterpret_cast<uintptr_t>(arrays[i].data)));
      add_wide(arrays[i].dtype | int64_t{arrays[i].pairs} << 32);
      add_wide(arrays[i].col_stride);
      for (int32_t d = 0; d < call_.dims; ++d) add_wide(arrays[i].stride[d]);
    }
  }

  void write_rest() {
    const Header& header = view_.header;
    program_.constants_at = begin_part();
    add_words(view_.constants, 2 * int64_t{header.constants});
    program_.integers_at = begin_part();
    add_words(view_.integers, 2 * int64_t{header.integers});
    program_.sections_at = begin_part();
    out_.words.insert(out_.words.end(), counts_.begin(), counts_.end());
    program_.arrays_at = begin_part();
    add_arrays(call_.operand, call_.operands);
    program_.results_at = begin_part();
    add_arrays(call_.result, call_.results);
  }

  const View& view_;
  const bridge_program& call_;
  const bool is_double_;
  PackedProgram& out_;
  KernelProgram& program_;
  std::vector<uint32_t> counts_;
  bool is_tile_ = false;
  int32_t reals_ = 0;
  int32_t place_ = 0, integer_place_ = 0;
};

}  // namespace

bool pack(const View& view, const bridge_program& call, bool is_double, PackedProgram* packed) {
  return Packer(view, call, is_double, packed).run();
}

}  // namespace bridge::interpreter
