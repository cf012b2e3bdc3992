"""Numbers of a torch model under the names and in the layouts of its port."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx
from torch import Tensor, nn

Arrays = dict[str, np.ndarray]

_NORMS = (nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm)
_STATISTICS = {"running_mean": "mean", "running_var": "var"}


def carried(model: nn.Module, values: Mapping[str, Tensor]) -> Arrays:
    """Returns numbers of the parameters or buffers of a torch model, by the port's paths.

    Args:
      values: for each name in the state dict, its numbers or others of their shape, such as a
        momentum.
    """
    modules = dict(model.named_modules())
    found: Arrays = {}
    for name, value in values.items():
        path, _, own = name.rpartition(".")
        if own == "num_batches_tracked":
            continue
        array = value.detach().numpy()
        for place, part in _parts(modules, path, own, array):
            found[place] = np.ascontiguousarray(part)
    return found


def _parts(
    modules: Mapping[str, nn.Module], path: str, own: str, array: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    layer: Any = modules[path]
    if isinstance(layer, nn.MultiheadAttention):
        kind = own.removeprefix("in_proj_")
        heads = layer.num_heads, layer.head_dim
        for name, part in zip(("query", "key", "value"), np.split(array, 3), strict=True):
            if kind == "bias":
                yield f"{path}.{name}.bias", part.reshape(heads)
            else:
                yield f"{path}.{name}.kernel", part.T.reshape(-1, *heads)
    elif path.endswith("out_proj"):
        attention: Any = modules[path.rpartition(".")[0]]
        place = path.removesuffix("_proj")
        if own == "bias":
            yield f"{place}.bias", array
        else:
            kernel = array.T.reshape(attention.num_heads, attention.head_dim, -1)
            yield f"{place}.kernel", kernel
    elif isinstance(layer, nn.Embedding):
        yield f"{path}.embedding", array
    elif own in _STATISTICS:
        yield f"{path}.{_STATISTICS[own]}", array
    elif own == "weight" and isinstance(layer, _NORMS):
        yield f"{path}.scale", array
    elif own == "weight" and array.ndim == 4:  # [out, in, h, w]; transposed [in, out, h, w]
        yield f"{path}.kernel", array.transpose(2, 3, 1, 0)
    elif own == "weight":
        yield f"{path}.kernel", array.T
    else:
        yield (f"{path}.{own}" if path else own), array


def load(port: nnx.Module, arrays: Arrays) -> None:
    """Writes the numbers into the port.

    Raises:
      KeyError, ValueError: a variable without numbers, or of another shape.
    """
    state = nnx.state(port)
    for path, variable in nnx.to_flat_state(state):
        name = ".".join(map(str, path))
        if variable.get_value().shape != arrays[name].shape:
            raise ValueError(f"{name} has shape {variable.get_value().shape} in the port")
        variable.set_value(jnp.asarray(arrays[name]))
    nnx.update(port, state)


def numbers_of(state: Any) -> Arrays:
    """Returns the numbers of a state of NNX by path."""
    return {
        ".".join(map(str, path)): np.asarray(variable.get_value())
        for path, variable in nnx.to_flat_state(state)
    }


def differing(one: Arrays, other: Arrays) -> int:
    """Returns how many numbers of both have other bits; NaN of equal bits are equal.

    Raises:
      ValueError: for other names or shapes.
    """
    if one.keys() != other.keys():
        raise ValueError(f"names on one side only: {sorted(one.keys() ^ other.keys())}")
    return sum(count_differing(one[name], other[name]) for name in one)


def count_differing(a: Any, b: Any) -> int:
    """Returns how many float32 numbers differ in their bits."""
    a, b = (np.ascontiguousarray(x).view(np.int32) for x in (a, b))
    if a.shape != b.shape:
        raise ValueError(f"shapes {a.shape} and {b.shape}")
    return int(np.count_nonzero(a != b))


def as_tensor(array: np.ndarray) -> Tensor:
    """Returns images [n, h, w, c] as the tensor [n, c, h, w] of torch's layers."""
    return torch.from_numpy(array).permute(0, 3, 1, 2).contiguous()
