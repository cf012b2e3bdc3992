"""An import loads no more than necessary."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("bridge", ["torch", "jax", "numpy.testing", "scipy", "matplotlib"]),
        ("bridge.ops", ["torch", "jax", "scipy"]),
        (
            "bridge.torch",
            ["jax", "jaxlib", "bridge.torch.megatron", "bridge.torch._drop_ins.packed_gates"],
        ),
        ("bridge.jax", ["torch", "flax"]),
        ("bridge.jax.optim", ["torch", "flax", "optax"]),
        ("bridge.cli", ["torch", "jax"]),
    ],
)
def test_import_stays_light(module: str, absent: list[str]) -> None:
    code = f"import {module}, sys; print([m for m in {absent!r} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert result.stdout.strip() == "[]"


def test_nothing_of_a_framework_is_linked() -> None:
    from bridge import _native

    with open(_native.__file__, "rb") as file:
        content = file.read()
    for library in (b"libtorch", b"libc10", b"libjax", b"libcudart.so", b"libcuda.so", b"libgomp"):
        assert library not in content


@pytest.mark.parametrize("missing", ["torch", "jax"])
@pytest.mark.parametrize("name", ["compare", "to_torch"])
def test_what_needs_both_frameworks_says_which_is_missing(name: str, missing: str) -> None:
    code = (
        "import sys\n"
        f"class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] == {missing!r}:\n"
        f"            raise ModuleNotFoundError('No module', name={missing!r})\n"
        "sys.meta_path.insert(0, Missing())\n"
        "import bridge\n"
        f"try: bridge.{name}\n"
        "except ImportError as error: print(error)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert f"bridge.{name} needs {missing}, which is not installed" in result.stdout


def test_check_without_a_framework_says_what_to_install() -> None:
    code = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('torch', 'jax'):\n"
        "            raise ModuleNotFoundError('No module', name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "import bridge, numpy\n"
        "@bridge.op\n"
        "def twice(x: bridge.Full): return 2 * x\n"
        "try: bridge.check(twice, numpy.ones((2, 3)))\n"
        "except ImportError as error: print(error)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "bridge.check needs torch or jax, and neither is installed: pip install" in done.stdout
