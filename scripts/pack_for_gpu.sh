#!/usr/bin/env bash
# Fills build/for_gpu with the files that a GPU machine without network needs besides the tree: the
# libraries and programs to compare and time, built here for its Python and its GPU, and wheels for a
# build that the machine may lack. Prints the total size.
#
#   BRIDGE_GPU_ARCH   the compute capability to build for (90)
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" -m scripts.gpu.pack "$@"
