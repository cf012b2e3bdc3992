// Elements of arrays in the registers of a generated kernel: in vectors of 16 bytes if an array is
// aligned, otherwise one element after the other. `W` is the row driver (row_driver.cuh).
#ifndef BRIDGE_GENERATED_CUDA_STREAMS_CUH_
#define BRIDGE_GENERATED_CUDA_STREAMS_CUH_

#include <string.h>

#include "cuda/vector.h"

namespace bridge::interpreter {

// Returns `value`, hidden from the compiler, which then cannot reuse results computed from `value`
// before.
template <class T>
BRIDGE_DEVICE T hidden(T value) {
  uint32_t words[sizeof value / 4];
  memcpy(words, &value, sizeof value);
#pragma unroll
  for (uint32_t& word : words) word = simt::unknown(word);
  memcpy(&value, words, sizeof value);
  return value;
}

// Returns the address of a row in an array; the address stays in registers if W::kFindsOnce.
template <class W, class T>
BRIDGE_DEVICE T* found(T* place) {
  if constexpr (W::kFindsOnce) return simt::found_global(place);
  return place;
}

// Adjacent elements of a vector, read and written by the widest loads and stores.
template <class T, int kCount>
struct alignas(kCount * sizeof(T) < 16 ? kCount * sizeof(T) : 16) Pack {
  T element[kCount];
  static constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  using Word = std::conditional_t<kBytes == 8, uint64_t,
                                  std::conditional_t<kBytes == 4, uint32_t, uint16_t>>;

  BRIDGE_DEVICE void read(const char* from) {
    if constexpr (kBytes >= 16) {
#pragma unroll
      for (int i = 0; i < kBytes / 16; ++i) {
        const simt::Vector16 words = simt::load16(from + 16 * i);
        memcpy(reinterpret_cast<char*>(element) + 16 * i, &words, 16);
      }
    } else {
      const Word word = simt::load_word<Word>(from);
      memcpy(element, &word, sizeof word);
    }
  }
  template <bool kIsWhole = false>
  BRIDGE_DEVICE void write(char* to) const {
    if constexpr (kBytes >= 16) {
#pragma unroll
      for (int i = 0; i < kBytes / 16; ++i) {
        simt::Vector16 words;
        memcpy(&words, reinterpret_cast<const char*>(element) + 16 * i, 16);
        kIsWhole ? simt::store16_whole(to + 16 * i, words) : simt::store16(to + 16 * i, words);
      }
    } else {
      Word word;  // memcpy to `to` would copy single bytes, because its alignment is unknown
      memcpy(&word, element, sizeof word);
      simt::store_word(to, word);
    }
  }
};

// The part of the current chunk that a thread has of half `half` of an array; of both halves if
// they alternate, with kEach = 2 elements for each column. kIsKept: the elements stay in registers
// from one section to the next, in a kernel whose rows do. kIsWhole: a whole chunk is loaded before
// its first use, which keeps many loads in flight; other arrays are loaded vector by vector.
// kIsShared: all rows share the array, and it is loaded once if all vectors of a thread have the
// same columns. A Part (row_driver.cuh) tells the elements in the row from others.
template <class W, class T, bool kIsKept, bool kIsWhole_, bool kIsShared_, int kEach = 1,
          int kHeldAt = -1>
class Load {
  static constexpr bool kIsShared = kIsShared_ && W::kHasRows;

 public:
  // Loads of single elements would need too many addresses for a whole chunk.
  static constexpr bool kIsWhole =
      kIsWhole_ && W::kIsAligned && !kIsShared && !W::kIsFull && (kIsKept || !W::kIsWide);

  BRIDGE_DEVICE Load(const W& driver, int array, int half)
      : from_(found<W>(driver.template place<T, kEach>(array, half))),
        stride_(driver.col_stride(array)),
        row_stride_(driver.row_stride(array)),
        has_vectors_(W::kIsAligned || driver.has_vectors(array)) {}

  template <class Part>
  BRIDGE_DEVICE void load(const Part& part) {
    if constexpr (kIsShared) {
      read(part, 0, vector_[0]);
    } else if constexpr (kIsWhole) {
#pragma unroll
      for (int q = 0; q < W::kVectors; ++q) read(part, q, vector_[q]);
    }
  }
  template <class Part>
  BRIDGE_DEVICE void load_again(const Part& part) {
    if constexpr (kIsHeld && kIsWhole) {
      if (!part.driver.is_held()) return load(part);
#pragma unroll
      for (int q = 0; q < W::kVectors; ++q) read_held(part, q, vector_[q]);
    } else if constexpr (!(kIsKept && W::kIsResident)) {
      load(part);
    } else if constexpr (Vector::kBytes % 4 == 0) {
      // Hidden, because the compiler would also keep values computed from the vectors.
#pragma unroll
      for (int q = 0; q < W::kVectors; ++q) vector_[kIsWhole ? q : 0] = hidden(at(q));
    }
  }
  template <class Part>
  BRIDGE_DEVICE void load_vector(const Part& part, int q) {
    if constexpr (!kIsWhole && !kIsShared) {
      // The barrier keeps the compiler from starting all loads at once, which would take the
      // registers of kept values.
      if (W::kLoadsLate && q % 2 == 0) simt::sync_warp();
      read(part, q, vector_[0]);
    }
    // Each thread holds only elements in shared memory that it reads again itself.
    if constexpr (kIsHeld) {
      if (part.driver.is_held() && part.is_in(q, 0)) at(q).write(held(part, q));
    }
  }
  template <class Part>
  BRIDGE_DEVICE void load_vector_again(const Part& part, int q) {
    if constexpr (kIsHeld) {
      if constexpr (kIsWhole) return;
      if (part.driver.is_held()) return read_held(part, q, vector_[0]);
      read(part, q, vector_[0]);
    } else {
      load_vector(part, q);
    }
  }

  // Returns element e of vector q as a number. A column may have several elements.
  BRIDGE_DEVICE typename W::Real real(int q, int e) const {
    if constexpr (std::is_same_v<T, math::bfloat16> && W::kIsAligned) {
      // The same as widen_element, from a word with two elements.
      const uint32_t word = pair(q, e / 2);
      return math::bit_cast<float>(e % 2 != 0 ? word & 0xffff0000u : word << 16);
    } else {
      return simt::widen<typename W::Real>(at(q).element[e]);
    }
  }
  BRIDGE_DEVICE void put_lowest(int q, int e) {
    vector_[kIsWhole ? q : 0].element[e] = math::round_to<T>(typename W::Real(-__builtin_inf()));
  }
  BRIDGE_DEVICE bool truth(int q, int e) const { return at(q).element[e] != 0; }
  // Returns a copy with a vector hidden from the compiler.
  BRIDGE_DEVICE Load copied(int q) const {
    Load copy = *this;
    if constexpr (Vector::kBytes % 4 == 0) copy.vector_[kIsWhole ? q : 0] = hidden(at(q));
    return copy;
  }
  // Returns two elements of 16 bits as a word.
  BRIDGE_DEVICE uint32_t pair(int q, int i) const {
    uint32_t word;
    memcpy(&word, at(q).element + 2 * i, sizeof word);
    return word;
  }

 private:
  using Vector = Pack<T, kEach * W::kVector>;

  static constexpr bool kIsHeld = kHeldAt >= 0 && W::kHolds;

  template <class Part>
  static BRIDGE_DEVICE char* held(const Part& part, int q) {
    return part.driver.held() + kHeldAt + q * W::kStep * kEach * static_cast<int>(sizeof(T)) +
           part.driver.lane() * (Vector::kBytes - W::kHeldPiece);
  }
  template <class Part>
  BRIDGE_DEVICE void read_held(const Part& part, int q, Vector& to) const {
    if (part.is_in(q, 0))
      to.read(held(part, q));
    else
      to = {};
  }
  BRIDGE_DEVICE const Vector& at(int q) const { return vector_[kIsWhole ? q : 0]; }
  template <class Part>
  BRIDGE_DEVICE void read(const Part& part, int q, Vector& to) const {
    if constexpr (W::kIsAligned) {
      if (part.is_in(q, 0))
        to.read(reinterpret_cast<const char*>(from_ + part.template offset<kEach>(q, row_stride_)));
      else
        to = {};
    } else if (has_vectors_ && part.is_in(q, W::kVector - 1)) {
      to.read(reinterpret_cast<const char*>(from_ + kEach * part.col(q)));
    } else {
      const T* const from = from_ + part.col(q) * stride_;
#pragma unroll
      for (int i = 0; i < kEach * W::kVector; ++i) {
        const int e = i / kEach;
        to.element[i] = part.is_in(q, e) ? from[e * stride_ + i % kEach * (stride_ / 2)] : T{};
      }
    }
  }

  const T* from_;
  int64_t stride_, row_stride_;
  bool has_vectors_;
  Vector vector_[kIsWhole ? W::kVectors : 1];
};

// The same for an operand that all rows share, if a thread has staged it as numbers in shared
// memory (RowDriver::stage).
template <class W, int kNumber>
struct Staged {
  BRIDGE_DEVICE Staged(const W&, int, int) {}
  template <class Part>
  BRIDGE_DEVICE void load(const Part&) {}
  template <class Part>
  BRIDGE_DEVICE void load_again(const Part&) {}
  template <class Part>
  BRIDGE_DEVICE void load_vector(const Part& part, int q) {
    part.driver.read_staged(kNumber, q, vector_);
  }
  template <class Part>
  BRIDGE_DEVICE void load_vector_again(const Part& part, int q) {
    load_vector(part, q);
  }
  BRIDGE_DEVICE typename W::Real real(int, int e) const { return vector_.element[e]; }

 private:
  Pack<typename W::Real, W::kVector> vector_;
};

template <class W, int kNumber, class Load>
using StagedOr = std::conditional_t<W::kStages, Staged<W, kNumber>, Load>;

// Computed values of all elements that a thread has of a row, if they stay in registers.
template <class W, class T, bool kIsKept>
struct Kept {
  static constexpr bool kIs = kIsKept && W::kIsResident && !W::kIsWide;
  T value[kIs ? W::kVectors : 1][W::kVector];

  BRIDGE_DEVICE void put(int q, int e, T x) {
    if constexpr (kIs) value[q][e] = x;
  }
  BRIDGE_DEVICE T take(int q, int e) const { return value[kIs ? q : 0][e]; }
};

// A vector of a result, in an array that may be aligned or not; kEach as in Load.
template <class W, class T, int kEach = 1>
struct Store {
  Pack<T, kEach * W::kVector> vector;

  BRIDGE_DEVICE void put(int e, typename W::Real value) {
    vector.element[e] = math::round_to<T>(value);
  }
  BRIDGE_DEVICE void put_chosen(int chosen, typename W::Real value) {
    const T rounded = math::round_to<T>(value);
    constexpr int kCount = kEach * W::kVector;
    if constexpr (sizeof(T) == 2 && kCount % 2 == 0) {
      // Writes one half of a word, because the elements stay in registers in pairs.
      uint32_t words[kCount / 2], own = 0;
      memcpy(words, &vector, sizeof words);
      memcpy(&own, &rounded, sizeof rounded);
      const bool is_second = chosen % 2 != 0;
      const uint32_t kept = is_second ? 0x0000ffffu : 0xffff0000u;
      own = is_second ? own << 16 : own;
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i)
        words[i] = i == chosen / 2 ? (words[i] & kept) | own : words[i];
      memcpy(&vector, words, sizeof words);
    } else {
#pragma unroll
      for (int e = 0; e < kCount; ++e)
        vector.element[e] = e == chosen ? rounded : vector.element[e];
    }
  }
  // Puts a number that is not rounded yet: others will be added to it.
  BRIDGE_DEVICE void put_term(int e, T value) { vector.element[e] = value; }
  template <class Part>
  BRIDGE_DEVICE void store(const Part& part, int q, T* to, bool has_vectors, int64_t stride,
                           int64_t row_stride) const {
    if constexpr (W::kIsAligned) {
      if (!part.is_written(q)) return;
      // In the column driver (kHasRows), the compiler would merge the stores of both kinds of parts
      // and then split the vectors.
      to += part.template offset<kEach>(q, row_stride);
      vector.template write<W::kHasRows>(reinterpret_cast<char*>(to));
    } else if (has_vectors && part.is_in(q, W::kVector - 1)) {
      vector.write(reinterpret_cast<char*>(to + kEach * part.col(q)));
    } else {
      const int col = part.col(q);
#pragma unroll
      for (int i = 0; i < kEach * W::kVector; ++i) {
        const int e = i / kEach;
        if (part.is_in(q, e)) to[(col + e) * stride + i % kEach * (stride / 2)] = vector.element[i];
      }
    }
  }
};

}  // namespace bridge::interpreter

#endif  // BRIDGE_GENERATED_CUDA_STREAMS_CUH_
