"""The context `invariant`, which exchanges the code of JAX's functions of rows.

A function that somebody imported by name (`from jax.nn import softmax`, as Flax does) is another
reference to the same object. So the object stays, and its code is exchanged as long as a context is
open in some thread. The new code looks for a context of its own thread. A user context of JAX,
which is part of the key of every cache of traced functions, says whether there is one: a function
that was jitted outside is traced once more inside.
"""

from __future__ import annotations

import inspect
import threading
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bridge.interception import CallRecord, Interception, check_report
from bridge.jax._invariant import forms

# The records of the open contexts of this thread that report; None outside.
_records = jax.make_user_context(None)
# The open contexts of this thread, of all instances: generators and tasks may end them in any
# order, and the last end has to restore the state before the first begin.
_entered = threading.local()
_lock = threading.Lock()
_open = 0  # contexts of all threads
_CODE = """
def {name}(*args, **kwargs):
    from bridge.jax._invariant.context import run
    return run({name!r}, args, kwargs)
"""


class _Function:
    """A function of JAX whose code can be exchanged."""

    def __init__(self, name: str, public: Any, form: Callable[..., Any]) -> None:
        self.name, self.form = name, form
        # jax.jit keeps the Python function that it traces.
        is_jitted = not isinstance(public, types.FunctionType)
        self.function: Any = public.__wrapped__ if is_jitted else public
        self.signature = inspect.signature(self.function)
        found = self.function
        self.original = types.FunctionType(
            found.__code__, found.__globals__, name, found.__defaults__, found.__closure__
        )
        self.original.__kwdefaults__ = found.__kwdefaults__
        made: dict[str, Any] = {}
        exec(compile(_CODE.format(name=name), __file__, "exec"), made)
        self._code = made[name].__code__

    def exchange(self) -> None:
        # jax.jit of the function reads its signature.
        self.function.__signature__ = self.signature
        self.function.__code__ = self._code

    def restore(self) -> None:
        self.function.__code__ = self.original.__code__
        del self.function.__signature__

    def served(self, args: Any, kwargs: Any) -> Any:
        """Returns the result of bridge's op, or the reason why the call passes by."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError:
            return "JAX refuses these arguments"
        bound.apply_defaults()
        return self.form(**bound.arguments)


_FUNCTIONS = {
    name: _Function(name, public, form)
    for name, public, form in (
        ("softmax", jax.nn.softmax, forms.softmax),
        ("log_softmax", jax.nn.log_softmax, forms.log_softmax),
        ("logsumexp", jax.nn.logsumexp, forms.logsumexp),
        ("gelu", jax.nn.gelu, forms.gelu),
        ("silu", jax.nn.silu, forms.silu),
        ("standardize", jax.nn.standardize, forms.standardize),
        ("mean", jnp.mean, forms.mean),
    )
}


def run(name: str, args: Any, kwargs: Any) -> Any:
    """Runs a function of JAX, on bridge's kernels inside a context of this thread."""
    function, records = _FUNCTIONS[name], _records.value
    if records is None:
        return function.original(*args, **kwargs)
    found = function.served(args, kwargs)
    is_served = not isinstance(found, str)
    for record in records:
        record.note(name, None if is_served else found)
    return found if is_served else function.original(*args, **kwargs)


class invariant(Interception):
    """Runs JAX's own functions of rows on bridge's kernels, in code that nobody touched.

    Inside the context `jax.nn.softmax`, `log_softmax`, `logsumexp`, `standardize`, `gelu` and
    `silu`, `jax.numpy.mean` and the code that calls them have the
    [batch invariance](../invariance.md) of bridge, and its bits in PyTorch. It does not matter how
    the caller imported them: Flax's `nn.gelu` is the same object. Results have JAX's shape and
    dtype, and every transformation of JAX applies. A call that bridge cannot serve runs as without
    the context, errors included.

    The context holds for the thread that enters it. A function under `jax.jit` is traced once for
    the inside and once for the outside. It is a decorator too, and contexts may be nested.
    `with invariant() as context` gives the context itself.

    Args:
      report: count the calls; `print(context)` shows them. Calls are counted when JAX traces them,
        so a compiled function is traced once more in each such context.

    Attributes:
      caught: the number of calls served by bridge, by the function's name.
      passed: the number of other calls of these functions, by (name, reason).

    Raises:
      TypeError: report is no bool; as a decorator, for a generator or a coroutine.

    Example:
      >>> x = jnp.arange(6.0).reshape(2, 3)
      >>> with invariant(report=True) as context:
      ...     y = jax.nn.softmax(x)
      >>> bool((y == scaled_softmax(x)).all()), dict(context.caught)
      (True, {'softmax': 1})
    """

    def __init__(self, *, report: bool = False) -> None:
        check_report(report)
        self.report = report
        self._record = CallRecord()

    def __enter__(self) -> invariant:
        global _open
        around = _records.value or ()
        is_new = self.report and self._record not in around
        entered = _records((*around, self._record) if is_new else around)
        with _lock:
            if _open == 0:
                for function in _FUNCTIONS.values():
                    function.exchange()
            _open += 1
        entered.__enter__()
        vars(_entered).setdefault("contexts", []).append(entered)
        return self

    def __exit__(self, *error: Any) -> None:
        global _open
        _entered.contexts.pop().__exit__(*error)
        with _lock:
            _open -= 1
            if _open == 0:
                for function in _FUNCTIONS.values():
                    function.restore()
