#!/usr/bin/env bash
# Lays out in build/for_gpu what a GPU machine without network takes along beside the tree: the
# libraries and programs that are compared and timed there, built here for its Python and its GPU,
# and wheels of what a build there needs and the machine may lack. Prints the size of it all.
#
#   BRIDGE_GPU_ARCH   the compute capability to build for (90)
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" -m scripts.gpu.pack "$@"
