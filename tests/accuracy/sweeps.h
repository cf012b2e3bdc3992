// The measurements of gelu_accuracy.cpp.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "math/convert.h"
#include "math/gelu.h"
#include "reference.h"
#include "report.h"

namespace accuracy {

using namespace bridge::math;

constexpr GeluForm forms[] = {GeluForm::tanh, GeluForm::erf, GeluForm::sigmoid};
constexpr const char* form_names[] = {"tanh", "erf", "sigmoid"};

// The loops below call these on blocks, like the kernels, so that the vectorised code is measured.
template <class Precision, GeluForm F>
void evaluate(const typename Precision::real* h, typename Precision::real* const y[3], int n) {
#pragma GCC ivdep
  for (int i = 0; i < n; ++i) y[0][i] = gelu<Precision, F, 0>(h[i]);
#pragma GCC ivdep
  for (int i = 0; i < n; ++i) y[1][i] = gelu<Precision, F, 1>(h[i]);
#pragma GCC ivdep
  for (int i = 0; i < n; ++i) y[2][i] = gelu<Precision, F, 2>(h[i]);
}

template <class Precision>
void evaluate(GeluForm form, const typename Precision::real* h,
              typename Precision::real* const y[3], int n) {
  if (form == GeluForm::tanh) evaluate<Precision, GeluForm::tanh>(h, y, n);
  if (form == GeluForm::erf) evaluate<Precision, GeluForm::erf>(h, y, n);
  if (form == GeluForm::sigmoid) evaluate<Precision, GeluForm::sigmoid>(h, y, n);
}

template <class Real>
bool same(Real a, Real b) {
  return to_bits(canonical_nan(a)) == to_bits(canonical_nan(b));
}

// Checks the exact results at infinities, zeros and NaN.
template <class Real>
bool special_values_hold(Real h, const Real y[3]) {
  constexpr Real infinity = std::numeric_limits<Real>::infinity();
  if (h != h) return y[0] != y[0] && y[1] != y[1] && y[2] != y[2];
  if (h == infinity) return y[0] == infinity && y[1] == 1 && y[2] == 0;
  if (h == -infinity) return same(y[0], Real(-0.0)) && y[1] == 0 && y[2] == 0;
  if (h == 0) return same(y[0], h);
  return std::signbit(h) == std::signbit(y[0]);
}

// Bounds of the float32 (float64) functions, in the order value, first derivative, second
// derivative.
struct Bounds {
  double ulp[3];
  double window[3][3];   // by form and order: half width around the zeros of the derivatives
  double near_bound[3];  // absolute bound within the window
};

inline std::vector<Row> empty_rows(const std::string& precision, const Bounds& bounds) {
  std::vector<Row> rows;
  for (int form = 0; form < 3; ++form) {
    for (int order = 0; order < 3; ++order) {
      Row row;
      row.name = precision + " " + form_names[form] + " order " + std::to_string(order);
      row.bound = bounds.ulp[order];
      row.window = bounds.window[form][order];
      row.near_bound = bounds.near_bound[order];
      rows.push_back(row);
    }
  }
  return rows;
}

template <class Wide>
void record(Row& row, double h, Wide error, Wide unit, double distance) {
  ++row.inputs;
  const double ulp = static_cast<double>(error / unit);
  if (distance <= row.window) {
    if (static_cast<double>(error) > row.near_zero) row.near_zero = static_cast<double>(error);
    if (ulp > row.bound && distance > row.needed) row.needed = distance;
  } else if (!(ulp <= row.worst)) {
    row.worst = ulp;
    row.where = h;
  }
}

constexpr Bounds single_bounds = {
    {2, 2, 4}, {{0, 0x1p-4, 0.5}, {0, 0x1p-2, 0.5}, {0, 0x1p-4, 0.5}}, {0, 0x1p-24, 0x1p-23}};
constexpr Bounds double_bounds = {
    {4, 4, 8}, {{0, 0x1p-4, 0.5}, {0, 0x1p-2, 0.5}, {0, 0x1p-4, 0.5}}, {0, 0x1p-52, 0x1p-51}};

// The reference for float32, with short cuts for most floats: near zero, where x^3 does not count,
// and far out, where every result is exact or below half of the smallest float.
inline Derivatives<double> quick_reference(GeluForm form, double x) {
  if (x > 128) return {{x, 1, 0}};
  if (x < -128) return {{-0.0, 0, 0}};
  if (std::fabs(x) < 0x1p-30) {
    const double bend = form == GeluForm::sigmoid ? 0.4255 : 0.5 * M_2_SQRTPI * M_SQRT1_2;
    return {{x * (0.5 + bend * x), 0.5 + 2 * bend * x, 2 * bend}};
  }
  return reference<double>(form, x);
}

inline void sweep_single_part(std::uint64_t first, std::uint64_t last, std::uint64_t stride,
                              std::vector<Row>& rows) {
  constexpr int block = 1024;
  std::vector<float> h(block), y0(block), y1(block), y2(block);
  float* const y[3] = {y0.data(), y1.data(), y2.data()};
  double zeros[3][3] = {};
  for (int f = 0; f < 3; ++f)
    for (int order = 1; order < 3; ++order) zeros[f][order] = zero_of_derivative(forms[f], order);
  for (std::uint64_t bits = first; bits < last; bits += stride * block) {
    int n = 0;
    for (; n < block && bits + n * stride < last; ++n)
      h[n] = bit_cast<float>(static_cast<std::uint32_t>(bits + n * stride));
    for (int f = 0; f < 3; ++f) {
      evaluate<Single>(forms[f], h.data(), y, n);
      for (int i = 0; i < n; ++i) {
        const float values[3] = {y0[i], y1[i], y2[i]};
        if (!special_values_hold(h[i], values)) {
          rows[3 * f].worst = std::numeric_limits<double>::infinity();
          rows[3 * f].where = h[i];
        }
        if (!std::isfinite(h[i])) continue;
        const double x = h[i];
        const Derivatives<double> exact = quick_reference(forms[f], x);
        for (int order = 0; order < 3; ++order) {
          const double distance =
              order == 2 ? std::fabs(std::fabs(x) + zeros[f][2]) : std::fabs(x - zeros[f][order]);
          if (order > 0 && distance < rows[3 * f + order].window) {  // the sum cancels
            const long double wide = reference<long double>(forms[f], x).order[order];
            record<long double>(rows[3 * f + order], x, fabsl(values[order] - wide),
                                unit_in_last_place<long double>(wide, 24, -126), distance);
          } else {
            const double value = exact.order[order];
            const std::uint64_t exponent = to_bits(value) & 0x7FF0000000000000u;
            const double binade = std::fmax(bit_cast<double>(exponent), 0x1p-126);
            record<double>(rows[3 * f + order], x, std::fabs(values[order] - value),
                           binade * 0x1p-23, distance);
          }
        }
      }
    }
  }
}

inline void sweep_single(std::uint64_t stride, int threads, Report& report) {
  const std::uint64_t end = std::uint64_t{1} << 32;
  std::vector<std::vector<Row>> parts(threads, empty_rows("float32", single_bounds));
  std::vector<std::thread> workers;
  // The parts are interleaved, because inputs differ in cost.
  const std::uint64_t chunk = 1 << 22;
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      for (std::uint64_t first = t * chunk; first < end; first += threads * chunk) {
        const std::uint64_t aligned = (first + stride - 1) / stride * stride;
        sweep_single_part(aligned, first + chunk, stride, parts[t]);
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  for (int t = 1; t < threads; ++t)
    for (std::size_t i = 0; i < parts[0].size(); ++i) parts[0][i].merge(parts[t][i]);
  report.rows.insert(report.rows.end(), parts[0].begin(), parts[0].end());
}

template <class T>
struct Sixteen;

template <>
struct Sixteen<float16> {
  static constexpr const char* name = "float16";
  static constexpr int bits = 11, emin = -14;
  static constexpr long double largest = 65504.0L;
};

template <>
struct Sixteen<bfloat16> {
  static constexpr const char* name = "bfloat16";
  static constexpr int bits = 8, emin = -126;
  static constexpr long double largest = 0x1.FEp127L;
};

// The error bound is 0.51 units, near the zero of the first derivative too: a result that is not
// correctly rounded is next to a tie.
template <class T>
void sweep_half_type(Report& report) {
  using Type = Sixteen<T>;
  constexpr int count = 65536;
  std::vector<float> h(count), y0(count), y1(count), y2(count);
  float* const y[3] = {y0.data(), y1.data(), y2.data()};
  for (int i = 0; i < count; ++i) h[i] = to_float(T{static_cast<std::uint16_t>(i)});
  for (int f = 0; f < 3; ++f) {
    evaluate<precision_of<T>>(forms[f], h.data(), y, count);
    for (int order = 0; order < 3; ++order) {
      Row row;
      row.name = std::string(Type::name) + " " + form_names[f] + " order " + std::to_string(order);
      row.bound = order < 2 ? 0.51 : 1;
      row.different = 0;
      for (int i = 0; i < count; ++i) {
        const float values[3] = {to_float(round_to<T>(y0[i])), to_float(round_to<T>(y1[i])),
                                 to_float(round_to<T>(y2[i]))};
        if (!special_values_hold(h[i], values)) {
          row.worst = std::numeric_limits<double>::infinity();
          row.where = h[i];
        }
        if (!std::isfinite(h[i])) continue;
        const long double exact =
            reference<long double>(forms[f], static_cast<long double>(h[i])).order[order];
        const long double result = values[order];
        const long double correct = round_to_format(exact, Type::bits, Type::emin);
        if (fabsl(correct) > Type::largest && std::isinf(result)) continue;
        row.different += result != correct;
        record<long double>(row, h[i], fabsl(result - exact),
                            unit_in_last_place<long double>(exact, Type::bits, Type::emin), 1);
      }
      report.rows.push_back(row);
    }
  }
  // Conversions of float and double to T, over a stride of floats and points near ties.
  Row row;
  row.name = std::string("round to ") + Type::name;
  row.different = 0;
  const auto check = [&](double x, T rounded) {
    ++row.inputs;
    const long double result = to_float(rounded);
    long double correct = round_to_format(x, Type::bits, Type::emin);
    if (fabsl(correct) > Type::largest) correct = x > 0 ? INFINITY : -INFINITY;
    const bool right = x != x ? rounded.bits == 0x7FFF
                              : result == correct && std::signbit(result) == std::signbit(x);
    if (!right) {
      row.worst = std::numeric_limits<double>::infinity();
      row.where = x;
      ++row.different;
    }
  };
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 641) {
    const float x = bit_cast<float>(static_cast<std::uint32_t>(bits));
    check(x, round_to<T>(x));
    const double wide = x;
    check(wide, round_to<T>(wide));
    check(std::nextafter(wide, 0.0), round_to<T>(std::nextafter(wide, 0.0)));
  }
  for (int i = 0; i < 2 * count; ++i) {  // every value of T, every tie, and their neighbours
    const double low = to_float(T{static_cast<std::uint16_t>(i / 2)});
    const double high = to_float(T{static_cast<std::uint16_t>(i / 2 + i % 2)});
    const double x = (low + high) / 2;
    for (const double near : {x, std::nextafter(x, 1e308), std::nextafter(x, -1e308)}) {
      check(near, round_to<T>(near));
      const float narrow = static_cast<float>(near);
      for (const float y : {narrow, std::nextafter(narrow, 1e38f), std::nextafter(narrow, -1e38f)})
        check(y, round_to<T>(y));
    }
  }
  report.rows.push_back(row);
}

inline void sweep_half(Report& report) {
  sweep_half_type<float16>(report);
  sweep_half_type<bfloat16>(report);
}

inline void sample_double_part(long count, unsigned seed, std::vector<Row>& rows) {
  std::mt19937_64 random(seed);
  std::vector<double> h;
  const double edge[] = {40, 1.5, 0.8, 0.01};
  for (long i = 0; i < count; ++i) {
    for (const double e : edge)
      h.push_back(e * (static_cast<double>(random() >> 11) * 0x1p-52 - 1));
    h.push_back(bit_cast<double>(random()));
    h.push_back(-440 * (static_cast<double>(random() >> 11) * 0x1p-53));
  }
  for (const double special : {0.0, -0.0, 0x1p-1074, -0x1p-1074, -0x1p-1022, 1e308, -1e308,
                               static_cast<double>(INFINITY), -static_cast<double>(INFINITY),
                               static_cast<double>(NAN), -38.5, -37.5, -21.0, -22.4, -22.6})
    h.push_back(special);
  const int n = static_cast<int>(h.size());
  std::vector<double> y0(n), y1(n), y2(n);
  double* const y[3] = {y0.data(), y1.data(), y2.data()};
  for (int f = 0; f < 3; ++f) {
    evaluate<Double>(forms[f], h.data(), y, n);
    const double zeros[3] = {0, zero_of_derivative(forms[f], 1), zero_of_derivative(forms[f], 2)};
    for (int i = 0; i < n; ++i) {
      const double values[3] = {y0[i], y1[i], y2[i]};
      if (!special_values_hold(h[i], values)) {
        rows[3 * f].worst = std::numeric_limits<double>::infinity();
        rows[3 * f].where = h[i];
      }
      if (!std::isfinite(h[i])) continue;
      const __float128 x = h[i];
      const Derivatives<__float128> exact = reference<__float128>(forms[f], x);
      for (int order = 0; order < 3; ++order) {
        const double distance =
            order == 2 ? std::fabs(std::fabs(h[i]) + zeros[2]) : std::fabs(h[i] - zeros[order]);
        record<__float128>(rows[3 * f + order], h[i], fabsq(values[order] - exact.order[order]),
                           unit_in_last_place<__float128>(exact.order[order], 53, -1022), distance);
      }
    }
  }
}

inline void sample_double(long count, int threads, Report& report) {
  std::vector<std::vector<Row>> parts(threads, empty_rows("float64", double_bounds));
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t)
    workers.emplace_back(
        [&, t] { sample_double_part((count + threads - 1) / threads, t + 1, parts[t]); });
  for (std::thread& worker : workers) worker.join();
  for (int t = 1; t < threads; ++t)
    for (std::size_t i = 0; i < parts[0].size(); ++i) parts[0][i].merge(parts[t][i]);
  report.rows.insert(report.rows.end(), parts[0].begin(), parts[0].end());
}

inline void check_emulated_fma(long count, Report& report) {
  Row row;
  row.name = "emulated fma";
  row.different = 0;
  const auto check = [&](float a, float b, float c) {
    ++row.inputs;
    if (!same(emulated_fma(a, b, c), fmaf(a, b, c))) {
      ++row.different;
      row.worst = std::numeric_limits<double>::infinity();
      row.where = a;
    }
  };
  std::vector<float> nasty;
  for (const std::uint32_t base :
       {0x00000000u, 0x00000001u, 0x00000003u, 0x007FFFFFu, 0x00800000u, 0x00800001u,
        0x00FFFFFFu, 0x0C000001u, 0x1FC00001u, 0x20000001u, 0x33800000u, 0x3F7FFFFFu,
        0x3F800000u, 0x3F800001u, 0x3FFFFFFFu, 0x40000000u, 0x4B800001u, 0x5F000001u,
        0x7F000000u, 0x7F7FFFFFu, 0x7F800000u, 0x7FC00000u, 0x34000001u, 0x2B800000u}) {
    nasty.push_back(bit_cast<float>(base));
    nasty.push_back(bit_cast<float>(base | 0x80000000u));
  }
  for (const float a : nasty)
    for (const float b : nasty)
      for (const float c : nasty) check(a, b, c);
  std::mt19937_64 random(1);
  for (long i = 0; i < count; ++i) {
    const std::uint64_t r = random();
    const std::uint64_t s = random();
    const float a = bit_cast<float>(static_cast<std::uint32_t>(r));
    const float b = bit_cast<float>(static_cast<std::uint32_t>(r >> 32));
    check(a, b, bit_cast<float>(static_cast<std::uint32_t>(s)));
    // The addend is near the product, near half of its last place, or near a denormal result.
    const int shift = static_cast<int>((s >> 32) % 80) - 40;
    const float product = static_cast<float>(std::ldexp(static_cast<double>(a) * b, shift));
    check(a, b, product);
    check(a, b, bit_cast<float>(to_bits(product) & 0xFF800000u));
    const float small = bit_cast<float>(0x20000000u | (to_bits(a) & 0x807FFFFFu));
    const float smaller =
        bit_cast<float>((0x1F800000u - (static_cast<std::uint32_t>(s >> 40) % 24 << 23)) |
                        (to_bits(b) & 0x007FFFFFu));
    check(small, smaller, bit_cast<float>(static_cast<std::uint32_t>(s) & 0x80FFFFFFu));
  }
  report.rows.push_back(row);
}

}  // namespace accuracy
