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
cd "$work"
BRIDGE_CACHE_DIR=cache PYTHONPATH=site python - <<'PYTHON'
import os
import sys

# Install only the wheel: an editable install would be imported first.
sys.meta_path = [f for f in sys.meta_path if "ScikitBuildRedirecting" not in type(f).__name__]
import bridge

assert "package/site/" in bridge.__file__.replace("\\", "/"), bridge.__file__
assert not bridge.has_cuda() and not bridge.build_info()["cuda"]
from bridge.generated.cache import headers

assert headers().is_relative_to(os.path.dirname(bridge.__file__))
for name in ("nodes.cpp", "functions.h", "function_table.h"):
    assert (headers() / "bindings" / "torch" / name).is_file()
import bridge.lang

@bridge.op
def scaled(x: bridge.Full):
    return 2.0 * x

scaled.compile(dtypes=["float32"])
assert not {"torch", "jax"} & set(sys.modules)
print("wheel:", bridge.__version__, bridge.build_info()["cpu_isa"])
PYTHON
