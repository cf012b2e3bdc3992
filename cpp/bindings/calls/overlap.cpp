#include "bindings/calls/overlap.h"

#include <numeric>

namespace bridge::bindings {
namespace {

struct Extent {
  uintptr_t first, end;
};

Extent extent_of(const Footprint& array) {
  int64_t low = 0, high = array.cols;
  for (int32_t i = 0; i < array.dims; ++i) {
    const int64_t span = (array.size[i] - 1) * array.stride[i];
    (span < 0 ? low : high) += span;
  }
  const auto base = reinterpret_cast<uintptr_t>(array.data);
  return {base + low * element_bytes(array.dtype), base + high * element_bytes(array.dtype)};
}

bool identical(const Footprint& a, const Footprint& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.cols != b.cols || a.dims != b.dims) {
    return false;
  }
  for (int32_t i = 0; i < a.dims; ++i) {
    if (a.size[i] > 1 && a.stride[i] != b.stride[i]) return false;
  }
  return true;
}

// Returns the largest number of bytes that divides the distance of every run from the first run; 0
// for a single run.
int64_t pitch_of(const Footprint& array) {
  int64_t pitch = 0;
  for (int32_t i = 0; i < array.dims; ++i) {
    if (array.size[i] > 1) pitch = std::gcd(pitch, array.stride[i]);
  }
  return pitch * element_bytes(array.dtype);
}

// Returns true for two column ranges of one matrix, as chunk() makes them: their extents
// interleave, but they share no byte. Modulo the common pitch each array is a single run.
bool interleaved(const Footprint& a, const Footprint& b) {
  const int64_t pitch = std::gcd(pitch_of(a), pitch_of(b));
  if (pitch == 0) return false;
  const auto difference = static_cast<int64_t>(reinterpret_cast<uintptr_t>(a.data) -
                                               reinterpret_cast<uintptr_t>(b.data));
  const int64_t shift = ((difference % pitch) + pitch) % pitch;
  return shift >= b.cols * element_bytes(b.dtype) &&
         shift + a.cols * element_bytes(a.dtype) <= pitch;
}

bool share_memory(const Footprint& a, const Footprint& b) {
  const Extent first = extent_of(a), second = extent_of(b);
  return first.first < second.end && second.first < first.end && !interleaved(a, b);
}

// Returns true if every element of the array has its own address: each dimension steps over the
// whole reach of the finer ones. The test is sufficient, and every array made by one allocation and
// slicing passes it.
bool is_injective(const Footprint& array) {
  int64_t reach = array.cols;
  uint64_t done = 0;
  for (;;) {
    int64_t finest = INT64_MAX;
    int32_t at = -1;
    for (int32_t i = 0; i < array.dims; ++i) {
      const int64_t stride = array.stride[i] < 0 ? -array.stride[i] : array.stride[i];
      if (array.size[i] > 1 && (done >> i & 1) == 0 && stride < finest) finest = stride, at = i;
    }
    if (at < 0) return true;
    if (finest < reach) return false;
    reach += (array.size[at] - 1) * finest;
    done |= uint64_t{1} << at;
  }
}

}  // namespace

bool check_overlap(const Footprint* outputs, size_t output_count, const Footprint* operands,
                   size_t operand_count, const InPlaceRule& rule, CallError* error) {
  for (size_t i = 0; i < output_count; ++i) {
    const Footprint& output = outputs[i];
    if (!is_injective(output)) {
      return error->set(std::string(output.name) +
                        " has elements that share memory with each other");
    }
    for (size_t j = 0; j < operand_count; ++j) {
      if (!share_memory(output, operands[j])) continue;
      const bool in_place = rule.allows(i, j);
      if (in_place && identical(output, operands[j])) continue;
      return error->set(std::string(output.name) + " overlaps " + operands[j].name + " in memory" +
                        (in_place ? " without being the same array" : ""));
    }
    for (size_t j = 0; j < i; ++j) {
      if (share_memory(output, outputs[j])) {
        return error->set("the two outputs overlap in memory");
      }
    }
  }
  return true;
}

}  // namespace bridge::bindings
