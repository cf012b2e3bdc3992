"""One interface for both frameworks, so that a promise is written once and tested twice.

Arguments and results are NumPy arrays (16-bit floats as ml_dtypes' bfloat16 and NumPy's float16).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

DTYPES = ("float16", "bfloat16", "float32", "float64")
FORMS = ("tanh", "none", "sigmoid")

# The unit in the last place of 1.0, and the integer types for comparing bits.
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def numpy_dtype(name: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def bits(array: Any) -> Any:
    """Returns the array's bits as unsigned integers."""
    array = np.ascontiguousarray(array)
    return array.view(BITS[array.dtype.itemsize])


@dataclass(frozen=True)
class Everything:
    """The results of `everything`.

    Attributes:
      value: the value of the function, from reverse mode.
      again: the value from forward mode.
      gradients: gradients of ⟨cotangent, value⟩ towards each argument.
      tangent: the tangent of the value, along the tangents.
      second: gradients of Σᵢ ⟨directionᵢ, gradientᵢ⟩ towards each argument, then the cotangent.
    """

    value: Any
    again: Any
    gradients: list[Any]
    tangent: Any
    second: list[Any]

    def arrays(self) -> list[Any]:
        return [self.value, self.again, *self.gradients, self.tangent, *self.second]


class Torch:
    name = "torch"

    def array(self, value: Any) -> Any:
        """Returns a tensor on the array's own memory, with its strides; a tensor is unchanged."""
        import torch

        if isinstance(value, torch.Tensor):
            return value
        value = np.asarray(value)
        if not value.flags.writeable:  # an expanded array, with strides of zero
            once = tuple(slice(1 if step == 0 else None) for step in value.strides)
            return self.array(value[once].copy()).expand(value.shape)
        if value.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(value)

    def numpy(self, tensor: Any) -> Any:
        import torch

        tensor = tensor.detach().contiguous()
        if tensor.dtype == torch.bfloat16:
            return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return tensor.numpy()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self.numpy(function(*map(self.array, arguments)))

    @property
    def ops(self) -> Any:
        import bridge.torch

        return bridge.torch

    def vjp(self, function: Callable[..., Any], arguments: Any, cotangent: Any) -> list[Any]:
        """Returns [value, *gradients], by the framework's own reverse mode."""
        import torch

        leaves = self._leaves(arguments)
        value = function(*leaves)
        gradients = torch.autograd.grad(value, leaves, self.array(cotangent))
        return [self.numpy(value), *map(self.numpy, gradients)]

    def jvp(self, function: Callable[..., Any], arguments: Any, tangents: Any) -> list[Any]:
        import torch

        value, tangent = torch.func.jvp(
            function, tuple(map(self.array, arguments)), tuple(map(self.array, tangents))
        )
        return [self.numpy(value), self.numpy(tangent)]

    def grad_of_vjp(
        self, function: Callable[..., Any], arguments: Any, cotangent: Any, directions: Any
    ) -> list[Any]:
        """Returns gradients of Σᵢ ⟨directionᵢ, gradientᵢ⟩ towards arguments and cotangent."""
        import torch

        leaves = self._leaves((*arguments, cotangent))
        value = function(*leaves[:-1])
        first = torch.autograd.grad(value, leaves[:-1], leaves[-1], create_graph=True)
        directions = tuple(map(self.array, directions))
        # A linear function has zero second derivatives, which autograd reports as missing.
        second = torch.autograd.grad(
            first, leaves, directions, allow_unused=True, materialize_grads=True
        )
        return list(map(self.numpy, second))

    def everything(
        self,
        function: Callable[..., Any],
        arguments: Any,
        cotangent: Any,
        tangents: Any,
        directions: Any,
    ) -> Everything:
        """Returns value and derivatives to the second order of one function at one point."""
        value, *gradients = self.vjp(function, arguments, cotangent)
        again, tangent = self.jvp(function, arguments, tangents)
        second = self.grad_of_vjp(function, arguments, cotangent, directions)
        return Everything(value, again, gradients, tangent, second)

    def _leaves(self, arguments: Any) -> list[Any]:
        return [self.array(a).detach().requires_grad_() for a in arguments]


class Jax:
    name = "jax"

    def array(self, value: Any) -> Any:
        """Returns an array of the same values; an array of JAX is unchanged."""
        import jax

        with jax.enable_x64(True):
            return jax.numpy.asarray(value)

    def numpy(self, array: Any) -> Any:
        return np.asarray(array)

    @property
    def ops(self) -> Any:
        import bridge.jax

        return bridge.jax

    def vjp(self, function: Callable[..., Any], arguments: Any, cotangent: Any) -> list[Any]:
        return self._run(partial(_vjp, function), list(arguments), cotangent)

    def jvp(self, function: Callable[..., Any], arguments: Any, tangents: Any) -> list[Any]:
        return self._run(partial(_jvp, function), list(arguments), list(tangents))

    def grad_of_vjp(
        self, function: Callable[..., Any], arguments: Any, cotangent: Any, directions: Any
    ) -> list[Any]:
        run = partial(_grad_of_vjp, function)
        return self._run(run, list(arguments), cotangent, list(directions))

    def everything(
        self,
        function: Callable[..., Any],
        arguments: Any,
        cotangent: Any,
        tangents: Any,
        directions: Any,
    ) -> Everything:
        """Computes all in one program, like a training step."""

        def run(arguments: Any, cotangent: Any, tangents: Any, directions: Any) -> Any:
            value, *gradients = _vjp(function, arguments, cotangent)
            again, tangent = _jvp(function, arguments, tangents)
            second = _grad_of_vjp(function, arguments, cotangent, directions)
            return [value, again, *gradients, tangent, *second]

        parts = list(arguments), cotangent, list(tangents), list(directions)
        value, again, *rest = self._run(run, *parts)
        count = len(parts[0])
        return Everything(value, again, rest[:count], rest[count], rest[count + 1 :])

    def _run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Runs under jit and with float64, like a user of float64."""
        import jax

        with jax.enable_x64(True):
            arguments = jax.tree.map(self.array, arguments)
            return list(map(np.asarray, jax.jit(function)(*arguments)))

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._run(lambda *a: [function(*a)], *arguments)[0]


def _vjp(function: Callable[..., Any], arguments: Any, cotangent: Any) -> Any:
    import jax

    value, pull = jax.vjp(function, *arguments)
    return [value, *pull(cotangent)]


def _jvp(function: Callable[..., Any], arguments: Any, tangents: Any) -> Any:
    import jax

    return jax.jvp(function, tuple(arguments), tuple(tangents))


def _grad_of_vjp(
    function: Callable[..., Any], arguments: Any, cotangent: Any, directions: Any
) -> Any:
    import jax

    def first(arguments: Any, cotangent: Any) -> Any:
        return jax.vjp(function, *arguments)[1](cotangent)

    _, pull = jax.vjp(first, tuple(arguments), cotangent)
    gradients, towards_cotangent = pull(tuple(directions))
    return [*gradients, towards_cotangent]


FRAMEWORKS = (Torch(), Jax())
