"""The cost of a call besides its arithmetic: the programs it runs, and their content."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import bridge
from bridge.jax import bias_dropout_add, bias_gelu, scaled_softmax
from bridge.lang.errors import GENERATED
from tests.python_calls import calls_of

CHAIN = 101
PACKAGE = str(Path(bridge.__file__).parent)


def test_a_further_call_inside_one_jit(capfd: pytest.CaptureFixture[str]) -> None:
    """It is only one more custom call: no code around it, no memory of its own, no output.

    tests/cpp/library_check.cpp checks that it wakes no other thread.
    """

    @jax.jit
    def chain(x: Any, bias: Any) -> Any:
        for _ in range(CHAIN):
            x = bias_gelu(x, bias)
        return x

    x, bias = jnp.ones((1, 4)), jnp.ones(4)
    compiled = chain.lower(x, bias).compile()
    instructions = Counter(
        re.findall(r"^ *(?:ROOT )?%?\S+ = \S+ ([\w-]+)\(", compiled.as_text(), re.M)
    )
    assert instructions == {"parameter": 2, "custom-call": CHAIN}
    statistics: Any = compiled.memory_analysis()
    assert statistics.temp_size_in_bytes <= x.nbytes  # two buffers alternate
    capfd.readouterr()
    jax.block_until_ready(compiled(x, bias))
    assert capfd.readouterr() == ("", "")


def dispatches(function: Callable[..., Any], arguments: Any, folder: Path) -> int:
    """Counts the compiled programs that JAX starts, by its profiler."""
    jax.block_until_ready(function(*arguments))
    with jax.profiler.trace(folder):
        jax.block_until_ready(function(*arguments))
    (file,) = folder.rglob("*.xplane.pb")
    lines = (
        line
        for plane in jax.profiler.ProfileData.from_file(str(file)).planes
        for line in plane.lines
    )
    return sum(event.name.startswith("PjitFunction(") for line in lines for event in line.events)


X, BIAS, SEED = jnp.ones((4, 6)), jnp.ones(6), jnp.asarray(3)


@pytest.mark.parametrize(
    ("ours", "plain", "arguments"),
    [
        (bias_gelu, lambda x, bias: jax.nn.gelu(x + bias), (X, BIAS)),
        (lambda x: scaled_softmax(x, 0.5), lambda x: jax.nn.softmax(0.5 * x), (X,)),
        (
            lambda x, bias, seed: bias_dropout_add(x, bias, x, p=0.1, seed=seed),
            lambda x, bias, seed: x + seed * (x + bias),
            (X, BIAS, SEED),
        ),
    ],
    ids=["bias_gelu", "scaled_softmax", "bias_dropout_add"],
)
def test_outside_jit_it_is_one_dispatch(
    ours: Any, plain: Any, arguments: Any, tmp_path: Path
) -> None:
    """A call starts as many programs as a jitted expression, and runs none of JAX's Python."""
    one = dispatches(jax.jit(plain), arguments, tmp_path / "jitted")
    assert dispatches(ours, arguments, tmp_path / "ours") == one > 0
    assert dispatches(plain, arguments, tmp_path / "plain") > one  # the count can tell
    on_the_way = [
        called for called in calls_of(lambda: ours(*arguments)) if called.file not in ("", __file__)
    ]
    # The functions of declared ops are generated from text.
    own = (PACKAGE, GENERATED)
    assert all(called.file.startswith(own) for called in on_the_way), on_the_way
    assert len(on_the_way) <= 10, on_the_way


def test_traced_once() -> None:
    traces = []

    @jax.jit
    def function(x: Any) -> Any:
        traces.append(None)
        return bias_gelu(x)

    for _ in range(3):
        function(jnp.ones(3))
    assert len(traces) == 1
