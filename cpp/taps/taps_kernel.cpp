// Maps between places, compiled once for each instruction set. Vectors go along the inner indices
// (lanes.h), or along planes if there is one inner index (planes.h); the rest goes one by one. No
// order of additions depends on that.
#include "cpu/tile.h"
#include "drivers/dtypes.h"
#include "math/scalar.h"
#include "taps/lanes.h"
#include "taps/planes.h"
#include "taps/row_mean.h"
#include "taps/taps.h"
#include "tiles/memory_parts.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

constexpr int64_t kAtOnce = 512;  // outputs whose sums stay in a cache

template <class T>
class Taps {
  using Real = real_of<T>;
  static constexpr bool kIsWide = sizeof(T) == sizeof(Real);  // no conversion

  struct Memory {
    Real *totals, *line, *plane, *sums;
    int32_t* places;
    typename Planes<T, Real>::Memory planes;
    typename RowMean<T, Real>::Memory mean;

    Memory(MemoryParts& parts, const bridge_taps& call)
        : planes(parts, has_groups(call)),
          mean(parts, call.kind == BRIDGE_TAPS_ROW_MEAN && call.inner > 1) {
      const bool adds = call.kind == BRIDGE_TAPS_OF_CHOSEN;
      totals = parts.take<Real>(kAtOnce);
      line = parts.take<Real>(kLanes<Real>);
      places = parts.take<int32_t>(kAtOnce);
      plane = parts.take<Real>(!adds && !kIsWide && call.inner == 1 ? call.places : 0);
      sums = parts.take<Real>(adds && !kIsWide ? call.outputs * taps::block_of(call) : 0);
    }
  };

 public:
  static size_t scratch_bytes(const bridge_taps& call) {
    MemoryParts parts(nullptr);
    const Memory memory(parts, call);
    return parts.bytes_from_null();
  }

  static int64_t units(const bridge_taps& call) {
    const int64_t block = taps::block_of(call);
    if (call.kind == BRIDGE_TAPS_OF_CHOSEN) return call.outer * ((call.inner + block - 1) / block);
    if (call.kind == BRIDGE_TAPS_ROW_MEAN) return RowMean<T, Real>::units(call);
    const int64_t group = group_of(call);
    return (call.outer + group - 1) / group * call.outputs;
  }

  static void run(const bridge_taps& call, int64_t first, int64_t end, void* scratch) {
    MemoryParts parts(scratch);
    const Memory memory(parts, call);
    const Taps task(call, memory);
    if (call.kind == BRIDGE_TAPS_OF_CHOSEN) return task.add_chosen(first, end);
    if (call.kind == BRIDGE_TAPS_ROW_MEAN)
      return RowMean<T, Real>::run(call, memory.mean, first, end);
    const int64_t group = group_of(call);
    for (int64_t unit = first; unit < end;) {
      const int64_t outer = unit / call.outputs * group, output = unit % call.outputs;
      const int64_t count = smaller(end - unit, call.outputs - output);
      if (call.kind == BRIDGE_TAPS_CHOSEN)
        task.take_chosen(outer, output, count);
      else if (group > 1)
        task.run_planes(outer, smaller(group, call.outer - outer), output, output + count);
      else if (call.inner == 1)
        task.run_outputs(outer, output, count);
      else
        task.run_lines(outer, output, count);
      unit += count;
    }
  }

 private:
  Taps(const bridge_taps& call, const Memory& memory) : call_(call), memory_(memory) {}

  static bool has_groups(const bridge_taps& call) {
    return call.kind <= BRIDGE_TAPS_LARGEST && call.inner == 1 &&
           call.outer >= Planes<T, Real>::kFewest;
  }
  static int64_t group_of(const bridge_taps& call) {
    return has_groups(call) ? Planes<T, Real>::kGroup : 1;
  }

  // Outputs [first, end) of a group of planes.
  void run_planes(int64_t plane, int64_t count, int64_t first, int64_t end) const {
    if (count >= Planes<T, Real>::kFewest)
      first = Planes<T, Real>(call_, memory_.planes, plane, count).run(first, end);
    for (int64_t i = 0; first < end && i < count; ++i) run_outputs(plane + i, first, end - first);
  }

  const T* source(int64_t outer) const {
    return static_cast<const T*>(call_.x) + outer * call_.places * call_.inner;
  }
  char* result_at(int64_t outer, int64_t output, int64_t inner) const {
    const int64_t bytes = call_.kind == BRIDGE_TAPS_LARGEST ? 4 : static_cast<int64_t>(sizeof(T));
    return static_cast<char*>(call_.result) +
           ((outer * call_.outputs + output) * call_.inner + inner) * bytes;
  }
  const Real* weights(int64_t tap, int64_t output) const {
    return static_cast<const Real*>(call_.weights) + tap * call_.outputs + output;
  }
  const int32_t* table(int64_t tap, int64_t output) const {
    return call_.table + tap * call_.outputs + output;
  }

  // One inner index: outputs [first, first + count) of a plane.
  void run_outputs(int64_t outer, int64_t first, int64_t count) const {
    const T* const from = source(outer);
    const Real* plane;
    if constexpr (kIsWide) {
      plane = from;
    } else {
      load_run(call_.dtype, from, memory_.plane, call_.places);
      plane = memory_.plane;
    }
    for (int64_t i = 0; i < count; i += kAtOnce)
      run_block(plane, outer, first + i, smaller(count - i, kAtOnce));
  }

  void run_block(const Real* plane, int64_t outer, int64_t output, int64_t count) const {
    Real* const totals = memory_.totals;
    if (call_.kind == BRIDGE_TAPS_LARGEST) {
      int32_t* const places = reinterpret_cast<int32_t*>(result_at(outer, output, 0));
      const int32_t* const own = table(0, output);
      BRIDGE_INDEPENDENT
      for (int64_t i = 0; i < count; ++i) {
        places[i] = own[i];
        totals[i] = plane[own[i] < 0 ? 0 : own[i]];
      }
      for (int64_t tap = 1; tap < call_.taps; ++tap) {
        const int32_t* const other = table(tap, output);
        BRIDGE_INDEPENDENT
        for (int64_t i = 0; i < count; ++i) {
          const int32_t place = other[i];
          const Real one = plane[place < 0 ? 0 : place];
          const bool is_new = ((one > totals[i]) | (one != one)) & (place >= 0);
          totals[i] = is_new ? one : totals[i];
          places[i] = is_new ? place : places[i];
        }
      }
      return;
    }
    if (call_.taps == 0) fill(totals, count, Real(0));
    for (int64_t tap = 0; tap < call_.taps; ++tap) {
      const int32_t* const own = table(tap, output);
      const auto add = [&](const auto& term) {
        BRIDGE_INDEPENDENT
        for (int64_t i = 0; i < count; ++i) {
          const Real one = plane[own[i] < 0 ? 0 : own[i]];
          const Real before = tap == 0 ? Real(0) : totals[i];
          const Real next = term(one, totals[i], i);
          totals[i] = own[i] < 0 ? before : next;
        }
      };
      add_term(tap, output, add);
    }
    if (call_.kind == BRIDGE_TAPS_AVERAGE) {
      const Real* const divisors = weights(0, output);
      for (int64_t i = 0; i < count; ++i) totals[i] = totals[i] / divisors[i];
    }
    store_run(call_.dtype, result_at(outer, output, 0), totals, count);
  }

  // Calls add(term) with the term of a tap: term(x, sum, output) returns the next sum.
  template <class Add>
  inline __attribute__((always_inline)) void add_term(int64_t tap, int64_t output,
                                                      const Add& add) const {
    const Real* const w = weights(call_.kind == BRIDGE_TAPS_AVERAGE ? 0 : tap, output);
    if (call_.kind == BRIDGE_TAPS_WEIGHTED) {
      if (tap == 0) return add([w](Real one, Real, int64_t i) { return one * w[i]; });
      return add([w](Real one, Real sum, int64_t i) { return math::fma(one, w[i], sum); });
    }
    if (call_.kind == BRIDGE_TAPS_SHARES) {
      if (tap == 0) return add([w](Real one, Real, int64_t i) { return one / w[i]; });
      return add([w](Real one, Real sum, int64_t i) { return sum + one / w[i]; });
    }
    if (tap == 0) return add([](Real one, Real, int64_t) { return one; });
    add([](Real one, Real sum, int64_t) { return sum + one; });
  }

  // Several inner indices: whole vectors of them, then the rest.
  void run_lines(int64_t outer, int64_t first, int64_t count) const {
    const int64_t inner = call_.inner, whole = inner / kLanes<Real> * kLanes<Real>;
    if (whole > 0) {
      T* const to = static_cast<T*>(call_.result) + outer * call_.outputs * inner;
      int32_t* const places = static_cast<int32_t*>(call_.result) + outer * call_.outputs * inner;
      const LaneSums<Real, T, T, int32_t> lanes{call_,  source(outer), inner, to,
                                                places, inner,         0,     0};
      lanes.run(first, first + count, whole);
    }
    if (whole == inner) return;
    for (int64_t output = first; output < first + count; ++output)
      run_line(outer, output, whole, inner - whole);
  }

  // Returns the numbers of a place in the arithmetic's type.
  const Real* line_of(int64_t outer, int64_t place, int64_t c, int64_t count) const {
    const T* const from = source(outer) + (place < 0 ? 0 : place) * call_.inner + c;
    if constexpr (kIsWide) {
      return from;
    } else {
      load_run(call_.dtype, from, memory_.line, count);
      return memory_.line;
    }
  }

  void run_line(int64_t outer, int64_t output, int64_t c, int64_t count) const {
    Real* const totals = memory_.totals;
    if (call_.kind == BRIDGE_TAPS_LARGEST) {
      int32_t* const places = reinterpret_cast<int32_t*>(result_at(outer, output, c));
      const int32_t own = *table(0, output);
      copy(totals, line_of(outer, own, c, count), count);
      fill(places, count, own);
      for (int64_t tap = 1; tap < call_.taps; ++tap) {
        const int32_t place = *table(tap, output);
        if (place < 0) break;
        const Real* const line = line_of(outer, place, c, count);
        BRIDGE_INDEPENDENT
        for (int64_t i = 0; i < count; ++i) {
          const bool is_new = (line[i] > totals[i]) | (line[i] != line[i]);
          totals[i] = is_new ? line[i] : totals[i];
          places[i] = is_new ? place : places[i];
        }
      }
      return;
    }
    int64_t tap = 0;
    for (; tap < call_.taps; ++tap) {
      const int32_t place = *table(tap, output);
      if (place < 0) break;
      const Real* const line = line_of(outer, place, c, count);
      const auto add = [&](const auto& term) {
        BRIDGE_INDEPENDENT
        for (int64_t i = 0; i < count; ++i) totals[i] = term(line[i], totals[i], 0);
      };
      add_term(tap, output, add);
    }
    if (tap == 0) fill(totals, count, Real(0));
    if (call_.kind == BRIDGE_TAPS_AVERAGE) {
      const Real divisor = *weights(0, output);
      for (int64_t i = 0; i < count; ++i) totals[i] = totals[i] / divisor;
    }
    store_run(call_.dtype, result_at(outer, output, c), totals, count);
  }

  void take_chosen(int64_t outer, int64_t first, int64_t count) const {
    const T* const from = source(outer);
    const int64_t inner = call_.inner, begin = (outer * call_.outputs + first) * inner;
    const int32_t* const chosen = call_.chosen + begin;
    T* const to = static_cast<T*>(call_.result) + begin;
    const auto place = [&](int64_t i) {
      return chosen[i] < 0 || chosen[i] >= call_.places ? 0 : int64_t{chosen[i]};
    };
    if (inner == 1) {
      for (int64_t i = 0; i < count; ++i) to[i] = from[place(i)];
      return;
    }
    for (int64_t output = 0; output < count; ++output)
      for (int64_t c = 0; c < inner; ++c) {
        const int64_t i = output * inner + c;
        to[i] = from[place(i) * inner + c];
      }
  }

  // Blocks [first, end) of inner indices of all outer ones: each place adds to its chosen output.
  void add_chosen(int64_t first, int64_t end) const {
    const int64_t block = taps::block_of(call_), blocks = (call_.inner + block - 1) / block;
    for (int64_t unit = first; unit < end; ++unit) {
      const int64_t outer = unit / blocks, c = unit % blocks * block;
      const int64_t count = smaller(block, call_.inner - c), inner = call_.inner;
      T* const to = static_cast<T*>(call_.result) + outer * call_.outputs * inner + c;
      Real* sums;
      int64_t step = inner;
      if constexpr (kIsWide) {
        sums = to;
      } else {
        sums = memory_.sums;
        step = count;
      }
      for (int64_t output = 0; output < call_.outputs; ++output)
        for (int64_t i = 0; i < count; ++i) sums[output * step + i] = 0;
      const T* from = source(outer) + c;
      const int32_t* chosen = call_.chosen + outer * call_.places * inner + c;
      for (int64_t place = 0; place < call_.places; ++place, from += inner, chosen += inner)
        for (int64_t i = 0; i < count; ++i)
          if (chosen[i] >= 0 && chosen[i] < call_.outputs)
            sums[chosen[i] * step + i] += to_real<Real>(from[i]);
      if constexpr (!kIsWide)
        for (int64_t output = 0; output < call_.outputs; ++output)
          store_run(call_.dtype, to + output * inner, sums + output * step, count);
    }
  }

  const bridge_taps& call_;
  const Memory& memory_;
};

template <class T>
constexpr taps::Kernel kernel_of = {Taps<T>::units, Taps<T>::scratch_bytes, Taps<T>::run};

}  // namespace

constexpr TapsTable taps_table = {
    {kernel_of<math::float16>, kernel_of<math::bfloat16>, kernel_of<float>, kernel_of<double>}};

}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge
