#!/usr/bin/env bash
# Every float32 there is through every form and derivative, against a reference that is good to a
# hundredth of a unit in the last place; the keep rate of dropout over 2^28 words; random calls. An hour.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build/accuracy
"${CXX:-g++}" -std=gnu++17 -O3 -march=native -ffp-contract=off -I cpp -I cpp/include \
  tests/accuracy/dropout_keep_rate.cpp -o build/accuracy/dropout_keep_rate
build/accuracy/dropout_keep_rate 28
"${CXX:-g++}" -std=gnu++17 -O3 -march=native -mprefer-vector-width=512 -ffp-contract=off -I cpp \
  tests/accuracy/gelu_accuracy.cpp -o build/accuracy/gelu_accuracy -pthread -lquadmath
"${CXX:-g++}" -std=gnu++17 -O3 -march=native -ffp-contract=off -I cpp \
  tests/accuracy/elementary_accuracy.cpp -o build/accuracy/elementary_accuracy -pthread -lquadmath
build/accuracy/elementary_accuracy --double 1000000
build/accuracy/elementary_accuracy
program=build/accuracy/gelu_accuracy
"$program" --half --json docs/benchmarks/accuracy-half.json
"$program" --double 1000000 --json docs/benchmarks/accuracy-double.json
"$program" "$@" --json docs/benchmarks/accuracy-single.json

# Random calls of the kernels, more than for each commit and others each time.
PATH="$PWD/.venv/bin:$PATH" scripts/check_cpp.sh
for check in build/check-cpp/*_check build/check-simt/bias_*_simt build/check-simt/softmax_simt; do
  seed=$RANDOM
  echo "$check 4000 $seed"
  "$check" 4000 "$seed"
done
