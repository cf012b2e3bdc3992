#!/usr/bin/env bash
# The C++ side by itself: the CPU library against a brute-force reference, then the CUDA kernels'
# source in the host emulator against the CPU library bit for bit; all under ASan and UBSan. Then a
# coarse sweep of the accuracy program, and its checksum under each instruction set.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/sanitized
flags="-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g1"
cmake -S tests/simt -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_CXX_FLAGS="$flags" -DBRIDGE_CPP_TESTS=ON >/dev/null
cmake --build "$build"
ctest --test-dir "$build" --output-on-failure
