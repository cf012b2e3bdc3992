#!/usr/bin/env python3
"""Tries an installed package: the import, a declared op on NumPy arrays, an op in each framework.

It asserts that the CPU's package is complete and imports neither framework by itself. The tree that
this script stands in is not used.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent


def in_torch(x: np.ndarray) -> np.ndarray:
    """Returns the GELU of x and its gradient, computed by bridge.torch."""
    import torch

    import bridge.torch

    tensor = torch.from_numpy(x).requires_grad_()
    y = bridge.torch.bias_gelu(tensor)
    (gradient,) = torch.autograd.grad(y.sum(), tensor)
    return np.stack([y.detach().numpy(), gradient.numpy()])


def in_jax(x: np.ndarray) -> np.ndarray:
    """Returns the GELU of x and its gradient, computed by bridge.jax."""
    import jax

    import bridge.jax

    gradient = jax.jit(jax.grad(lambda x: bridge.jax.bias_gelu(x).sum()))(x)
    return np.stack([np.asarray(bridge.jax.bias_gelu(x)), np.asarray(gradient)])


FRAMEWORKS = {"torch": in_torch, "jax": in_jax}


def main() -> None:
    """Runs the command line; an assertion fails where the package is not sound."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("frameworks", nargs="*", metavar="FRAMEWORK", help="torch, jax")
    parser.add_argument("--compile", action="store_true", help="compile the declared op, too")
    chosen = parser.parse_args()
    if unknown := {*chosen.frameworks} - {*FRAMEWORKS}:
        parser.error(f"{unknown.pop()}: expected {', '.join(FRAMEWORKS)}")
    if not chosen.compile:
        os.environ["BRIDGE_COMPILE"] = "0"
    # An editable install would be imported first.
    sys.meta_path = [f for f in sys.meta_path if "ScikitBuildRedirecting" not in type(f).__name__]
    import bridge
    from bridge.generated.cache import headers

    package = Path(bridge.__file__).resolve().parent
    assert package != ROOT / "bridge", package
    assert not bridge.has_cuda()
    assert not bridge.build_info()["cuda"]
    assert headers().resolve().is_relative_to(package)
    for name in ("nodes.cpp", "functions.h", "function_table.h"):
        assert (headers() / "bindings" / "torch" / name).is_file(), name

    @bridge.op
    def scaled(x: bridge.Full) -> Any:
        return 2.0 * x

    if chosen.compile:
        scaled.compile(dtypes=["float32"])
    x = np.linspace(-3, 3, 512, dtype=np.float32).reshape(4, 128)
    assert np.array_equal(scaled(x), 2 * x)
    assert not {"torch", "jax"} & {*sys.modules}
    results = {name: FRAMEWORKS[name](x) for name in chosen.frameworks}
    for name, result in results.items():
        assert np.array_equal(result, next(iter(results.values()))), name
    print("package:", bridge.__version__, bridge.build_info()["cpu_isa"], *results)


if __name__ == "__main__":
    main()
