"""The inputs of a comparison, for each side, and the errors about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor

from bridge.compared.recording.outside import outside, tensors_in
from bridge.compared.recording.torch_run import modules_of


def to_tensors(value: Any) -> Any:
    """Returns a copy of an input with tensors in place of arrays."""
    _check_numbers(value)
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, jax.Array | np.ndarray):
        if value.dtype == jnp.bfloat16:
            return torch.from_numpy(np.array(value, np.float32)).bfloat16()
        return torch.from_numpy(np.array(value))
    return _mapped(value, to_tensors)


def to_arrays(value: Any) -> Any:
    """Returns a copy of an input with arrays of JAX or NumPy in place of tensors."""
    _check_numbers(value)
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        if value.dtype == torch.bfloat16:
            return jnp.asarray(value.float().numpy(), jnp.bfloat16)
        return np.array(value.numpy())
    return _mapped(value, to_arrays)


def _mapped(value: Any, function: Any) -> Any:
    if isinstance(value, dict):
        return {key: function(part) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(function, value))
    if isinstance(value, list | tuple):
        return type(value)(map(function, value))
    return value


def split(
    inputs: Sequence[Any], others: Any, name: str, convert: Any
) -> tuple[list[Any], dict[str, Any]]:
    """Returns positional and keyword arguments of one side.

    Args:
      inputs: those given for both.
      others: a tuple of positional ones instead, or a dict of keywords beside them.
      name: of the argument of `compare`, for an error.
      convert: makes arrays of a side's kind.
    """
    if others is None:
        return [convert(value) for value in inputs], {}
    if isinstance(others, Mapping):
        return [convert(v) for v in inputs], {key: convert(v) for key, v in others.items()}
    if isinstance(others, tuple | list):
        return [convert(value) for value in others], {}
    raise TypeError(
        f"{name} is a {type(others).__name__}; compare takes a tuple of arguments or a dict of "
        "keywords"
    )


def check_models(torch_model: Any, jax_function: Any, dtype: str) -> None:
    """Raises for models that cannot be compared."""
    if not callable(torch_model):
        raise TypeError(
            f"torch_model is a {type(torch_model).__name__}; compare takes a torch.nn.Module or a "
            "function that calls one"
        )
    if not callable(jax_function):
        raise TypeError(
            f"jax_function is a {type(jax_function).__name__}; compare takes any callable: a "
            "function, a bound Flax module, an nnx or Equinox module"
        )
    if isinstance(jax_function, torch.nn.Module):
        raise TypeError(
            "jax_function is a torch.nn.Module; compare takes the torch model first and the JAX "
            "function second"
        )
    if dtype != "float64":
        raise ValueError(f'dtype is {dtype!r}; compare runs both models in "float64"')
    modules = modules_of(torch_model)
    tensors = [t for m in modules for t in [*m.parameters(), *m.buffers()]]
    if tensors and not any(t.is_floating_point() or t.is_complex() for t in tensors):
        raise TypeError(
            f"torch_model holds only {sorted({str(t.dtype) for t in tensors})}; compare pairs "
            "floating-point values and needs a model that has some"
        )


def check_devices(
    torch_model: Any, arrays: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Raises for models that lie on different devices, or hold no numbers.

    Args:
      torch_model: the model or function of torch.
      arrays: the arrays that the JAX function holds, by path.
      args, kwargs: its arguments.
    """
    tensors = _tensors_of(torch_model)
    meta = [name for name, tensor in tensors.items() if tensor.is_meta]
    if meta:
        raise ValueError(
            f"torch_model has {_few(meta)} on the meta device, which holds no numbers; compare "
            "runs both models on their numbers: load the weights on the CPU first"
        )
    deleted = [name for name, a in arrays.items() if isinstance(a, jax.Array) and a.is_deleted()]
    if deleted:
        raise ValueError(
            f"jax_function holds {_few(deleted)}, which JAX has deleted, such as by donation to a "
            "jitted function; compare runs both models on their numbers: give it a copy"
        )
    paths, _ = jax.tree_util.tree_flatten_with_path({**dict(enumerate(args)), **kwargs})
    given = {f"input {jax.tree_util.keystr(k, simple=True, separator='.')}": v for k, v in paths}
    places: dict[Any, str] = {}
    for name, array in {**arrays, **given}.items():
        if isinstance(array, jax.Array) and getattr(array, "committed", False):
            places.setdefault(frozenset(array.devices()), name)
    if len(places) > 1:
        (first, one), (second, other) = list(places.items())[:2]
        raise ValueError(
            f"jax_function's arrays lie on different devices: {one!r} on {_devices(first)} and "
            f"{other!r} on {_devices(second)}; compare runs it on one: move them with "
            "jax.device_put"
        )
    ours = sorted({str(tensor.device.type) for tensor in tensors.values()})
    names = {"gpu": "cuda"}
    theirs = sorted(
        {
            names.get(device.platform, device.platform)
            for array in arrays.values()
            if isinstance(array, jax.Array)
            for device in array.devices()
        }
    )
    if len(ours) > 1 or (ours and theirs and ours != theirs):
        raise ValueError(
            f"torch_model lies on {' and '.join(ours)}, and jax_function's arrays on "
            f"{' and '.join(theirs) or 'no device'}; compare needs both on one device: move them "
            "to the CPU"
        )


def _tensors_of(model: Any) -> dict[str, Tensor]:
    """Returns the tensors that a model holds, and those that its code reads, by name."""
    modules = modules_of(model)
    tensors = tensors_in(outside(model, modules))
    for module in modules:
        tensors.update({**dict(module.named_parameters()), **dict(module.named_buffers())})
    return tensors


def _few(names: Sequence[str]) -> str:
    count = len(names) - 1
    more = f" and {count} other{'s' * (count > 1)}" if count else ""
    return f"{names[0]!r}{more}"


def _devices(devices: Any) -> str:
    return " and ".join(sorted(str(device) for device in devices))


def _check_numbers(value: Any) -> None:
    """Raises for an input without numbers."""
    if isinstance(value, Tensor) and value.is_meta:
        raise ValueError(
            f"an input is a tensor of shape {tuple(value.shape)} on the meta device, which holds "
            "no numbers; compare runs both models on numbers: give it one on the CPU"
        )
    if isinstance(value, jax.Array) and value.is_deleted():
        raise ValueError(
            f"an input is an array of shape {value.shape} that JAX has deleted, such as by "
            "donation to a jitted function; compare runs both models on numbers: give it a copy"
        )
