// Measures the accuracy of the elementary functions of cpp/math against double and quadruple
// precision.
//
//   elementary_accuracy [--stride K]   float32: every K-th input (default: all)
//   elementary_accuracy --double N     float64: N random points of each kind against __float128
//   elementary_accuracy --checksum     a hash that must agree between instruction sets
//   --threads N (default 2). Exit status 1: a bound is exceeded.

#include <quadmath.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "math/circular.h"
#include "math/convert.h"
#include "math/exponential.h"
#include "math/logarithm.h"
#include "math/tanh_erf.h"
#include "reference.h"
#include "report.h"

namespace accuracy {
namespace {

namespace math = bridge::math;

constexpr int block = 1024;
constexpr double bound = 2.0;

template <class Real>
struct Function {
  const char* name;
  void (*evaluate)(const Real* x, Real* y, int n);
  double (*in_double)(double x);
  __float128 (*in_quad)(__float128 x);
};

// A loop as in the kernels, so that the vectorised code is measured.
template <class Real, Real (*f)(Real)>
void loop(const Real* x, Real* y, int n) {
#pragma GCC ivdep
  for (int i = 0; i < n; ++i) y[i] = f(x[i]);
}

template <class Real>
Real rsqrt(Real x) {
  return 1 / std::sqrt(x);
}

// This uses the smaller of the two exponentials, so that none overflows.
template <class Wide, Wide (*exponential)(Wide)>
Wide sigmoid_of(Wide x) {
  const Wide e = exponential(x < 0 ? x : -x);
  return (x < 0 ? e : Wide(1)) / (1 + e);
}

template <class Real>
std::vector<Function<Real>> functions() {
  using D = double;
  using Q = __float128;
  return {
      {"exp", loop<Real, math::exp<Real>>, std::exp, expq},
      {"exp2", loop<Real, math::exp2<Real>>, std::exp2, exp2q},
      {"expm1", loop<Real, math::expm1<Real>>, std::expm1, expm1q},
      {"log", loop<Real, math::log<Real>>, std::log, logq},
      {"log1p", loop<Real, math::log1p<Real>>, std::log1p, log1pq},
      {"tanh", loop<Real, math::tanh<Real>>, std::tanh, tanhq},
      {"erf", loop<Real, math::erf<Real>>, std::erf, erfq},
      {"sigmoid", loop<Real, math::sigmoid<Real>>, sigmoid_of<D, std::exp>, sigmoid_of<Q, expq>},
      {"silu", loop<Real, math::silu<Real>>,
       [](D x) -> D { return std::isinf(x) && x < 0 ? -0.0 : x * sigmoid_of<D, std::exp>(x); },
       [](Q x) -> Q { return isinfq(x) && x < 0 ? -0.0Q : x * sigmoid_of<Q, expq>(x); }},
      {"softplus", loop<Real, math::softplus<Real>>,
       [](D x) -> D { return (x > 0 ? x : 0) + std::log1p(std::exp(x < 0 ? x : -x)); },
       [](Q x) -> Q { return (x > 0 ? x : 0) + log1pq(expq(x < 0 ? x : -x)); }},
      {"gauss", loop<Real, math::gauss<false, Real>>, [](D x) -> D { return std::exp(-x * x); },
       [](Q x) -> Q { return expq(-x * x); }},
      {"gauss halved", loop<Real, math::gauss<true, Real>>,
       [](D x) -> D { return std::exp(-x * x / 2); }, [](Q x) -> Q { return expq(-x * x / 2); }},
      {"sin", loop<Real, math::sin<Real>>, std::sin, sinq},
      {"cos", loop<Real, math::cos<Real>>, std::cos, cosq},
      {"rsqrt", loop<Real, rsqrt<Real>>, [](D x) -> D { return 1 / std::sqrt(x); },
       [](Q x) -> Q { return 1 / sqrtq(x); }},
  };
}

// The error in units in the last place of the result. It is infinite if exactly one of the result
// and the exact value is NaN, infinite or 0; next to overflow both infinity and the largest number
// are right.
double error_of(float y, double exact) {
  const auto nearest = static_cast<float>(exact);
  const bool same =
      math::to_bits(math::canonical_nan(y)) == math::to_bits(math::canonical_nan(nearest));
  if (same && !std::isnormal(y)) return 0;
  if (y != y || exact != exact || exact == 0) return std::numeric_limits<double>::infinity();
  if (std::isinf(y) || std::isinf(nearest)) return std::fabs(exact) < 0x1.000001p128 ? 1 : INFINITY;
  const double binade = math::bit_cast<double>(math::to_bits(exact) & 0x7FF0000000000000u);
  return std::fabs(y - exact) / (std::fmax(binade, 0x1p-126) * 0x1p-23);
}

double error_of(double y, __float128 exact) {
  const auto nearest = static_cast<double>(exact);
  const bool same =
      math::to_bits(math::canonical_nan(y)) == math::to_bits(math::canonical_nan(nearest));
  if (same && !std::isnormal(y)) return 0;
  if (y != y || nearest != nearest || std::isinf(y) || std::isinf(nearest) || exact == 0)
    return std::numeric_limits<double>::infinity();
  return static_cast<double>(fabsq(y - exact) / unit_in_last_place(exact, 53, -1022));
}

template <class Real>
Row measured(const Function<Real>& f, const Real* x, const Real* y, int n) {
  Row row;
  row.inputs = n;
  for (int i = 0; i < n; ++i) {
    double error = 0;
    if constexpr (sizeof(Real) == sizeof(float))
      error = error_of(y[i], f.in_double(static_cast<double>(x[i])));
    else
      error = error_of(y[i], f.in_quad(x[i]));
    if (!(error <= row.worst)) {
      row.worst = error;
      row.where = static_cast<double>(x[i]);
    }
  }
  return row;
}

Report every_float(long stride, int threads) {
  const auto all = functions<float>();
  std::vector<std::vector<Row>> found(threads, std::vector<Row>(all.size()));
  std::vector<std::thread> workers;
  for (int worker = 0; worker < threads; ++worker) {
    workers.emplace_back([&, worker] {
      std::vector<float> x(block), y(block);
      const std::uint64_t step = static_cast<std::uint64_t>(stride) * threads;
      for (std::uint64_t first = static_cast<std::uint64_t>(stride) * worker; first >> 32 == 0;
           first += step * block) {
        int n = 0;
        for (std::uint64_t bits = first; n < block && bits >> 32 == 0; bits += step)
          x[n++] = math::bit_cast<float>(static_cast<std::uint32_t>(bits));
        for (std::size_t i = 0; i < all.size(); ++i) {
          all[i].evaluate(x.data(), y.data(), n);
          found[worker][i].merge(measured(all[i], x.data(), y.data(), n));
        }
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  Report report;
  for (std::size_t i = 0; i < all.size(); ++i) {
    Row row;
    row.name = std::string("float32 ") + all[i].name;
    row.bound = bound;
    for (const auto& rows : found) row.merge(rows[i]);
    report.rows.push_back(row);
  }
  return report;
}

// Points of every size, near 0, near 1, within the usual exponents, and the special values.
std::vector<double> points(long count) {
  std::mt19937_64 random(20261122);
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::vector<double> x{0.0, -0.0, INFINITY, -INFINITY, NAN, 1.0, -1.0, 0x1p-1074, -0x1p-1074};
  for (long i = 0; i < count; ++i) {
    x.push_back(math::bit_cast<double>(random()));
    x.push_back(std::ldexp(uniform(random), static_cast<int>(random() % 80) - 70));
    x.push_back(1 + std::ldexp(uniform(random), -static_cast<int>(random() % 50)));
    x.push_back(40 * uniform(random));
    x.push_back(760 * uniform(random));
    x.push_back(5 * uniform(random));
  }
  return x;
}

Report random_doubles(long count) {
  const std::vector<double> x = points(count);
  std::vector<double> y(x.size());
  Report report;
  for (const auto& f : functions<double>()) {
    f.evaluate(x.data(), y.data(), static_cast<int>(x.size()));
    Row row = measured(f, x.data(), y.data(), static_cast<int>(x.size()));
    row.name = std::string("float64 ") + f.name;
    row.bound = bound;
    report.rows.push_back(row);
  }
  return report;
}

template <class Real>
std::uint64_t hash_of(const std::vector<Real>& x) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  std::vector<Real> y(x.size());
  for (const auto& f : functions<Real>()) {
    f.evaluate(x.data(), y.data(), static_cast<int>(x.size()));
    for (const Real value : y)
      hash = (hash ^ math::to_bits(math::canonical_nan(value))) * 0x100000001B3u;
  }
  return hash;
}

}  // namespace
}  // namespace accuracy

int main(int argc, char** argv) {
#if defined(__x86_64__)
  _mm_setcsr(0x1f80);
#endif
  std::string mode = "single";
  long count = 1;
  int threads = 2;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--checksum") {
      mode = "checksum";
    } else if (argument == "--double" && i + 1 < argc) {
      mode = "double";
      count = std::atol(argv[++i]);
    } else if (argument == "--stride" && i + 1 < argc) {
      count = std::atol(argv[++i]);
    } else if (argument == "--threads" && i + 1 < argc) {
      threads = std::atoi(argv[++i]);
    } else {
      std::cerr << "elementary_accuracy: cannot read argument '" << argument << "'\n";
      return 2;
    }
  }
  if (count < 1 || threads < 1) {
    std::cerr << "elementary_accuracy: counts must be at least 1\n";
    return 2;
  }
  if (mode == "checksum") {
    const std::vector<double> x = accuracy::points(2000);
    const std::vector<float> narrow(x.begin(), x.end());
    std::cout << std::hex << accuracy::hash_of(x) << accuracy::hash_of(narrow) << "\n";
    return 0;
  }
  const accuracy::Report report =
      mode == "double" ? accuracy::random_doubles(count) : accuracy::every_float(count, threads);
  report.print(std::cout);
  return report.passed() ? 0 : 1;
}
