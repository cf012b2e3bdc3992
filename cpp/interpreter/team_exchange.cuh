// The exchange of numbers among the threads of a row team. A part of program_kernel.cuh.
#ifndef BRIDGE_INTERPRETER_TEAM_EXCHANGE_CUH_
#define BRIDGE_INTERPRETER_TEAM_EXCHANGE_CUH_

#include "cuda/simt.h"
#include "interpreter/kernel_program.h"

namespace bridge::interpreter {

struct Team {
  int64_t* exchanged;  // shared memory of the block, a number for each thread
  int32_t threads;
  int index;  // of this thread
};

// Returns the sum to every thread of the team, in the order of row_sum_tree.h.
template <class Real>
BRIDGE_DEVICE Real sum_of_team(Real value, const Team& team) {
  constexpr int kWarps = kProgramThreads / simt::kWarpThreads;
  const int warps = team.threads / simt::kWarpThreads;
  if (warps > 1) {
    Real* shared = reinterpret_cast<Real*>(team.exchanged);
    simt::sync();  // the previous exchange has been read
    shared[team.index] = value;
    simt::sync();
    Real part[kWarps];
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      part[i] =
          i < warps ? shared[i * simt::kWarpThreads + team.index % simt::kWarpThreads] : Real(-0.0);
    }
#pragma unroll
    for (int half = kWarps / 2; half > 0; half /= 2) {
#pragma unroll
      for (int i = 0; i < half; ++i) part[i] = part[i] + part[i + half];
    }
    value = part[0];
  }
  for (int bit = simt::kWarpThreads / 2; bit > 0; bit /= 2) {
    value = value + simt::shuffle_xor(value, bit);
  }
  return value;
}

// Returns the best of all values to every thread of the team.
template <class T, class IsBetter>
BRIDGE_DEVICE T best_of_team(T value, const Team& team, const IsBetter& is_better) {
  for (int bit = simt::kWarpThreads / 2; bit > 0; bit /= 2) {
    const T other = simt::shuffle_xor(value, bit);
    value = is_better(other, value) ? other : value;
  }
  const int warps = team.threads / simt::kWarpThreads;
  if (warps == 1) return value;
  T* shared = reinterpret_cast<T*>(team.exchanged);
  simt::sync();  // the previous exchange has been read
  if (team.index % simt::kWarpThreads == 0) shared[team.index / simt::kWarpThreads] = value;
  simt::sync();
  for (int i = 0; i < warps; ++i) value = is_better(shared[i], value) ? shared[i] : value;
  return value;
}

}  // namespace bridge::interpreter

#endif  // BRIDGE_INTERPRETER_TEAM_EXCHANGE_CUH_
