#!/usr/bin/env bash
# Checks the C++ code alone: the CPU library against a brute-force reference under ASan and UBSan,
# the source of the CUDA kernels in the host emulator against the CPU library, bit for bit, under the
# same sanitizers, and the accuracy programs: all 16-bit inputs, a sample of float32, one checksum for
# every instruction set, and the keep rate of dropout.
# --quick leaves out the emulator and the accuracy: the rest takes a minute once it is built.
set -euo pipefail
cd "$(dirname "$0")/.."
unset MAKEFLAGS # of the make that runs this, whose jobs ninja cannot share
jobs=$(nproc)
core=$(ls -t build/cp*-cp*-*/cpp/libbridge_core.a | head -1) # as it is installed

# -O1 overrides the build's -O3, which would double the time to compile without a benefit: reads and
# writes of memory are the same.
sanitize="-g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"
compile="<CMAKE_CXX_COMPILER> <DEFINES> <INCLUDES> <FLAGS> -O1 -o <OBJECT> -c <SOURCE>"
cmake -S cpp -B build/check-cpp -G Ninja -DCMAKE_BUILD_TYPE=Release -DBRIDGE_CPP_TESTS=ON \
  -DBRIDGE_WERROR=ON -DBRIDGE_BUILT="$PWD/$(dirname "$core")" -DCMAKE_CXX_FLAGS="$sanitize" \
  -DCMAKE_CXX_COMPILE_OBJECT="$compile" >/dev/null
cmake --build build/check-cpp
ctest --test-dir build/check-cpp --output-on-failure -j "$jobs" -R '_check$'

# No object for one instruction set may need symbols of another. The check uses installed objects,
# because sanitizers add symbols of their own.
for folder in "$(dirname "$core")"/CMakeFiles/bridge_{kernels,ahead_of_time}_*.dir; do
  isa=${folder##*_}
  objects=$(find "$folder" -name '*.o' -printf '%p;')
  cmake -DNM="${NM:-nm}" -DISA="${isa%.dir}" -DOBJECTS="${objects%;}" -P tests/cpp/isa_symbols.cmake
done

[[ ${1:-} != --quick ]] || exit 0

# The code that is compiled while Python runs must compile without warnings.
torch=$(python -c 'import importlib.util; print(*importlib.util.find_spec("torch").submodule_search_locations)')
headers=$(python -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
"${CXX:-g++}" -std=c++20 -fsyntax-only -Wall -Wextra -Wshadow -Werror -isystem "$torch/include" \
  -isystem "$torch/include/torch/csrc/api/include" -isystem "$headers" -Icpp -Icpp/include cpp/bindings/torch/nodes.cpp

cmake -S tests/simt -B build/check-simt -G Ninja -DBRIDGE_SIMT_SANITIZE=ON \
  -DBRIDGE_SIMT_WITH_CPU=ON -DBRIDGE_WERROR=ON \
  -DBRIDGE_CORE="$PWD/$core" >/dev/null
cmake --build build/check-simt
ctest --test-dir build/check-simt --output-on-failure -j "$jobs"

mkdir -p build/accuracy
"${CXX:-g++}" -std=gnu++17 -O3 -march=native -ffp-contract=off -I cpp -I cpp/include \
  tests/accuracy/dropout_keep_rate.cpp -o build/accuracy/dropout_keep_rate
build/accuracy/dropout_keep_rate 24

if [[ $(uname -m) != x86_64 ]]; then
  echo "check_cpp: the accuracy programs need libquadmath, which GCC has for x86-64"
  exit 0
fi
for name in gelu elementary; do
  checksums=()
  for isa in x86-64 x86-64-v3 x86-64-v4; do
    if [[ $isa == x86-64-v4 && -f /proc/cpuinfo ]] && ! grep -q avx512vl /proc/cpuinfo; then
      echo "$isa: this processor does not run it"
      continue
    fi
    program=build/accuracy/${name}_accuracy-$isa
    "${CXX:-g++}" -std=gnu++17 -O3 -march="$isa" -ffp-contract=off -I cpp \
      tests/accuracy/${name}_accuracy.cpp -pthread -lquadmath -o "$program"
    if ! sum=$("$program" --checksum); then
      echo "$isa: this processor does not run it"
      continue
    fi
    checksums+=("$sum")
    best=build/accuracy/${name}_accuracy-best
    ln -sf "$(basename "$program")" "$best"
  done
  for sum in "${checksums[@]}"; do
    [[ $sum == "${checksums[0]}" ]] || { echo "the bits depend on the instruction set"; exit 1; }
  done
  "$best" --stride 997
done
build/accuracy/elementary_accuracy-best --double 20000
build/accuracy/gelu_accuracy-best --half
build/accuracy/gelu_accuracy-best --double 100000
build/accuracy/gelu_accuracy-best --fma 100000
