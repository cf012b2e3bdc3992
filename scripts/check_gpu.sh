#!/usr/bin/env bash
# Runs all checks that need a GPU, in three stages of under nine minutes each, without network:
#
#   scripts/check_gpu.sh truth     builds, compares CUDA with CPU bit for bit, tests (5 minutes)
#   scripts/check_gpu.sh speed     measures, with nothing else running (7 minutes)
#   scripts/check_gpu.sh depth     all of the parity grid and of the suite, sanitizers (9 minutes)
#   scripts/check_gpu.sh --rehearse [stage]    the same steps on a machine without a GPU
#
# docs/gpu.md describes the requirements, the results and their use. PYTHON is the interpreter
# (default python3): it has torch, jax and pytest, and no editable install of bridge.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" -m scripts.gpu.check "$@"
