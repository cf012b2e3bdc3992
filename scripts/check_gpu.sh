#!/usr/bin/env bash
# All that only a GPU can tell, in one command of under ten minutes and without network: builds,
# tests, compares CUDA with CPU bit for bit, sanitises, measures. Needs nvcc and a Python with torch,
# jax, nanobind, scikit-build-core, cmake, ninja and pytest.
#
# Every step runs whatever became of the others; the summary at the end names those that failed, and
# the exit status is 1 if any did. Logs go to build/check_gpu, timings to docs/benchmarks under the
# name of the device; both are copied to $OUT where that is set.
#
#   BRIDGE_CHECK_SECONDS   the whole time to take (570)
#   PYTHON                 the interpreter (python3)
set -uo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
budget=${BRIDGE_CHECK_SECONDS:-570}
logs=build/check_gpu
build=build/gpu
ops="bias_dropout_add bias_gelu softmax"
mkdir -p "$logs" docs/benchmarks
# torch and jax share the device; jax would otherwise take three quarters of its memory at once.
export XLA_PYTHON_CLIENT_PREALLOCATE=false
export PATH="$PATH:/usr/local/cuda/bin"

summary=()
failures=0

# step NAME SECONDS COMMAND...: runs it under that limit, or what is left of the whole time.
step() {
  local name=$1 limit=$2 begin=$SECONDS left status
  shift 2
  left=$((budget - SECONDS))
  ((limit > left)) && limit=$left
  echo "== $name"
  if ((limit < 5)); then
    summary+=("FAILED   $name: no time left")
    failures=$((failures + 1))
    return
  fi
  timeout --kill-after=10 "$limit" "$@" >"$logs/$name.log" 2>&1
  status=$?
  tail -n 5 "$logs/$name.log"
  if ((status == 0)); then
    summary+=("passed   $name ($((SECONDS - begin)) s)")
  else
    ((status == 124 || status == 137)) && status="time limit of $limit s"
    summary+=("FAILED   $name ($((SECONDS - begin)) s, status $status): $logs/$name.log")
    failures=$((failures + 1))
  fi
}

skip() { summary+=("skipped  $1: $2"); }

describe_machine() {
  nvidia-smi && nvcc --version && "$python" -m bridge info
}

build_kernels() {
  local arch
  arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .) &&
    cmake -S tests/simt -B "$build" -G Ninja -DBRIDGE_SIMT_GPU=ON \
      -DBRIDGE_CUDA_ARCHS="$arch-real" &&
    cmake --build "$build" --target $(printf "%s_gpu " $ops)
}

has_device() { "$python" -c 'import bridge, sys; sys.exit(not bridge.has_cuda())'; }

# `timeout` runs programs, not functions: these are exported for a shell of their own.
export python build ops
export -f describe_machine build_kernels has_device

device=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
device=$(echo "${device:-no-gpu}" | tr '[:upper:] ' '[:lower:]-' | tr -cd '[:alnum:]-')
sanitizer=$(command -v compute-sanitizer || true)

# Editable: the tests run from this tree and must find the package that was built from it.
step build 240 "$python" -m pip install --no-build-isolation --no-deps -e .
step machine 60 bash -c describe_machine
step device 60 bash -c has_device
# The border first: it takes seconds, and its streams have races to find that nothing else has.
step parity-border 60 "$python" -m bridge parity --device cuda --ops border \
  --json "$logs/parity-border.json"
step races 150 "$python" -m pytest -q -m "slow or not slow" tests/exchange/test_streams.py
for op in $ops; do
  step "parity-$op" 120 "$python" -m bridge parity --device cuda --ops "$op" \
    --json "$logs/parity-$op.json"
done
step build-kernels 180 bash -c build_kernels
for op in $ops; do step "kernels-$op" 90 "$build/${op}_gpu"; done
# Processes on one GPU tell nothing that they do not tell without it, but for NCCL.
step tests 300 "$python" -m pytest -q --ignore=tests/distributed
step nccl 60 "$python" -m pytest -q tests/distributed/test_nccl.py
step bench-border 60 "$python" -m bridge bench --device cuda --ops border \
  --json "docs/benchmarks/$device-border.json"
# An op at a time: what was measured is kept if the time runs out.
for op in $ops; do
  step "bench-$op" 110 "$python" -m bridge bench --device cuda --ops "$op" \
    --json "docs/benchmarks/$device-$op.json" --plot "docs/benchmarks/$device-$op.svg"
done
if [[ -n $sanitizer ]]; then
  for op in $ops; do
    for tool in memcheck racecheck; do
      step "$tool-$op" 60 "$sanitizer" --tool "$tool" --error-exitcode 9 "$build/${op}_gpu" 40 only
    done
  done
else
  skip memcheck "no compute-sanitizer on this machine"
  skip racecheck "no compute-sanitizer on this machine"
fi

{
  echo "check_gpu on $device, $SECONDS s"
  printf '%s\n' "${summary[@]}"
} | tee "$logs/summary.txt"
if [[ -n ${OUT:-} ]]; then
  mkdir -p "$OUT/logs" "$OUT/benchmarks"
  cp -r "$logs/." "$OUT/logs/"
  for file in docs/benchmarks/"$device"-*; do
    [[ -e $file ]] && cp "$file" "$OUT/benchmarks/"
  done
fi
exit $((failures > 0))
