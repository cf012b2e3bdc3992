// Random valid programs. They contain code that a tracer might emit and much that it would not:
// every operation, values of earlier phases computed again, registers reused for one value after
// another.
#ifndef BRIDGE_TESTS_RANDOM_PROGRAM_H_
#define BRIDGE_TESTS_RANDOM_PROGRAM_H_

#include <math.h>
#include <string.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <utility>
#include <vector>

#include "program/program.h"
#include "random_arrays.h"

namespace bridge::random {

using namespace interpreter;  // NOLINT: the words of a program

struct RandomProgram {
  std::vector<int32_t> words;
  // All results are stored after the last load, so that a result may share an operand's memory.
  bool stores_last;
};

struct ProgramSize {
  int64_t most_phases = 4;
  int64_t most_steps = 7;  // per section
  bool frees = true;       // frees registers of values that are not read again
};

class ProgramWriter {
 public:
  explicit ProgramWriter(const ProgramSize& size) : size_(size) {}

  RandomProgram write() {
    phases_ = pick(size_.most_phases + 1);
    stores_last_ = chance(60);
    choose_arrays();
    choose_constants();
    for (int64_t phase = 0; phase <= phases_; ++phase) {
      phase_ = phase;
      write_row_section();
      if (phase < phases_) write_tile_section();
    }
    return {words(), stores_last_};
  }

 private:
  struct Value {
    bool wide, integer;
    int32_t at;  // its register
    Instruction made{};
    std::vector<size_t> inputs{};
    bool fixed = false;  // a constant or spread value, which exists in every phase
    bool constant = false;
    int64_t phase = -1;  // the last phase in which it was computed
    bool alive = true;
    bool used = false;
  };
  struct Pool {
    int32_t size = 0;
    std::vector<int32_t> free{};
  };
  struct Stored {
    Role role;
    int64_t phase;
    bool done = false;
  };

  void choose_arrays() {
    operands_.push_back(chance(80) ? Role::full : Role::halves);
    static const Role others[] = {Role::full,  Role::row,  Role::per_row, Role::label,
                                  Role::table, Role::mask, Role::halves,  Role::integer};
    for (int64_t more = pick(6); more > 0; --more) operands_.push_back(others[pick(8)]);
    if (chance(40)) operands_.insert(operands_.end(), 2, Role::integer);
    static const Role kinds[] = {Role::full, Role::full, Role::row, Role::per_row, Role::halves};
    for (int64_t more = 1 + pick(3); more > 0; --more) {
      const Role role = phases_ == 0 ? Role::per_row : kinds[pick(5)];
      const int64_t last = role == Role::per_row ? phases_ : phases_ - 1;
      results_.push_back({role, stores_last_ || chance(60) ? last : pick(last + 1)});
    }
  }

  void choose_constants() {
    static const double values[] = {0.0, -0.0,  1.0,  -1.0,  0.5,      2.0,       -3.25,
                                    0.1, 1e-40, 1e30, 1e300, INFINITY, -INFINITY, NAN};
    for (int64_t more = pick(4); more > 0; --more) {
      constants_.push_back(values[pick(chance(80) ? 8 : 14)]);
      constant(false, static_cast<int32_t>(constants_.size()) - 1);
    }
    threshold_ = static_cast<int32_t>(constants_.size());
    constants_.push_back(chance(20) ? 0x1p32 : static_cast<double>(1 + (random_bits() >> 32)));
    constant(false, threshold_);
    for (int64_t more = pick(3); more > 0; --more) {
      integers_.push_back(chance(70) ? pick(40) - 5 : static_cast<int64_t>(random_bits()));
      constant(true, static_cast<int32_t>(integers_.size()) - 1);
    }
    for (const bool wide : {false, true}) {
      pool(wide, false).size = static_cast<int32_t>(constants_.size());
      pool(wide, true).size = static_cast<int32_t>(integers_.size());
    }
  }
  void constant(bool integer, int32_t at) {
    for (const bool wide : {false, true}) {
      Value value{wide, integer, at};
      value.fixed = value.constant = value.used = true;
      values_.push_back(value);
    }
  }

  // ---- Values ----

  Pool& pool(bool wide, bool integer) { return pools_[2 * wide + integer]; }
  int32_t take(bool wide, bool integer) {
    Pool& from = pool(wide, integer);
    if (from.free.empty()) return from.size++;
    const auto i = static_cast<size_t>(pick(static_cast<int64_t>(from.free.size())));
    const int32_t at = from.free[i];
    from.free.erase(from.free.begin() + static_cast<int64_t>(i));
    return at;
  }

  bool can_have(size_t i) const {
    const Value& value = values_[i];
    if (!value.alive) return false;
    if (!value.wide || value.fixed || value.phase == phase_) return true;
    return std::all_of(value.inputs.begin(), value.inputs.end(),
                       [this](size_t input) { return can_have(input); });
  }
  // Computes a value that the phase can have, unless it is in its register already.
  void have(size_t i) {
    Value& value = values_[i];
    if (!value.wide || value.fixed || value.phase == phase_) return;
    for (const size_t input : value.inputs) have(input);
    emit(value.made, true);
    value.phase = phase_;
  }

  // Finds a random value of the kind; returns false if there is none.
  bool any(bool wide, bool integer, size_t* found) {
    std::vector<size_t> candidates;
    for (size_t i = 0; i < values_.size(); ++i) {
      const Value& value = values_[i];
      if (value.wide == wide && value.integer == integer && can_have(i)) candidates.push_back(i);
    }
    if (candidates.empty()) return false;
    // Prefer unused and recent values, so that results depend on many values.
    std::vector<size_t> unused;
    for (const size_t i : candidates) {
      if (!values_[i].used) unused.push_back(i);
    }
    if (!unused.empty() && chance(60)) candidates = unused;
    const auto count = static_cast<int64_t>(candidates.size());
    const int64_t i = chance(50) ? count - 1 - pick(std::min<int64_t>(count, 3)) : pick(count);
    *found = candidates[static_cast<size_t>(i)];
    values_[*found].used = true;
    return true;
  }

  void emit(Instruction in, bool again = false) {
    if (again) in.operation |= kAgain;
    code_.push_back(in);
  }

  // Emits an instruction whose result is a new value, computed from the inputs.
  void make(bool wide, bool integer, Instruction in, const std::vector<size_t>& inputs) {
    for (const size_t input : inputs) have(input);
    Value value{wide, integer, take(wide, integer)};
    in.to = value.at;
    value.made = in;
    value.inputs = inputs;
    value.phase = phase_;
    emit(in);
    values_.push_back(value);
  }

  void forget_some(bool in_tile) {
    if (!size_.frees) return;
    for (Value& value : values_) {
      if (!value.alive || value.constant || !chance(6)) continue;
      value.alive = false;
      // A spread value must still exist for the next piece of the row.
      if (value.fixed && in_tile)
        freed_later_.push_back({&pool(value.wide, value.integer), value.at});
      else
        pool(value.wide, value.integer).free.push_back(value.at);
    }
  }

  int32_t any_operand(std::initializer_list<Role> roles) {
    std::vector<int32_t> candidates;
    for (size_t i = 0; i < operands_.size(); ++i) {
      if (std::find(roles.begin(), roles.end(), operands_[i]) != roles.end()) {
        candidates.push_back(static_cast<int32_t>(i));
      }
    }
    if (candidates.empty()) return -1;
    return candidates[static_cast<size_t>(pick(static_cast<int64_t>(candidates.size())))];
  }

  // ---- Steps ----

  int32_t any_elementwise() {
    // Mostly operations whose results are finite for finite inputs.
    static const int32_t tame[] = {kAdd,     kSubtract, kMultiply, kMinimum,     kMaximum, kWhere,
                                   kSigmoid, kTanh,     kSilu,     kGeluTanh,    kGeluErf, kErf,
                                   kGauss,   kFma,      kNegative, kGeluSigmoid, kAbsolute};
    return chance(70) ? tame[pick(17)] : static_cast<int32_t>(pick(kElementwise));
  }

  void compute_reals(bool wide) {
    Instruction in{any_elementwise(), 0, 0, 0, 0, 0};
    std::vector<size_t> inputs(static_cast<size_t>(arity(in.operation)));
    for (size_t& input : inputs) {
      if (!any(wide, false, &input)) return;
    }
    int32_t* const fields[] = {&in.a, &in.b, &in.c};
    for (size_t i = 0; i < inputs.size(); ++i) *fields[i] = values_[inputs[i]].at;
    make(wide, false, in, inputs);
  }

  void compute_integers(bool wide) {
    const auto operation =
        static_cast<int32_t>(kIntegerNegative + pick(kFloat - kIntegerNegative + 1));
    Instruction in{operation, 0, 0, 0, 0, 0};
    size_t a, b, c;
    if (!any(wide, true, &a) || !any(wide, true, &b)) return;
    in.a = values_[a].at, in.b = values_[b].at;
    if (operation == kIntegerNegative || operation == kFloat) {
      return make(wide, operation != kFloat, in, {a});
    }
    if (operation == kIntegerWhere) {
      if (!any(wide, false, &c)) return;
      return make(wide, true, {operation, 0, values_[c].at, values_[a].at, values_[b].at, 0},
                  {c, a, b});
    }
    make(wide, operation < kIntegerWhere, in, {a, b});
  }

  void step_on_rows() {
    size_t value;
    switch (pick(8)) {
      case 0: {
        const int32_t operand = any_operand({Role::per_row});
        if (operand >= 0) make(false, false, {kLoadRow, 0, operand, 0, 0, 0}, {});
        return;
      }
      case 1: {
        const int32_t operand = any_operand({Role::label, Role::integer});
        if (operand >= 0) make(false, true, {kLoadLabel, 0, operand, 0, 0, 0}, {});
        return;
      }
      case 2:
        return make(false, false, {kColumns, 0, 0, 0, 0, 0}, {});
      case 3:
        return compute_integers(false);
      case 4:
      case 5: {
        const bool integer = chance(30);
        if (phase_ == phases_ || !any(false, integer, &value)) return;
        make(true, integer, {integer ? kIntegerSpread : kSpread, 0, values_[value].at, 0, 0, 0},
             {value});
        values_.back().fixed = true;
        return;
      }
      default:
        return compute_reals(false);
    }
  }

  void write_row_section() {
    const size_t before = code_.size();
    for (int64_t steps = pick(size_.most_steps + 1); steps > 0; --steps) {
      step_on_rows();
      forget_some(false);
    }
    for (size_t i = 0; i < results_.size(); ++i) {
      if (results_[i].role != Role::per_row || results_[i].phase != phase_) continue;
      size_t value;
      if (!any(false, false, &value)) {
        make(false, false, {kColumns, 0, 0, 0, 0, 0}, {});
        value = values_.size() - 1;
      }
      emit({kStoreRow, 0, static_cast<int32_t>(i), values_[value].at, 0, 0});
    }
    sections_.push_back(static_cast<int32_t>(code_.size() - before));
  }

  void load_any() {
    const int32_t operand =
        any_operand({Role::full, Role::row, Role::table, Role::halves, Role::mask});
    const Role role = operands_[static_cast<size_t>(operand)];
    if (role == Role::mask) return make(true, false, {kLoadMask, 0, operand, 0, 0, 0}, {});
    const auto half = static_cast<int32_t>(role == Role::halves ? pick(2) : 0);
    make(true, false, {kLoad, 0, operand, half, 0, 0}, {});
  }

  void keep_any() {
    size_t seed, offset, start;
    if (!any(false, true, &seed) || !any(false, true, &offset) || !any(false, true, &start)) return;
    const bool starts = chance(50);
    std::vector<size_t> inputs = {seed, offset};
    if (starts) inputs.push_back(start);
    make(true, false,
         {kKeep, 0, values_[seed].at, values_[offset].at, starts ? values_[start].at : -1,
          threshold_},
         inputs);
  }

  void reduce_any() {
    size_t value;
    if (!any(true, false, &value)) return;
    const auto operation = static_cast<int32_t>(kSum + (chance(50) ? 0 : pick(3)));
    have(value);
    Value reduced{false, operation == kArgmax, take(false, operation == kArgmax)};
    emit({operation, reduced.at, values_[value].at, 0, 0, reductions_++});
    pending_.push_back(reduced);
  }

  size_t wide_value() {
    size_t value;
    if (!any(true, false, &value)) {
      load_any();
      value = values_.size() - 1;
    }
    have(value);
    return value;
  }

  void store_some(bool all) {
    for (size_t i = 0; i < results_.size(); ++i) {
      Stored& result = results_[i];
      if (result.role == Role::per_row || result.phase != phase_ || result.done) continue;
      if (!all && !chance(30)) continue;
      result.done = true;
      std::vector<size_t> from = {wide_value()};
      if (result.role == Role::halves) from.push_back(wide_value());
      // Nothing is loaded after a result is stored, because it may share its operand's memory.
      for (size_t half = 0; half < from.size(); ++half) {
        stores_.push_back({result.role == Role::row ? kAddColumns : kStore, 0,
                           static_cast<int32_t>(i), values_[from[half]].at,
                           static_cast<int32_t>(half), 0});
      }
      if (!stores_last_) flush_stores();
    }
  }
  void flush_stores() {
    for (const Instruction& in : stores_) emit(in);
    stores_.clear();
  }

  void write_tile_section() {
    const size_t before = code_.size();
    for (int64_t steps = 1 + pick(size_.most_steps); steps > 0; --steps) {
      const int64_t kind = pick(12);
      if (kind < 2) load_any();
      if (kind == 2) make(true, true, {kColumn, 0, 0, 0, 0, 0}, {});
      if (kind == 3) keep_any();
      if (kind == 4) compute_integers(true);
      if (kind == 5 || kind == 6) reduce_any();
      if (kind > 6) compute_reals(true);
      if (!stores_last_) store_some(false);
      forget_some(true);
    }
    store_some(true);
    flush_stores();
    sections_.push_back(static_cast<int32_t>(code_.size() - before));
    values_.insert(values_.end(), pending_.begin(), pending_.end());
    pending_.clear();
    for (const auto& [from, at] : freed_later_) from->free.push_back(at);
    freed_later_.clear();
  }

  std::vector<int32_t> words() {
    std::vector<int32_t> words = {kVersion,
                                  static_cast<int32_t>(operands_.size()),
                                  static_cast<int32_t>(results_.size()),
                                  pool(true, false).size,
                                  pool(true, true).size,
                                  pool(false, false).size,
                                  pool(false, true).size,
                                  static_cast<int32_t>(constants_.size()),
                                  static_cast<int32_t>(integers_.size()),
                                  reductions_,
                                  static_cast<int32_t>(phases_)};
    const auto add = [&words](const void* value, size_t count) {
      const size_t at = words.size();
      words.resize(at + count);
      memcpy(words.data() + at, value, count * sizeof(int32_t));
    };
    for (const double value : constants_) add(&value, 2);
    for (const int64_t value : integers_) add(&value, 2);
    const auto add_role = [&](Role role) {
      if (role == Role::halves && chance(40)) role = Role::pairs;
      words.push_back(static_cast<int32_t>(role));
    };
    for (const Role role : operands_) add_role(role);
    for (const Stored& result : results_) add_role(result.role);
    words.insert(words.end(), sections_.begin(), sections_.end());
    for (const Instruction& in : code_) add(&in, kInstructionWords);
    return words;
  }

  const ProgramSize size_;
  int64_t phases_ = 0, phase_ = 0;
  bool stores_last_ = false;
  std::vector<Role> operands_;
  std::vector<Stored> results_;
  std::vector<double> constants_;
  std::vector<int64_t> integers_;
  Pool pools_[4];
  std::vector<Value> values_, pending_;
  std::vector<std::pair<Pool*, int32_t>> freed_later_;
  std::vector<Instruction> code_, stores_;
  std::vector<int32_t> sections_;
  int32_t reductions_ = 0;
  int32_t threshold_ = 0;  // index of a constant
};

inline RandomProgram random_program(const ProgramSize& size = {}) {
  return ProgramWriter(size).write();
}

// A program with every reduction of an operand and the sum of its squares, without later operations
// that could hide a difference. It also stores the sum at every column of its row, so that all
// threads show their value.
inline std::vector<int32_t> reductions() {
  const Header header{kVersion, 1, 5, 3, 0, 4, 1, 0, 0, 4, 2};
  constexpr auto kFull = static_cast<int32_t>(Role::full);
  constexpr auto kPerRow = static_cast<int32_t>(Role::per_row);
  std::vector<int32_t> words(kHeaderWords);
  memcpy(words.data(), &header, sizeof header);
  const Instruction code[] = {
      {kLoad, 0, 0, 0, 0, 0},     {kMultiply, 1, 0, 0, 0, 0}, {kSum, 0, 0, 0, 0, 0},
      {kSum, 1, 1, 0, 0, 1},      {kMax, 2, 0, 0, 0, 2},      {kArgmax, 0, 0, 0, 0, 3},
      {kSpread, 2, 0, 0, 0, 0},   {kStore, 0, 4, 2, 0, 0},    {kFloat, 3, 0, 0, 0, 0},
      {kStoreRow, 0, 0, 0, 0, 0}, {kStoreRow, 0, 1, 1, 0, 0}, {kStoreRow, 0, 2, 2, 0, 0},
      {kStoreRow, 0, 3, 3, 0, 0}};
  words.insert(words.end(), {kFull, kPerRow, kPerRow, kPerRow, kPerRow, kFull, 0, 6, 1, 1, 5});
  const size_t at = words.size();
  words.resize(at + std::size(code) * kInstructionWords);
  memcpy(words.data() + at, code, sizeof code);
  return words;
}

inline int32_t any_word() {
  static const int32_t words[] = {-1, 0,  1,       2,       3,         31,
                                  64, 65, 1 << 12, 1 << 16, INT32_MAX, INT32_MIN};
  return chance(50)   ? words[pick(12)]
         : chance(70) ? static_cast<int32_t>(pick(80))
                      : static_cast<int32_t>(random_bits());
}

// Returns the words with one of them changed, either to any word or to a neighbour, which may be
// another register, operation, operand or half.
inline std::vector<int32_t> mutation_of(std::vector<int32_t> words) {
  int32_t& word = words[static_cast<size_t>(pick(static_cast<int64_t>(words.size())))];
  word = chance(50) ? any_word()
                    : static_cast<int32_t>(static_cast<uint32_t>(word) + (chance(50) ? 1u : -1u));
  return words;
}

}  // namespace bridge::random

#endif  // BRIDGE_TESTS_RANDOM_PROGRAM_H_
