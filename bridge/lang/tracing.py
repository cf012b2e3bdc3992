"""Tracing: a declaration runs once, on values, and leaves a program."""

from __future__ import annotations

import dataclasses
import inspect
import keyword
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bridge.lang import roles
from bridge.lang.active import while_active
from bridge.lang.errors import DeclarationError
from bridge.lang.limits import check_arrays
from bridge.lang.program import AXES, COLUMNS, Operand, Program, Result, blocks_of, pruned
from bridge.lang.refusals import Unusable
from bridge.lang.returned import ColumnSum, HalvesValue, Typed
from bridge.lang.values import Builder, Value, Visible, shown

# Keyword arguments of `op.compile` and `bridge.check`, not available as static parameters.
_TAKEN = frozenset({"device", "dtypes", "arch", "wrt", "quiet"})


_ROLES = (*roles.ANNOTATIONS, *roles.OF_TOKENS)

# check(function, name, value) returns the value that a program has fixed, or raises.
Check = Callable[[str, str, Any], Any]


@dataclass(frozen=True)
class Parameter:
    """An operand of a declaration: its name, its role, and whether it is optional."""

    name: str
    role: type[roles.Annotation]
    optional: bool


@dataclass(frozen=True, eq=False)
class Declaration:
    """A declared function with its signature and options.

    Attributes:
      function: the user's function.
      parameters: its operands, by position.
      static: its keyword parameters and their defaults (`inspect.Parameter.empty` if none).
      keep: names of local variables whose values are saved as residuals.
      vjp: the custom VJP, or None.
      checks: the checks of static parameters, by name.
      needs: static parameters that must be 0 without an operand, and the operand's name.
    """

    function: Callable[..., Any]
    parameters: tuple[Parameter, ...]
    static: Mapping[str, Any]
    keep: tuple[str, ...] = ()
    vjp: Callable[..., Any] | None = None
    checks: Mapping[str, Check] = dataclasses.field(default_factory=dict)
    needs: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.function.__name__

    def checked(
        self, function: str, operands: Sequence[Any], values: Sequence[Any]
    ) -> tuple[Any, ...]:
        """Returns the static arguments of a call as their checks return them.

        Args:
          function: the public function's name, for messages.
          operands: one for each parameter, None if absent.

        Raises:
          TypeError, ValueError: from a check.
        """
        if not self.checks:
            return tuple(values)
        found = []
        for name, value in zip(self.static, values, strict=True):
            check = self.checks.get(name)
            if check is not None:
                value = check(function, name, value)
            operand = self.needs.get(name)
            if operand is not None and value != 0:
                for parameter, given in zip(self.parameters, operands, strict=True):
                    if parameter.name == operand and given is None:
                        raise ValueError(
                            f"{function}: {name} is {value} and {operand} is None, expected a "
                            f"{operand}"
                        )
            found.append(value)
        return tuple(found)


class HasDeclaration(Protocol):
    """An op made from a declaration."""

    declaration: Declaration


def declared(
    function: Callable[..., Any],
    keep: Sequence[str] = (),
    vjp: Callable[..., Any] | None = None,
    checks: Mapping[str, Check] | None = None,
    needs: Mapping[str, str] | None = None,
) -> Declaration:
    """Reads the signature of a function; the other arguments are as for `Declaration`.

    Raises:
      DeclarationError: if a positional parameter has no bridge annotation, or the rest of the
        signature does not fit.
    """
    if not isinstance(function, types.FunctionType):
        raise DeclarationError(
            f"bridge.op: {function!r} is no Python function: declare one, with `def`, that calls it"
        )
    where = f"{function.__qualname__}, line {function.__code__.co_firstlineno} of "
    where += function.__code__.co_filename
    name = function.__name__
    if not name.isidentifier() or keyword.iskeyword(name):
        raise DeclarationError(
            f"{where}: an op has its function's name, and {name!r} is no name: define the function "
            "with `def`"
        )
    # An annotation may name local variables of the scope in which the function is declared.
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    local = {name: cell.cell_contents for name, cell in cells if not _is_empty(cell)}
    try:
        signature = inspect.signature(function, locals=local, eval_str=True)
    except Exception as error:  # evaluating an annotation given as a string may raise anything
        raise DeclarationError(f"{where}: an annotation is not known: {error}") from error
    keep = (keep,) if isinstance(keep, str) else tuple(keep)
    code = _code_of(function)
    for name in keep:
        if name not in (*code.co_varnames, *code.co_cellvars):
            raise DeclarationError(f"{where}: keep={name!r}: no local variable of that name")
    if vjp is not None and not callable(vjp):
        raise DeclarationError(f"{where}: vjp is {vjp!r}, expected a function")
    parameters: list[Parameter] = []
    static: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        role, optional = _role(parameter.annotation)
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise DeclarationError(f"{where}: *{name}: each operand of an op has its own name")
        if role is None:
            if parameter.kind is not parameter.KEYWORD_ONLY:
                raise DeclarationError(
                    f"{where}: parameter {name} has {_shown(parameter.annotation)}, expected "
                    "bridge.Full, Row, PerRow, PerRow[int], PerBlock[32], Table, Mask, Halves, "
                    "Pairs or bridge.lang.Integer; static parameters, such as an eps, come after "
                    "a *"
                )
            if name in _TAKEN:
                raise DeclarationError(
                    f"{where}: static parameter {name} has the name of an argument of op.compile "
                    "or bridge.check, which take static parameters too: rename it"
                )
            static[name] = parameter.default
            continue
        if parameter.default is not inspect.Parameter.empty and parameter.default is not None:
            raise DeclarationError(
                f"{where}: operand {name} has the default {parameter.default!r}, expected None or "
                "no default"
            )
        may_be_absent = parameter.default is None
        if may_be_absent and not optional:
            raise DeclarationError(
                f"{where}: operand {name} may be None: annotate it with {role.__name__} | None"
            )
        parameters.append(Parameter(name, role, may_be_absent))
    if not parameters or parameters[0].optional:
        raise DeclarationError(f"{where}: the first operand gives the shape and is always there")
    if parameters[0].role not in roles.SPACIOUS:
        raise DeclarationError(
            f"{where}: the first operand gives the shape: a Full, Halves or Pairs"
        )
    fixed = types.MappingProxyType(static)
    return Declaration(function, tuple(parameters), fixed, keep, vjp, checks or {}, needs or {})


def _is_empty(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def _role(annotation: Any) -> tuple[type[roles.Annotation] | None, bool]:
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        options = [option for option in typing.get_args(annotation) if option is not type(None)]
        if len(options) == 1 and options[0] in _ROLES:
            return options[0], True
        return None, False
    return (annotation if annotation in _ROLES else None), False


def _shown(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return "no annotation"
    return "the annotation " + getattr(annotation, "__name__", repr(annotation))


def trace(declaration: Declaration, present: Sequence[bool], static: Mapping[str, Any]) -> Program:
    """Runs a declaration once and returns its program.

    Args:
      declaration: a result of `declared`.
      present: for each operand, True if it is given; the function gets None for the others.
      static: the values of all keyword parameters.

    Raises:
      DeclarationError: with the line of the function that cannot be traced.
      ProgramTooLarge: if there are more operands or results than a call can have.
    """
    builder = _Watching(_code_of(declaration.function)) if declaration.keep else Builder()
    operands: list[Operand] = []
    arguments: list[Any] = []
    for parameter, is_present in zip(declaration.parameters, present, strict=True):
        if not is_present:
            arguments.append(None)
            continue
        operand = Operand(parameter.name, parameter.role)
        values = [
            builder.operand(len(operands), half, AXES[parameter.role], operand.dtype)
            for half in range(2 if parameter.role in roles.DOUBLE else 1)
        ]
        operands.append(operand)
        arguments.append(HalvesValue(*values) if len(values) == 2 else values[0])
    given = {
        parameter.name: argument
        for parameter, argument in zip(declaration.parameters, arguments, strict=True)
    }
    returned = while_active(builder, lambda: _run(declaration.function, {**given, **static}))
    variables = builder.variables() if isinstance(builder, _Watching) else {}
    where = f"{declaration.name}, declared on line {declaration.function.__code__.co_firstlineno}"
    where += f" of {declaration.function.__code__.co_filename}"
    several = isinstance(returned, tuple | list)
    results = [
        _result(result, f"result {place}" if several else "the result", where, builder)
        for place, result in enumerate(returned if several else [returned])
    ]
    if not results:
        raise DeclarationError(f"{where}: no result")
    blocks = blocks_of(operands, builder.nodes)
    results = [
        dataclasses.replace(result, role=roles.OF_BLOCKS[blocks[result.nodes[0]]])
        if result.role is roles.Full and blocks[result.nodes[0]]
        else result
        for result in results
    ]
    named = [(name, v.number) for name, v in variables.items() if isinstance(v, Value)]
    for name in declaration.keep:
        # A variable that is not set on this path, or is a number or None, needs no residual.
        value = variables.get(name)
        if isinstance(value, Unusable) or (isinstance(value, Value) and value.kind != "float"):
            raise DeclarationError(f"{where}: keep={name!r} is no floating value")
    program = pruned(declaration.name, operands, builder.nodes, results, named)
    check_arrays(where, program)
    for node in program.nodes:
        is_integer = node.operation == "constant" and node.dtype == "int"
        if is_integer and not -(1 << 63) <= node.static < 1 << 63:
            raise DeclarationError(f"{where}: the integer {node.static} does not fit 64 bits")
    return program


def _run(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    signature = inspect.signature(function)
    positional = [
        arguments.pop(name)
        for name, parameter in signature.parameters.items()
        if parameter.kind is parameter.POSITIONAL_ONLY
    ]
    return function(*positional, **arguments)


def _code_of(function: Callable[..., Any]) -> types.CodeType:
    """Returns the code of the function under its decorators."""
    return inspect.unwrap(function).__code__  # type: ignore[no-any-return,attr-defined]


class _Watching(Builder):
    """A builder that also finds the local variables of the function, for `keep=`.

    A reference to the frame keeps its variables alive, so no profiler hook is needed; a hook would
    replace a profiler that is already running.
    """

    def __init__(self, code: types.CodeType) -> None:
        super().__init__()
        self._code = code
        self._frame: types.FrameType | None = None

    def node(self, *arguments: Any, **keywords: Any) -> Value:
        frame: types.FrameType | None = None if self._frame else sys._getframe(1)
        while frame is not None:
            if frame.f_code is self._code:
                self._frame = frame
            frame = frame.f_back
        return super().node(*arguments, **keywords)

    def variables(self) -> dict[str, Any]:
        """Returns the local variables at the end of the call; empty if it made no node."""
        frame, self._frame = self._frame, None
        return dict(frame.f_locals) if frame is not None else {}


def _result(result: Any, name: str, where: str, builder: Builder) -> Result:
    if isinstance(result, ColumnSum):
        return Result(roles.Row, (result.value.number,), name=name)
    like, dtype = -1, ""
    if isinstance(result, Typed):
        result, like, dtype = result.value, result.operand, result.dtype
    values = list(result) if isinstance(result, HalvesValue) else [result]
    values = [shown(v, 0.0) if isinstance(v, Visible) and v.kind == "float" else v for v in values]
    for value in values:
        if not isinstance(value, Value):
            raise DeclarationError(
                f"{where}: {name} is {type(value).__name__}, expected a value of the declaration "
                "or a tuple of values"
            )
        if value.builder is not builder:
            raise DeclarationError(f"{where}: {name} is a value of another declaration")
        if value.kind != "float":
            instead = "1.0 * value" if value.kind == "int" else "bl.where(condition, 1.0, 0.0)"
            raise DeclarationError(
                f"{where}: {name} is not floating but {value.kind}: return {instead}"
            )
        if not value.axes & ~COLUMNS:
            raise DeclarationError(
                f"{where}: {name} is the same for all rows: it needs no kernel; return "
                "values that depend on the rows, or a bl.column_sum"
            )
    if isinstance(result, HalvesValue):
        return Result(result.role, tuple(value.number for value in values), name=name)
    role = roles.Full if values[0].axes & COLUMNS else roles.PerRow
    return Result(role, (values[0].number,), like, name, dtype)
