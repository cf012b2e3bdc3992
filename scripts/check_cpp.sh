#!/usr/bin/env bash
# The C++ side by itself: the CPU library against a brute-force reference under ASan and UBSan, the
# CUDA kernels' source in the host emulator against the CPU library bit for bit under the same, the
# calls that kernel_speed times on a GPU, and the accuracy programs: 16-bit inputs all, float32
# coarsely, one checksum for every instruction set, and how many elements dropout keeps.
set -euo pipefail
cd "$(dirname "$0")/.."
sanitize="-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"

cmake -S cpp -B build/check-cpp -G Ninja -DCMAKE_BUILD_TYPE=Release -DBRIDGE_CPP_TESTS=ON \
  -DBRIDGE_WERROR=ON -DCMAKE_CXX_FLAGS="$sanitize" >/dev/null
cmake --build build/check-cpp
ctest --test-dir build/check-cpp --output-on-failure -R '_check$'

# Without sanitizers, whose own symbols stand in the objects: nothing compiled for one instruction
# set may be linked into another. And, because it calls the library some ten thousand times, the
# program that times the kernels on a GPU, on this CPU.
cmake -S cpp -B build/check-symbols -G Ninja -DCMAKE_BUILD_TYPE=Release -DBRIDGE_CPP_TESTS=ON >/dev/null
cmake --build build/check-symbols --target bridge_core kernel_speed_dry
ctest --test-dir build/check-symbols --output-on-failure -R 'isa_symbols|kernel_speed'

cmake -S tests/simt -B build/check-simt -G Ninja -DBRIDGE_SIMT_SANITIZE=ON -DBRIDGE_WERROR=ON \
  >/dev/null
cmake --build build/check-simt
ctest --test-dir build/check-simt --output-on-failure

# The same program for a GPU, as far as it goes without one.
if command -v nvcc >/dev/null; then
  cmake -S tests/speed -B build/check-speed -G Ninja -DBRIDGE_WERROR=ON >/dev/null
  cmake --build build/check-speed
  ctest --test-dir build/check-speed --output-on-failure
else
  echo "check_cpp: no nvcc on this machine, kernel_speed not built"
fi

mkdir -p build/accuracy
checksums=()
for isa in x86-64 x86-64-v3 x86-64-v4; do
  [[ $(uname -m) == x86_64 ]] || isa=native
  program=build/accuracy/gelu_accuracy-$isa
  "${CXX:-g++}" -std=gnu++17 -O3 -march="$isa" -ffp-contract=off -I cpp \
    tests/accuracy/gelu_accuracy.cpp -pthread -lquadmath -o "$program"
  if ! sum=$("$program" --checksum); then
    echo "$isa: this processor does not run it"
    continue
  fi
  checksums+=("$sum")
  best=$program
done
for sum in "${checksums[@]}"; do
  [[ $sum == "${checksums[0]}" ]] || { echo "the bits depend on the instruction set"; exit 1; }
done
"$best" --half
"$best" --stride 997
"$best" --double 100000
"$best" --fma 100000

"${CXX:-g++}" -std=gnu++17 -O3 -march=native -ffp-contract=off -I cpp -I cpp/include \
  tests/accuracy/dropout_keep_rate.cpp -o build/accuracy/dropout_keep_rate
build/accuracy/dropout_keep_rate 24
