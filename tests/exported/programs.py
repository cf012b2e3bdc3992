"""The exported functions.

Files of version 11 of the bytecode have two declared ops and their gradients, one of them in 16
bits. Those of version 14 have blocks of columns and results of 8 bits.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import export
from torch.fx.experimental.proxy_tensor import make_fx

import bridge
import bridge.jax
import bridge.torch

_FOLDER = Path(__file__).parent
TORCH = {name: _FOLDER / f"torch_{name}.pt2" for name in ("values", "gradients", "blocks")}
JAX = {name: _FOLDER / f"jax_{name}.bin" for name in ("gradients", "blocks")}
VERSIONS = _FOLDER / "versions.json"

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


def _blocks() -> list[Any]:
    """Returns x and the cotangent of fake_quantize."""
    rng = np.random.default_rng(14)
    return [rng.normal(size=(5, 256)).astype(np.float32) for _ in range(2)]


def torch_blocks() -> Arrays:
    return tuple(map(torch.from_numpy, _blocks()))


def jax_blocks() -> Arrays:
    return tuple(map(jnp.asarray, _blocks()))


def _quantised(ops: Any, x: Any) -> Arrays:
    """Returns values and scales of a format of powers of two, and one of scales in float32."""
    values, scales = ops.quantize(x, bridge.Quantization("mxfp8"))
    others = ops.quantize(x, bridge.Quantization("fp8_block128"))
    return ops.dequantize(values, scales), ops.dequantize(*others), scales, others[1]


def blocks_in_torch(x: Any, ct: Any) -> Arrays:
    given = x.detach().requires_grad_()
    found = bridge.torch.fake_quantize(given, bridge.Quantization("mxfp8"))
    gradient = torch.autograd.grad(found, given, ct)
    near, other, scales, others = _quantised(bridge.torch, x)
    return near, other, scales.view(torch.uint8), others, found.detach(), *gradient


def blocks_in_jax(x: Any, ct: Any) -> Arrays:
    near, other, scales, others = _quantised(bridge.jax, x)
    mxfp8 = bridge.Quantization("mxfp8")
    found, pull_back = jax.vjp(lambda x: bridge.jax.fake_quantize(x, mxfp8), x)
    return near, other, scales.view(jnp.uint8), others, found, *pull_back(ct)


def versions() -> dict[str, list[int]]:
    """Returns the frameworks' versions: an older one need not read the file of a newer one."""
    texts = {"torch": torch.__version__, "jax": jax.__version__}
    return {name: [int(n) for n in text.split(".")[:2]] for name, text in texts.items()}


def write_torch(names: Collection[str]) -> None:
    arrays = torch_inputs()
    x, weight, _, packed, _ = arrays
    graph = make_fx(lambda *arrays: gradients_in_torch(Values(), *arrays))(*arrays)
    blocks = make_fx(blocks_in_torch)(*torch_blocks())
    for name, module, given in (
        ("values", Values(), (x, weight, packed)),
        ("gradients", graph, arrays),
        ("blocks", blocks, torch_blocks()),
    ):
        if name not in names:
            continue
        program = torch.export.export(module, given)
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # paths of this machine
        torch.export.save(program, TORCH[name])


def write_jax(names: Collection[str]) -> None:
    jax.config.update("jax_traceback_in_locations_limit", 0)  # no paths either
    checks = [export.DisabledSafetyCheck.custom_call("bridge_program")]
    for name, function, given in (
        ("gradients", gradients_in_jax, jax_inputs()),
        ("blocks", blocks_in_jax, jax_blocks()),
    ):
        if name not in names:
            continue
        exported = export.export(jax.jit(function), platforms=["cpu"], disabled_checks=checks)
        JAX[name].write_bytes(exported(*given).serialize())


WRITERS = {"torch": write_torch, "jax": write_jax}


def write(framework: str, names: Collection[str]) -> None:
    """Writes files of a framework anew, and its version."""
    WRITERS[framework](names)
    stored = json.loads(VERSIONS.read_text())
    VERSIONS.write_text(json.dumps({**stored, framework: versions()[framework]}) + "\n")
