// Proves the accuracy of cpp/math over every input, or shows where it is worst.
//
//   g++ -std=gnu++17 -O3 -march=native -ffp-contract=off -I cpp -pthread
//       tests/accuracy/gelu_accuracy.cpp -lquadmath -o gelu_accuracy
//
//   gelu_accuracy [--stride K]   float32: every K-th input (default: all)
//   gelu_accuracy --half         all float16 and bfloat16 inputs, and the 16-bit conversions
//   gelu_accuracy --double N     float64: N random points of each kind against __float128
//   gelu_accuracy --fma N        the emulated fma: N random triples and all difficult ones
//   gelu_accuracy --checksum     hashes that must agree between instruction sets and compilers
//   --json FILE writes the rows; --threads N (default 2). Exit status 1: a bound is exceeded.

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <string>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "checksum.h"
#include "sweeps.h"

int main(int argc, char** argv) {
#if defined(__x86_64__)
  _mm_setcsr(0x1f80);
#endif
  std::string mode = "single";
  std::string json;
  long count = 1;
  int threads = 2;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool last = i + 1 == argc;
    if (argument == "--half" || argument == "--checksum") {
      mode = argument.substr(2);
    } else if ((argument == "--double" || argument == "--fma") && !last) {
      mode = argument.substr(2);
      count = std::atol(argv[++i]);
    } else if (argument == "--stride" && !last) {
      count = std::atol(argv[++i]);
    } else if (argument == "--threads" && !last) {
      threads = std::atoi(argv[++i]);
    } else if (argument == "--json" && !last) {
      json = argv[++i];
    } else {
      std::cerr << "gelu_accuracy: cannot read argument '" << argument << "'\n";
      return 2;
    }
  }
  if (count < 1 || threads < 1) {
    std::cerr << "gelu_accuracy: counts must be at least 1\n";
    return 2;
  }
  if (mode == "checksum") {
    accuracy::print_checksums(std::cout);
    return 0;
  }
  accuracy::Report report;
  if (mode == "single") accuracy::sweep_single(count, threads, report);
  if (mode == "half") accuracy::sweep_half(report);
  if (mode == "double") accuracy::sample_double(count, threads, report);
  if (mode == "fma") accuracy::check_emulated_fma(count, report);
  report.print(std::cout);
  if (!json.empty()) {
    std::ofstream file(json);
    report.print_json(file);
  }
  return report.passed() ? 0 : 1;
}
