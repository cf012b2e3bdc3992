#!/usr/bin/env bash
# Runs one of the C++ parts of `make exhaustive` (scripts/exhaustive.py). The references are accurate
# to a hundredth of a unit in the last place.
#
#   random-calls         other random calls of CPU kernels each time; check_cpp.sh builds them
#   emulator             the same for the CUDA kernels in the host emulator
#   accuracy-dropout     the keep rate over 2^28 words
#   accuracy-elementary  every float32, and random float64
#   accuracy-gelu        every float16, bfloat16 and float32, in every form and derivative: an hour
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build/accuracy

compiled() { # a program of tests/accuracy, with further flags
  local program=build/accuracy/$1
  "${CXX:-g++}" -std=gnu++17 -O3 -march=native -ffp-contract=off -I cpp -I cpp/include \
    "tests/accuracy/$1.cpp" -o "$program" -pthread "${@:2}"
  echo "$program"
}

repeated() { # so many calls of a check, from a seed that the log names
  local seed=$RANDOM
  echo "$1 $2 $seed"
  "$1" "$2" "$seed"
}

case ${1:-} in
  random-calls)
    repeated build/check-cpp/program_check 4000
    repeated build/check-cpp/hand_written_check 400
    repeated build/check-cpp/embedding_check 1000
    repeated build/check-cpp/selection_check 1000
    ;;
  emulator)
    repeated build/check-simt/interpreter_simt 2000
    repeated build/check-simt/embedding_simt 1000
    repeated build/check-simt/selection_simt 1000
    ;;
  accuracy-dropout)
    "$(compiled dropout_keep_rate)" 28
    ;;
  accuracy-elementary)
    program=$(compiled elementary_accuracy -lquadmath)
    "$program" --double 1000000
    "$program"
    ;;
  accuracy-gelu)
    program=$(compiled gelu_accuracy -mprefer-vector-width=512 -lquadmath)
    "$program" --half --json docs/benchmarks/accuracy-half.json
    "$program" --double 1000000 --json docs/benchmarks/accuracy-double.json
    "$program" "${@:2}" --json docs/benchmarks/accuracy-single.json
    ;;
  *)
    sed -n '2,10s/^# \?//p' "$0" >&2
    exit 2
    ;;
esac
