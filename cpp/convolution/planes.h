// Depthwise convolutions for values whose channels are apart: vectors go along the places of a
// line. Include this only in files that are compiled once for each instruction set.
//
// The plane of an image and a channel is copied into a box that has zeros around it, widened. Its
// last dimension is cut by the places' step: numbers of neighbouring places are neighbours there.
#ifndef BRIDGE_CONVOLUTION_PLANES_H_
#define BRIDGE_CONVOLUTION_PLANES_H_

#include "convolution/kernels.h"
#include "convolution/store.h"
#include "cpu/tile.h"
#include "products/tile_size.h"
#include "tiles/memory_parts.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

template <class Real>
class PlaneSums {
  static constexpr int kLast = convolution::kSpace - 1, kAtOnce = 8, kWidth = kLanes<Real>;
  using Planes = convolution::Planes;

  struct Memory {
    Real *box, *weights, *sums;
    int64_t* offsets;

    Memory(MemoryParts& parts, const Planes& call) {
      box = parts.take<Real>(call.box_elements() + kWidth);
      weights = parts.take<Real>(call.terms());
      sums = parts.take<Real>(kWidth);
      offsets = parts.take<int64_t>(call.terms());
    }
  };

 public:
  static size_t scratch_bytes(const Planes& call) {
    MemoryParts parts(nullptr);
    const Memory memory(parts, call);
    return parts.bytes_from_null();
  }

  // Runs the plane of one image and one channel.
  static void run(const Planes& call, int64_t unit, void* scratch) {
    MemoryParts parts(scratch);
    const Memory memory(parts, call);
    const PlaneSums task(call, memory, unit / call.channels, unit % call.channels);
    task.fill_box();
    task.load_weights();
    task.run_places();
  }

 private:
  PlaneSums(const Planes& call, const Memory& memory, int64_t image, int64_t channel)
      : call_(call), memory_(memory), image_(image), channel_(channel) {}

  void fill_box() const {
    const int64_t rows = call_.extent[1], pitch = call_.pitch();
    for (int64_t z = 0; z < call_.extent[0]; ++z)
      for (int64_t y = 0; y < rows; ++y) fill_line(z, y, memory_.box + (z * rows + y) * pitch);
    fill(memory_.box + call_.box_elements(), kWidth, Real(0));  // behind the last line
  }

  void fill_line(int64_t z, int64_t y, Real* to) const {
    fill(to, call_.pitch(), Real(0));
    const int64_t at_z = call_.low[0] + z, at_y = call_.low[1] + y, low = call_.low[kLast];
    if (at_z < 0 || at_z >= call_.size[0] || at_y < 0 || at_y >= call_.size[1]) return;
    const int64_t first = low < 0 ? -low : 0;
    const int64_t end = smaller(call_.size[kLast] - low, call_.extent[kLast]);
    if (first >= end) return;
    const int64_t step = call_.stride[kLast], bytes = element_bytes(call_.dtype);
    const char* const from =
        call_.data + (image_ * call_.image_stride + channel_ * call_.channel_stride +
                      at_z * call_.stride[0] + at_y * call_.stride[1] + (low + first) * step) *
                         bytes;
    const int64_t phases = call_.windows.place_step[kLast], width = call_.phase_width();
    if (step == 1 && phases == 1) return load_run(call_.dtype, from, to + first, end - first);
    for (int64_t i = first; i < end; ++i)
      load_run(call_.dtype, from + (i - first) * step * bytes, to + i % phases * width + i / phases,
               1);
  }

  // Weights of the positions in row-major order, and their places in the box.
  void load_weights() const {
    const convolution::Windows& windows = call_.windows;
    const int64_t rows = call_.extent[1], pitch = call_.pitch();
    const int64_t phases = windows.place_step[kLast], bytes = element_bytes(call_.w_dtype);
    int64_t t = 0, at[convolution::kSpace];
    for (at[0] = 0; at[0] < windows.positions[0]; ++at[0])
      for (at[1] = 0; at[1] < windows.positions[1]; ++at[1])
        for (at[2] = 0; at[2] < windows.positions[2]; ++at[2], ++t) {
          int64_t offset = channel_ * call_.w_channel_stride, relative[convolution::kSpace];
          for (int d = 0; d < convolution::kSpace; ++d) {
            offset +=
                (windows.first_position[d] + at[d] * windows.position_step[d]) * call_.w_stride[d];
            relative[d] = windows.start[d] + at[d] * windows.window_step[d] - call_.low[d];
          }
          load_run(call_.w_dtype, call_.w + offset * bytes, memory_.weights + t, 1);
          memory_.offsets[t] = (relative[0] * rows + relative[1]) * pitch +
                               relative[2] % phases * call_.phase_width() + relative[2] / phases;
        }
  }

  struct Vectors {
    const Real* from[kAtOnce];
    int64_t z[kAtOnce], y[kAtOnce], x[kAtOnce];
  };

  void run_places() const {
    const convolution::Windows& windows = call_.windows;
    Vectors vectors;
    int count = 0;
    for (int64_t z = 0; z < windows.places[0]; ++z)
      for (int64_t y = 0; y < windows.places[1]; ++y) {
        const Real* const line = memory_.box + (z * windows.place_step[0] * call_.extent[1] +
                                                y * windows.place_step[1]) *
                                                   call_.pitch();
        for (int64_t x = 0; x < windows.places[2]; x += kWidth) {
          vectors.from[count] = line + x;
          vectors.z[count] = z, vectors.y[count] = y, vectors.x[count] = x;
          if (++count < kAtOnce) continue;
          sum_vectors(vectors, count);
          count = 0;
        }
      }
    if (count == 0) return;
    for (int i = count; i < kAtOnce; ++i) vectors.from[i] = vectors.from[0];
    sum_vectors(vectors, count);
  }

  void sum_vectors(const Vectors& vectors, int count) const {
    Vector<Real> sums[kAtOnce];
    BRIDGE_UNROLL
    for (int i = 0; i < kAtOnce; ++i) sums[i] = all_of(Real(-0.0));
    const int64_t terms = call_.terms();
    for (int64_t t = 0; t < terms; ++t) {
      const Vector<Real> weight = all_of(memory_.weights[t]);
      const int64_t offset = memory_.offsets[t];
      BRIDGE_UNROLL
      for (int i = 0; i < kAtOnce; ++i)
        sums[i] = fma(load(vectors.from[i] + offset), weight, sums[i]);
    }
    Real all[kAtOnce][kWidth];
    BRIDGE_UNROLL
    for (int i = 0; i < kAtOnce; ++i) store(all[i], sums[i]);
    for (int i = 0; i < count; ++i) write(all[i], vectors.z[i], vectors.y[i], vectors.x[i]);
  }

  void write(Real* sums, int64_t z, int64_t y, int64_t x) const {
    const convolution::Windows& windows = call_.windows;
    const int64_t count = smaller(kWidth, windows.places[kLast] - x);
    if (call_.bias != nullptr) {
      Real bias;
      const int64_t step = call_.bias_stride * element_bytes(call_.bias_dtype);
      load_run(call_.bias_dtype, call_.bias + channel_ * step, &bias, 1);
      for (int64_t i = 0; i < count; ++i) sums[i] = sums[i] + bias;
    }
    const int64_t place[convolution::kSpace] = {z, y, x};
    int64_t offset = image_ * call_.c_image_stride + channel_ * call_.c_channel_stride;
    for (int d = 0; d < convolution::kSpace; ++d)
      offset += (windows.first_place[d] + place[d] * windows.result_step[d]) * call_.c_stride[d];
    store_line(call_.c_dtype, call_.c + offset * element_bytes(call_.c_dtype),
               windows.result_step[kLast] * call_.c_stride[kLast], sums, count);
  }

  const Planes& call_;
  const Memory& memory_;
  int64_t image_, channel_;
};

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_CONVOLUTION_PLANES_H_
