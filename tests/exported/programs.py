"""The exported functions: two declared ops and their gradients, one of them in 16 bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import export
from torch.fx.experimental.proxy_tensor import make_fx

import bridge.jax
import bridge.torch

_FOLDER = Path(__file__).parent
TORCH = {name: _FOLDER / f"torch_{name}.pt2" for name in ("values", "gradients")}
JAX, VERSIONS = _FOLDER / "jax_gradients.bin", _FOLDER / "versions.json"

Arrays = tuple[Any, ...]


def _inputs() -> list[Any]:
    """Returns x, the weight and the cotangent of rms_norm, then x and the cotangent of swiglu."""
    rng = np.random.default_rng(7)
    return [rng.normal(size=shape) for shape in ((5, 33), (33,), (5, 33), (7, 48), (7, 24))]


def torch_inputs() -> Arrays:
    dtypes = [torch.float32] * 3 + [torch.bfloat16] * 2
    return tuple(torch.from_numpy(a).to(d) for a, d in zip(_inputs(), dtypes, strict=True))


def jax_inputs() -> Arrays:
    dtypes = [jnp.float32] * 3 + [jnp.bfloat16] * 2
    return tuple(jnp.asarray(a.astype(d)) for a, d in zip(_inputs(), dtypes, strict=True))


class Values(torch.nn.Module):
    def forward(self, x: Any, weight: Any, packed: Any) -> Arrays:
        return bridge.torch.rms_norm(x, weight), bridge.torch.swiglu(packed)


def gradients_in_torch(values: Any, *arrays: Any) -> Arrays:
    """Returns the values, and their gradients by autograd."""
    x, weight, ct, packed, packed_ct = arrays
    given = [each.detach().requires_grad_() for each in (x, weight, packed)]
    found = values(*given)
    gradients = torch.autograd.grad(found, given, (ct, packed_ct))
    return *[y.detach() for y in found], *gradients


def gradients_in_jax(x: Any, weight: Any, ct: Any, packed: Any, packed_ct: Any) -> Arrays:
    def values(x: Any, weight: Any, packed: Any) -> Arrays:
        return bridge.jax.rms_norm(x, weight), bridge.jax.swiglu(packed)

    found, pull_back = jax.vjp(values, x, weight, packed)
    return *found, *pull_back((ct, packed_ct))


def versions() -> dict[str, list[int]]:
    """Returns the frameworks' versions: an older one need not read the file of a newer one."""
    texts = {"torch": torch.__version__, "jax": jax.__version__}
    return {name: [int(n) for n in text.split(".")[:2]] for name, text in texts.items()}


def write_torch() -> None:
    arrays = torch_inputs()
    x, weight, _, packed, _ = arrays
    graph = make_fx(lambda *arrays: gradients_in_torch(Values(), *arrays))(*arrays)
    for name, module, given in (
        ("values", Values(), (x, weight, packed)),
        ("gradients", graph, arrays),
    ):
        program = torch.export.export(module, given)
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # paths of this machine
        torch.export.save(program, TORCH[name])


def write_jax() -> None:
    jax.config.update("jax_traceback_in_locations_limit", 0)  # no paths either
    checks = [export.DisabledSafetyCheck.custom_call("bridge_program")]
    exported = export.export(jax.jit(gradients_in_jax), platforms=["cpu"], disabled_checks=checks)
    JAX.write_bytes(exported(*jax_inputs()).serialize())


WRITERS = {"torch": write_torch, "jax": write_jax}


def write(framework: str) -> None:
    """Writes the files of a framework anew, and its version."""
    WRITERS[framework]()
    stored = json.loads(VERSIONS.read_text())
    VERSIONS.write_text(json.dumps({**stored, framework: versions()[framework]}) + "\n")
