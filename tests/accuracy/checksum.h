// Hashes of the bits of every function's results on a fixed set of inputs. cpp/math promises equal
// hashes on every instruction set, compiler and device.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "math/convert.h"
#include "math/gelu.h"

namespace accuracy {

using namespace bridge::math;

// FNV-1a over the bytes, lowest first.
struct Hash {
  std::uint64_t state = 0xCBF29CE484222325u;

  template <class Bits>
  void add(Bits bits) {
    for (unsigned i = 0; i < sizeof(Bits); ++i) {
      state ^= static_cast<std::uint64_t>(bits >> (8 * i)) & 0xFF;
      state *= 0x100000001B3u;
    }
  }
};

inline std::uint16_t stored_bits(float16 x) { return x.bits; }
inline std::uint16_t stored_bits(bfloat16 x) { return x.bits; }
inline std::uint32_t stored_bits(float x) { return to_bits(x); }
inline std::uint64_t stored_bits(double x) { return to_bits(x); }

// The inputs of each precision: all 16-bit numbers, every 4099th float32, and doubles that are
// spread over the exponents and dense where the functions bend.
inline std::vector<float> single_inputs() {
  std::vector<float> h;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 4099)
    h.push_back(bit_cast<float>(static_cast<std::uint32_t>(bits)));
  return h;
}

inline std::vector<double> double_inputs() {
  std::vector<double> h;
  for (std::uint64_t i = 0; i < 65536; ++i) {
    h.push_back(bit_cast<double>(i << 48 | (i * 0x9E3779B97F4Au & 0xFFFFFFFFFFFFu)));
    h.push_back(static_cast<double>(static_cast<std::int64_t>(i) - 32768) * 0x1.3p-9);
  }
  return h;
}

template <class T>
std::vector<float> inputs_of_16_bits() {
  std::vector<float> h;
  for (std::uint32_t i = 0; i < 65536; ++i) h.push_back(to_float(T{static_cast<std::uint16_t>(i)}));
  return h;
}

template <class Stored, class Real>
void print_hash(std::ostream& out, const std::string& name, const std::vector<Real>& y) {
  Hash hash;
  for (const Real x : y) hash.add(stored_bits(round_to<Stored>(x)));
  char line[128];
  std::snprintf(line, sizeof line, "%016llx %s\n", static_cast<unsigned long long>(hash.state),
                name.c_str());
  out << line;
}

template <class Precision, GeluForm F, int Order, class Stored>
void print_order(std::ostream& out, const std::string& name,
                 const std::vector<typename Precision::real>& h) {
  const int n = static_cast<int>(h.size());
  std::vector<typename Precision::real> y(n);
#pragma GCC ivdep
  for (int i = 0; i < n; ++i) y[i] = gelu<Precision, F, Order>(h[i]);
  print_hash<Stored>(out, name + " order " + std::to_string(Order), y);
}

template <class Precision, GeluForm F, class Stored>
void print_form(std::ostream& out, const std::string& name,
                const std::vector<typename Precision::real>& h) {
  print_order<Precision, F, 0, Stored>(out, name, h);
  print_order<Precision, F, 1, Stored>(out, name, h);
  print_order<Precision, F, 2, Stored>(out, name, h);
}

template <class Precision, class Stored>
void print_precision(std::ostream& out, const std::string& name,
                     const std::vector<typename Precision::real>& h) {
  print_form<Precision, GeluForm::tanh, Stored>(out, name + " tanh", h);
  print_form<Precision, GeluForm::erf, Stored>(out, name + " erf", h);
  print_form<Precision, GeluForm::sigmoid, Stored>(out, name + " sigmoid", h);
}

inline void print_checksums(std::ostream& out) {
  const std::vector<float> single = single_inputs();
  const std::vector<double> wide = double_inputs();
  print_precision<SingleForBfloat16, bfloat16>(out, "bfloat16", inputs_of_16_bits<bfloat16>());
  print_precision<SingleForFloat16, float16>(out, "float16", inputs_of_16_bits<float16>());
  print_precision<SingleForBfloat16, float>(out, "float32 for bfloat16", single);
  print_precision<SingleForFloat16, float>(out, "float32 for float16", single);
  print_precision<Single, float>(out, "float32", single);
  print_precision<Double, double>(out, "float64", wide);
  print_hash<float>(out, "bfloat16 to float", inputs_of_16_bits<bfloat16>());
  print_hash<float>(out, "float16 to float", inputs_of_16_bits<float16>());
  print_hash<bfloat16>(out, "float to bfloat16", single);
  print_hash<float16>(out, "float to float16", single);
  print_hash<float>(out, "float to float", single);
  print_hash<bfloat16>(out, "double to bfloat16", wide);
  print_hash<float16>(out, "double to float16", wide);
  print_hash<float>(out, "double to float", wide);
  print_hash<double>(out, "double to double", wide);
}

}  // namespace accuracy
