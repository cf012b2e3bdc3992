"""Public functions that fix an argument of another public function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from bridge.lang.errors import GENERATED


def specialised(
    function: Callable[..., Any],
    operands: Sequence[str],
    run: Callable[..., Any],
    name: str,
    doc: str,
    **fixed: Any,
) -> Callable[..., Any]:
    """Returns a function with the signature of `function` without the fixed arguments.

    It calls run((operands), out, static arguments in the order of the signature), with None for
    `out` if the signature has none. It is compiled from text, as a declared op's function is: no
    code stands between the call and `run`, and torch.compile finds `run` in its closure.
    """
    used = {"_bridge_run": run, **{f"_bridge_{key}": value for key, value in fixed.items()}}
    parameters, values = [], []
    for key, parameter in inspect.signature(function).parameters.items():
        if key not in (*operands, "out"):
            values.append(f"_bridge_{key}" if key in fixed else key)
        if key not in fixed:
            parameters.append(parameter.replace(annotation=parameter.empty))
    out = "out" if any(each.name == "out" for each in parameters) else "None"
    text = [
        f"def _make({', '.join(used)}):",
        f"    def {name}{inspect.Signature(parameters)}:",
        f"        return _bridge_run(({', '.join(operands)},), {out}, {', '.join(values)})",
        f"    return {name}",
    ]
    scope: dict[str, Any] = {"__name__": function.__module__}
    exec(compile("\n".join(text), f"{GENERATED}{name}>", "exec"), scope)
    made = scope["_make"](**used)
    made.__qualname__, made.__doc__ = name, doc
    made.__annotations__ = {
        key: kind for key, kind in function.__annotations__.items() if key not in fixed
    }
    return made  # type: ignore[no-any-return]
