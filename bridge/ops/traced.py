"""A declaration traced for given operands and static arguments, and functions that call it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from bridge.lang import codes, roles
from bridge.lang.derivatives import custom
from bridge.lang.errors import GENERATED, DeclarationError
from bridge.lang.limits import MOST_RESULTS, check_limit
from bridge.lang.program import ROWS, Program
from bridge.lang.tracing import Declaration, trace
from bridge.ops.form import Form
from bridge.ops.scalars import told_apart


class Traced:
    """A declaration traced for the present operands and the static arguments.

    Equal arguments give the same object.

    Attributes:
      name: the name of the declaration.
      program: the traced program; code: its serialized form; texts: by the dtypes of a call, see
        `codes.texts_of`; form: the expected operands.
      returns_several: True if the function returned a tuple.
    """

    def __init__(
        self, declaration: Declaration, present: Sequence[bool], values: Sequence[Any]
    ) -> None:
        static = dict(zip(declaration.static, values, strict=True))
        self.name = declaration.name
        self.program: Program = trace(declaration, present, static)
        self.form = Form.of(self.program)
        rule = None
        if declaration.vjp is not None:
            rule = custom.traced_rule(declaration.vjp, self.program, present, static)
            custom.check_rule(rule, self.program)
        kept = _kept(declaration, self.program)
        count = len(self.program.results) + len(kept)
        check_limit(self.name, "results and kept values", count, MOST_RESULTS)
        self.code = codes.code_of(self.program, kept, rule)
        self.texts = codes.texts_of(self.code)
        self.returns_several = bool(self.program.results[0].name != "the result")


def _kept(declaration: Declaration, program: Program) -> list[int]:
    """Returns the nodes of `keep=`; a variable that no result depends on needs no residual."""
    named = dict(program.named)
    kept = []
    for name in declaration.keep:
        if name not in named:
            continue
        node = program.nodes[named[name]]
        if not node.axes & ROWS:
            raise DeclarationError(
                f"{declaration.name}: keep={name!r}: it is the same for all rows, which costs "
                "nothing to compute again"
            )
        kept.append(named[name])
    return kept


@functools.lru_cache(maxsize=4096)
def _traced(
    declaration: Declaration, present: tuple[bool, ...], count: int, *values: Any
) -> Traced:
    return Traced(declaration, present, values[:count])


def traced(declaration: Declaration, present: tuple[bool, ...], *values: Any) -> Traced:
    """Returns the program for these operands and static arguments.

    Raises:
      TypeError: if a static argument cannot be hashed.
    """
    try:
        return _traced(declaration, present, len(values), *values, *map(told_apart, values))
    except TypeError as error:
        for name, value in zip(declaration.static, values, strict=True):
            try:
                hash(value)
            except TypeError:
                raise TypeError(
                    f"{declaration.name}: {name} is a {type(value).__name__}, which cannot be "
                    "hashed: static arguments are numbers, strings, None or tuples of these"
                ) from error
        raise


def function_of(
    declaration: Declaration,
    member: str,
    find: Callable[..., Traced] | None,
    run: Callable[..., Any],
    integer: Callable[..., Any] | None = None,
    takes_out: bool = False,
) -> Callable[..., Any]:
    """Makes a function with a declaration's parameters that calls run(traced, operands[, out]).

    The function is compiled from text: Python itself binds the arguments, and no code stands
    between the call and `run`. The objects it uses are in its closure, where torch.compile looks
    for them.

    Args:
      declaration: the source of name, parameters and docstring.
      member: the attribute of the op under which the function is pickled.
      find: find(present, *static) calls `traced`.
      run: run(traced, operands[, out]) takes the present operands. If `find` is None it is
        run(operands, out, *static), with None for absent operands.
      integer: integer(name, value, first operand) makes an operand of a seed.
      takes_out: True to add a keyword argument `out`, passed to `run`.
    """
    signature = inspect.signature(declaration.function)
    # Names that no operand and no op can have.
    used: dict[str, Any] = {
        "_bridge_find": find,
        "_bridge_run": run,
        "_bridge_integer": integer,
    }
    parameters = []
    for name, parameter in signature.parameters.items():
        if parameter.default is not parameter.empty:
            used[f"_default_{name}"] = parameter.default
            parameter = parameter.replace(default=_Name(f"_default_{name}"))
        parameters.append(parameter.replace(annotation=parameter.empty))
    if takes_out and "out" not in signature.parameters:
        parameters.append(
            inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=_Name("None"))
        )
    text = str(inspect.Signature(parameters))
    present, operands, places = [], [], []
    first = declaration.parameters[0].name
    for each in declaration.parameters:
        value = each.name
        if each.role is roles.Integer and integer is not None:
            value = f"_bridge_integer({each.name!r}, {each.name}, {first})"
        present.append(f"{each.name} is not None" if each.optional else "True")
        operands.append(f"*(() if {each.name} is None else ({value},))" if each.optional else value)
        is_absent = each.optional and value != each.name
        places.append(f"None if {each.name} is None else {value}" if is_absent else value)
    static = ", ".join(declaration.static)
    has_out = takes_out and "out" not in signature.parameters
    if find is None:
        call = f"_bridge_run(({', '.join(places)},), {'out' if has_out else 'None'}, {static})"
    else:
        found = f"_bridge_find(({', '.join(present)},), {static})"
        call = f"_bridge_run({found}, ({', '.join(operands)},){', out' if has_out else ''})"
    name = declaration.function.__name__
    lines = [
        f"def _make({', '.join(used)}):",
        f"    def {name}{text}:",
        f"        return {call}",
        f"    return {name}",
    ]
    scope: dict[str, Any] = {"__name__": declaration.function.__module__}
    exec(compile("\n".join(lines), f"{GENERATED}{name}>", "exec"), scope)
    function = scope["_make"](**used)
    function.__doc__ = declaration.function.__doc__
    function.__qualname__ = f"{declaration.function.__qualname__}.{member}"
    return function  # type: ignore[no-any-return]


class _Name:
    """A default value that a signature prints as a name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name
