// The cache key of a compiled program: its bytecode without the constants read from a call, and the
// dtypes it was specialized for.
#ifndef BRIDGE_PROGRAM_PROGRAM_KEY_H_
#define BRIDGE_PROGRAM_PROGRAM_KEY_H_

#include <bridge/bridge.h>
#include <string.h>

#include <utility>
#include <vector>

#include "program/program.h"

namespace bridge::interpreter {

inline uint64_t mixed(uint64_t hash, uint64_t word) {
  const auto product =
      static_cast<unsigned __int128>(hash ^ word) * static_cast<uint64_t>(0x9E3779B97F4A7C15u);
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Returns a hash of the bytecode of a validated program, without its floating constants. Four
// chains let the multiplications overlap.
inline uint64_t hash_of(const int32_t* words, int64_t count) {
  uint64_t chain[4] = {1, 2, 3, 4};
  int64_t i = kHeaderWords + 2 * words[7];
  for (; i + 8 <= count; i += 8) {
    uint64_t some[4];
    memcpy(some, words + i, sizeof some);
    for (int lane = 0; lane < 4; ++lane) chain[lane] = mixed(chain[lane], some[lane]);
  }
  uint64_t hash = mixed(mixed(chain[0], chain[1]), mixed(chain[2], chain[3]));
  for (; i < count; ++i) hash = mixed(hash, static_cast<uint32_t>(words[i]));
  for (i = 0; i < kHeaderWords; ++i) hash = mixed(hash, static_cast<uint32_t>(words[i]));
  return mixed(hash, static_cast<uint64_t>(count));
}

// Returns true if the numbers are ascending indices of constants of the program.
inline bool are_constants(const View& view, const std::vector<int32_t>& numbers) {
  int32_t least = 0;
  for (const int32_t number : numbers) {
    if (number < least || number >= view.header.constants) return false;
    least = number + 1;
  }
  return true;
}

struct ProgramKey {
  std::vector<int32_t> words, dtypes;
  std::vector<int32_t> free;  // ascending indices of the constants that are read from a call

  // `given`: the dtypes of operands, then results.
  ProgramKey(const View& view, const int32_t* code, int64_t count, const int32_t* given,
             std::vector<int32_t> free_constants = {})
      : words(code, code + count), free(std::move(free_constants)) {
    for (int32_t i = 0; i < view.header.operands; ++i)
      dtypes.push_back(kept(view.operand_role(i), given[i]));
    for (int32_t i = 0; i < view.header.results; ++i)
      dtypes.push_back(kept(view.result_role(i), given[view.header.operands + i]));
  }

  // Returns true if a bytecode is equal to this one in all but the free constants.
  bool is_of(const int32_t* code, int64_t count) const {
    if (words.size() != static_cast<size_t>(count)) return false;
    int64_t from = 0;
    for (const int32_t number : free) {
      const int64_t end = kHeaderWords + 2 * number;
      if (!is_same(code, from, end)) return false;
      from = end + 2;
    }
    return is_same(code, from, count);
  }

  // Returns true if a call has this bytecode and these dtypes.
  bool is_of(const bridge_program& call) const {
    if (!is_of(call.code, call.words)) return false;
    const int32_t* roles = call.code + kHeaderWords + 2 * (call.code[7] + call.code[8]);
    for (int32_t i = 0; i < call.operands + call.results; ++i) {
      const bool is_result = i >= call.operands;
      const int32_t dtype =
          is_result ? call.result[i - call.operands].dtype : call.operand[i].dtype;
      if (kept(static_cast<Role>(roles[i]), dtype) != dtypes[static_cast<size_t>(i)]) return false;
    }
    return true;
  }

 private:
  bool is_same(const int32_t* code, int64_t from, int64_t end) const {
    return memcmp(words.data() + from, code + from,
                  static_cast<size_t>(end - from) * sizeof(int32_t)) == 0;
  }

  // Integers are not part of the key, because machines read them by the call's dtype. Both dtypes
  // of masks are the same bytes.
  static int32_t kept(Role role, int32_t dtype) {
    if (role == Role::label || role == Role::integer) return -1;
    return role == Role::mask ? static_cast<int32_t>(BRIDGE_BOOL) : dtype;
  }
};

}  // namespace bridge::interpreter

#endif  // BRIDGE_PROGRAM_PROGRAM_KEY_H_
