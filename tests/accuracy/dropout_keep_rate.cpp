// Checks that dropout keeps the stated share of elements, without a pattern. It draws many words
// with the CPU kernels' generator and checks
//   - the number of kept words, within 4 standard deviations of the expected share 1 - p, for
//     p = 0.1, 0.5, 0.9;
//   - that neighbours are kept together as often as by chance, within 5 standard deviations:
//     the next element, the element after a row of 4096, the same element under the next seed,
//     under the next offset, and under a seed that differs in its high half.
//
//   dropout_keep_rate [exponent: 2^exponent words (24)]
//
// Any instruction set will do: the words are the same, as tests/cpp checks.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <vector>

#define BRIDGE_ISA_NAMESPACE native
#include "cpu/random_words.h"

namespace {

using bridge::native::RandomWords;

constexpr int64_t kRun = RandomWords::kMost;
constexpr uint64_t kSeed = 1234;

struct Place {
  const char* name;
  uint64_t seed;
  uint64_t offset;
  uint64_t index;
};
constexpr Place kNeighbours[] = {{"the next element", kSeed, 0, 1},
                                 {"the next row", kSeed, 0, 4096},
                                 {"the next seed", kSeed + 1, 0, 0},
                                 {"another high half of the seed", kSeed | uint64_t{1} << 32, 0, 0},
                                 {"the next offset", kSeed, 1, 0}};
constexpr int kPlaces = sizeof kNeighbours / sizeof kNeighbours[0];

struct Counts {
  int64_t kept = 0;
  int64_t together[kPlaces] = {};
};

int64_t count_kept(const uint32_t* words, uint32_t threshold) {
  uint32_t kept = 0;
  for (int64_t i = 0; i < kRun; ++i) kept += words[i] >= threshold ? 1 : 0;
  return kept;
}

int64_t count_together(const uint32_t* words, const uint32_t* others, uint32_t threshold) {
  uint32_t kept = 0;
  for (int64_t i = 0; i < kRun; ++i)
    kept += (words[i] >= threshold ? 1 : 0) & (others[i] >= threshold ? 1 : 0);
  return kept;
}

// Prints a line; returns true if the count is within `most` standard deviations of the expectation.
bool report(double p, const char* what, int64_t count, int64_t draws, double probability,
            double most) {
  const double n = static_cast<double>(draws);
  const double deviation = sqrt(n * probability * (1 - probability));
  const double away = (static_cast<double>(count) - n * probability) / deviation;
  const bool passed = fabs(away) <= most;
  printf("%-4s p = %.1f, %-30s %.8f, expected %.8f: %+.2f standard deviations\n",
         passed ? "ok" : "FAIL", p, what, static_cast<double>(count) / n, probability, away);
  return passed;
}

}  // namespace

int main(int argc, char** argv) {
  const int exponent = argc > 1 ? atoi(argv[1]) : 24;
  if (exponent < 16 || exponent > 40) {
    fprintf(stderr, "dropout_keep_rate: 2^%d words, expected 2^16 to 2^40\n", exponent);
    return 2;
  }
  const int64_t draws = int64_t{1} << exponent;
  constexpr double kRates[] = {0.1, 0.5, 0.9};
  Counts counts[3];
  RandomWords words, others[kPlaces];
  words.begin(kSeed, 0);
  for (int place = 0; place < kPlaces; ++place)
    others[place].begin(kNeighbours[place].seed, kNeighbours[place].offset);
  // The words of a neighbour cost as much again, so only a sixteenth of the elements is compared.
  for (int64_t first = 0; first < draws; first += kRun) {
    const auto index = static_cast<uint64_t>(first);
    const uint32_t* const drawn = words.at(index, kRun, draws - first);
    const bool compared = first / kRun % 16 == 0;
    for (int rate = 0; rate < 3; ++rate) {
      const auto threshold = static_cast<uint32_t>(llround(kRates[rate] * 0x1p32));
      counts[rate].kept += count_kept(drawn, threshold);
    }
    if (!compared) continue;
    for (int place = 0; place < kPlaces; ++place) {
      const uint32_t* const other =
          others[place].at(index + kNeighbours[place].index, kRun, draws - first);
      for (int rate = 0; rate < 3; ++rate) {
        const auto threshold = static_cast<uint32_t>(llround(kRates[rate] * 0x1p32));
        counts[rate].together[place] += count_together(drawn, other, threshold);
      }
    }
  }
  bool passed = true;
  for (int rate = 0; rate < 3; ++rate) {
    const double p = kRates[rate], keep = 1 - p;
    passed &= report(p, "kept", counts[rate].kept, draws, keep, 4);
    for (int place = 0; place < kPlaces; ++place)
      passed &= report(p, kNeighbours[place].name, counts[rate].together[place], draws / 16,
                       keep * keep, 5);
  }
  return passed ? 0 : 1;
}
