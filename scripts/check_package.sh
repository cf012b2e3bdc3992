#!/usr/bin/env bash
# Checks the installed package: the sdist is complete, a wheel builds from it alone, and that wheel
# imports and compiles a declared op on a machine without either framework and without a CUDA driver.
set -euo pipefail
cd "$(dirname "$0")/.."
work=build/package
rm -rf "$work"
mkdir -p "$work"
python - "$work" <<'PYTHON'
import os
import sys

from scikit_build_core import build

folder = os.path.abspath(sys.argv[1])
print("sdist:", build.build_sdist(folder))
PYTHON
tar -xzf "$work"/*.tar.gz -C "$work"
# -O0 overrides the build's flags: a tenth of the time, and nothing here checks speed or bits.
compile="<CMAKE_CXX_COMPILER> <DEFINES> <INCLUDES> <FLAGS> -O0 -o <OBJECT> -c <SOURCE>"
pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work" \
  --config-settings=cmake.define.BRIDGE_CUDA=OFF --config-settings=cmake.define.BRIDGE_HOT=OFF \
  --config-settings=cmake.define.CMAKE_CXX_COMPILE_OBJECT="$compile" "$work"/bridge_ops-*/
mkdir "$work/site"
pip install --quiet --no-deps --target "$work/site" "$work"/*.whl
for name in LICENSE NOTICE third_party/xla/LICENSE third_party/dlpack/LICENSE; do
  test -f "$work"/site/bridge_ops-*.dist-info/licenses/$name
done
BRIDGE_CACHE_DIR="$work/cache" PYTHONPATH="$work/site" python scripts/try_package.py --compile
