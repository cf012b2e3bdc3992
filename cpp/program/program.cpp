#include "program/program.h"

#include <stdio.h>
#include <string.h>

#include <vector>

namespace bridge::interpreter {
namespace {

// Tracks the written registers, in the order of the instructions. Reading a register before it is
// written is an error: results depend on operands only.
class Checker {
 public:
  explicit Checker(const View& view)
      : view_(view),
        tiles_(static_cast<size_t>(view.header.tiles)),
        integer_tiles_(static_cast<size_t>(view.header.integer_tiles)),
        rows_(static_cast<size_t>(view.header.rows)),
        integer_rows_(static_cast<size_t>(view.header.integer_rows)),
        reduced_(static_cast<size_t>(view.header.reductions)),
        stored_(static_cast<size_t>(view.header.results)) {}

  const char* run() {
    const Header& header = view_.header;
    for (int32_t i = 0; i < header.constants; ++i) {
      tiles_[at(i)] = rows_[at(i)] = kConstant;
    }
    for (int32_t i = 0; i < header.integers; ++i) {
      integer_tiles_[at(i)] = integer_rows_[at(i)] = kConstant;
    }
    const Instruction* next = view_.code;
    for (int32_t phase = 0; phase <= header.phases; ++phase) {
      for (int32_t i = 0; i < view_.sections[2 * phase]; ++i) {
        if (!check_row(*next++)) return why_;
      }
      if (phase == header.phases) break;
      pending_.clear();
      for (int32_t i = 0; i < view_.sections[2 * phase + 1]; ++i) {
        if (!check_tile(*next++)) return why_;
      }
      for (const auto& [integer, to] : pending_) {
        (integer ? integer_rows_ : rows_)[at(to)] = kWritten;
      }
      again_ = false;
    }
    for (int32_t i = 0; i < header.results; ++i) {
      const int32_t whole = view_.result_role(i) == Role::halves ? 3 : 1;
      if (stored_[at(i)] != whole) return "a result is not stored exactly once";
    }
    return nullptr;
  }

 private:
  enum : int32_t { kUnwritten, kWritten, kConstant };
  using Registers = std::vector<int32_t>;
  static size_t at(int32_t i) { return static_cast<size_t>(i); }

  bool fail(const char* why) {
    why_ = why;
    return false;
  }
  bool reads(const Registers& registers, int32_t i) {
    if (i < 0 || at(i) >= registers.size()) return fail("there is no such register");
    return registers[at(i)] != kUnwritten || fail("a register is read before it is written");
  }
  bool can_write(const Registers& registers, int32_t i) {
    if (i < 0 || at(i) >= registers.size()) return fail("there is no such register");
    return registers[at(i)] != kConstant || fail("a constant is overwritten");
  }
  bool writes(Registers& registers, int32_t i) {
    if (!can_write(registers, i)) return false;
    if (again_ && registers[at(i)] == kUnwritten)
      return fail("a repeated value is in no earlier phase");
    registers[at(i)] = kWritten;
    return true;
  }
  bool is_operand(int32_t i, Role role, Role other) {
    if (i < 0 || i >= view_.header.operands) return fail("there is no such operand");
    const Role own = view_.operand_role(i);
    return own == role || own == other || fail("an operand has another role");
  }
  bool is_threshold(int32_t i) {
    if (i < 0 || i >= view_.header.constants) return fail("there is no such constant");
    double threshold;
    memcpy(&threshold, view_.constants + 2 * i, sizeof threshold);
    return (threshold >= 1 && threshold <= 0x1p32) || fail("a threshold is not from 1 to 2^32");
  }
  bool stores(int32_t i, Role role, int32_t half) {
    if (i < 0 || i >= view_.header.results) return fail("there is no such result");
    const Role own = view_.result_role(i);
    const bool halves = own == Role::halves;
    const bool is_full = own == Role::full || own == Role::per_block || halves;
    if (own != role && !(is_full && role == Role::full)) return fail("a result has another role");
    if (half < 0 || half > (halves ? 1 : 0)) return fail("a result has no such half");
    if (stored_[at(i)] >> half & 1) return fail("a result is stored twice");
    stored_[at(i)] |= 1 << half;
    return true;
  }

  // Checks an instruction that any section may have. `reals` and `integers` are the section's
  // registers.
  bool check_common(const Instruction& in, int32_t operation, Registers& reals,
                    Registers& integers) {
    if (operation >= 0 && operation < kElementwise) {
      const int count = arity(operation);
      return reads(reals, in.a) && (count < 2 || reads(reals, in.b)) &&
             (count < 3 || reads(reals, in.c)) && writes(reals, in.to);
    }
    switch (operation) {
      case kIntegerNegative:
        return reads(integers, in.a) && writes(integers, in.to);
      case kIntegerAdd:
      case kIntegerSubtract:
      case kIntegerMultiply:
        return reads(integers, in.a) && reads(integers, in.b) && writes(integers, in.to);
      case kIntegerWhere:
        return reads(reals, in.a) && reads(integers, in.b) && reads(integers, in.c) &&
               writes(integers, in.to);
      case kIntegerLess:
      case kIntegerLessEqual:
      case kIntegerEqual:
      case kIntegerNotEqual:
        return reads(integers, in.a) && reads(integers, in.b) && writes(reals, in.to);
      case kFloat:
        return reads(integers, in.a) && writes(reals, in.to);
      default:
        return fail("an operation is unknown, or belongs to the other kind of section");
    }
  }

  bool check_row(const Instruction& in) {
    switch (in.operation) {
      case kLoadRow:
        return is_operand(in.a, Role::per_row, Role::per_row) && writes(rows_, in.to);
      case kLoadLabel:
        return is_operand(in.a, Role::label, Role::integer) && writes(integer_rows_, in.to);
      case kColumns:
        return writes(rows_, in.to);
      case kIntegerColumns:
        return writes(integer_rows_, in.to);
      case kSpread:
        return reads(rows_, in.a) && writes(tiles_, in.to);
      case kIntegerSpread:
        return reads(integer_rows_, in.a) && writes(integer_tiles_, in.to);
      case kStoreRow:
        return stores(in.a, Role::per_row, 0) && reads(rows_, in.b);
      default:
        return check_common(in, in.operation, rows_, integer_rows_);
    }
  }

  bool check_tile(const Instruction& in) {
    const int32_t operation = in.operation & ~kAgain;
    again_ = operation != in.operation;
    if (again_ && has_effect(operation)) return fail("a store or a reduction is repeated");
    switch (operation) {
      case kLoad: {
        if (in.a < 0 || in.a >= view_.header.operands) return fail("there is no such operand");
        const Role role = view_.operand_role(in.a);
        if (role != Role::full && role != Role::row && role != Role::table &&
            role != Role::halves && role != Role::per_block) {
          return fail("an operand has another role");
        }
        if (in.b < 0 || in.b > (role == Role::halves ? 1 : 0)) {
          return fail("an operand has no such half");
        }
        return writes(tiles_, in.to);
      }
      case kLoadMask:
        return is_operand(in.a, Role::mask, Role::mask) && writes(tiles_, in.to);
      case kColumn:
        return writes(integer_tiles_, in.to);
      case kKeep:
        return is_threshold(in.extra) && reads(integer_rows_, in.a) && reads(integer_rows_, in.b) &&
               (in.c == -1 || reads(integer_rows_, in.c)) && writes(tiles_, in.to);
      case kStore:
        return stores(in.a, Role::full, in.c) && reads(tiles_, in.b);
      case kAddColumns:
        return stores(in.a, Role::row, 0) && reads(tiles_, in.b);
      case kSum:
      case kMax:
      case kArgmax: {
        if (in.extra < 0 || in.extra >= view_.header.reductions || reduced_[at(in.extra)] != 0) {
          return fail("the index of a reduction is out of range or used twice");
        }
        reduced_[at(in.extra)] = 1;
        const bool integer = operation == kArgmax;
        if (!reads(tiles_, in.a) || !can_write(integer ? integer_rows_ : rows_, in.to)) {
          return false;
        }
        pending_.push_back({integer, in.to});
        return true;
      }
      case kBlockSum:
      case kBlockMax:
      case kBlockArgmax: {
        const bool is_block = in.extra == 16 || in.extra == 32 || in.extra == 64 || in.extra == 128;
        return (is_block || fail("a block has other than 16, 32, 64 or 128 columns")) &&
               reads(tiles_, in.a) &&
               writes(operation == kBlockArgmax ? integer_tiles_ : tiles_, in.to);
      }
      default:
        return check_common(in, operation, tiles_, integer_tiles_);
    }
  }

  const View& view_;
  Registers tiles_, integer_tiles_, rows_, integer_rows_;
  Registers reduced_, stored_;
  struct Reduced {
    bool integer;
    int32_t to;
  };
  std::vector<Reduced> pending_;
  bool again_ = false;
  const char* why_ = nullptr;
};

bool is_in(int32_t value, int32_t low, int32_t high) { return value >= low && value <= high; }

// Returns a sentence that stays until the thread's next call.
const char* of_another_version(int32_t version) {
  thread_local char text[160];
  snprintf(text, sizeof text,
           "it has version %d, but this bridge reads versions %d to %d: install a bridge as new as "
           "the one that exported it, or export it again",
           version, kOldestVersion, kVersion);
  return text;
}

void include(View* view, int32_t block) {
  if (block > view->block) view->block = block;
}

}  // namespace

bool outline(const int32_t* words, int64_t count, View* view, const char** why) {
  const auto fail = [why](const char* message) {
    *why = message;
    return false;
  };
  if (words == nullptr || count < kHeaderWords) return fail("it is shorter than its header");
  memcpy(&view->header, words, sizeof(Header));
  const Header& header = view->header;
  if (!is_in(header.version, kOldestVersion, kVersion)) {
    return fail(of_another_version(header.version));
  }
  if (!is_in(header.operands, 1, BRIDGE_MAX_PROGRAM_OPERANDS) ||
      !is_in(header.results, 1, BRIDGE_MAX_PROGRAM_RESULTS) ||
      !is_in(header.tiles, header.constants, kMostRegisters) ||
      !is_in(header.integer_tiles, header.integers, kMostRegisters) ||
      !is_in(header.rows, header.constants, kMostRegisters) ||
      !is_in(header.integer_rows, header.integers, kMostRegisters) ||
      !is_in(header.constants, 0, kMostRegisters) || !is_in(header.integers, 0, kMostRegisters) ||
      !is_in(header.reductions, 0, kMostRegisters) || !is_in(header.phases, 0, kMostPhases)) {
    return fail("a number of its header is out of range");
  }
  int64_t at = kHeaderWords;
  const auto part = [&](int64_t length) {
    const int32_t* begin = words + at;
    at += length;
    return begin;
  };
  const int64_t sections = 2 * int64_t{header.phases} + 1;
  if (at + 2 * (int64_t{header.constants} + header.integers) + header.operands + header.results +
          sections >
      count) {
    return fail("it is shorter than its header says");
  }
  view->constants = part(2 * int64_t{header.constants});
  view->integers = part(2 * int64_t{header.integers});
  view->operand_roles = part(header.operands);
  view->result_roles = part(header.results);
  view->sections = part(sections);
  for (int32_t i = 0; i < header.operands; ++i) {
    if (!is_in(view->operand_roles[i], 0, kRoles - 1)) return fail("a role is unknown");
  }
  for (int32_t i = 0; i < header.results; ++i) {
    const bool is_known = is_in(view->result_roles[i], 0, kRoles - 1);
    const Role role = is_known ? view->result_role(i) : Role::mask;
    if (!is_in(static_cast<int32_t>(role), 0, static_cast<int32_t>(Role::per_row)) &&
        role != Role::halves && role != Role::per_block) {
      return fail("a result has a role that only operands have");
    }
  }
  view->block = 0;
  for (int32_t i = 0; i < header.operands; ++i) include(view, view->operand_block(i));
  for (int32_t i = 0; i < header.results; ++i) include(view, view->result_block(i));
  if (view->operand_role(0) != Role::full && view->operand_role(0) != Role::halves) {
    return fail("its first operand is neither full nor halves");
  }
  int64_t instructions = 0;
  for (int64_t i = 0; i < sections; ++i) {
    if (!is_in(view->sections[i], 0, kMostInstructions)) return fail("a section is too long");
    instructions += view->sections[i];
  }
  if (instructions > kMostInstructions || at + instructions * kInstructionWords != count) {
    return fail("its instructions are more or fewer than its sections say");
  }
  view->code = reinterpret_cast<const Instruction*>(words + at);
  view->instructions = static_cast<int32_t>(instructions);
  return true;
}

bool read(const int32_t* words, int64_t count, View* view, const char** why) {
  if (!outline(words, count, view, why)) return false;
  *why = Checker(*view).run();
  for (int32_t i = 0; i < view->instructions; ++i) {
    const Instruction& in = view->code[i];
    if (is_block_reduction(in.operation & ~kAgain)) include(view, in.extra);
  }
  return *why == nullptr;
}

}  // namespace bridge::interpreter
