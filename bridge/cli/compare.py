"""`python -m bridge compare module:function`: finds where a JAX port differs from its original."""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

from bridge.cli.errors import CommandError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        metavar="MODULE:FUNCTION",
        help="a function that returns (torch_model, jax_function, *inputs), or a dict of the "
        "arguments of bridge.compare with inputs=",
    )
    parser.add_argument("--gradients", action="store_true", help="compare the gradients too")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as a page")


def run(options: argparse.Namespace) -> int:
    arguments = _arguments(options.what)
    if options.html is not None and not options.html.absolute().parent.is_dir():
        raise CommandError(f"--html {options.html}: its folder does not exist")
    import bridge

    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    if isinstance(arguments, dict):
        keywords = dict(arguments)
        try:
            positional = [keywords.pop("torch_model"), keywords.pop("jax_function")]
        except KeyError as error:
            raise CommandError(f"{options.what} returns a dict without {error}") from error
        positional += keywords.pop("inputs", ())
    elif isinstance(arguments, tuple | list) and len(arguments) >= 2:
        positional = list(arguments)
    else:
        raise CommandError(
            f"{options.what} returns {type(arguments).__name__}; expected a tuple of the models "
            "and their inputs, or a dict of bridge.compare's arguments"
        )
    if options.gradients:
        keywords["gradients"] = True
    try:
        report = bridge.compare(*positional, **keywords)
    except (TypeError, ValueError) as error:
        raise CommandError(str(error)) from error
    print(report)
    if options.html is not None:
        report.html(options.html)
    return 1 if report.parts or report.gradients else 0


def _arguments(what: str) -> Any:
    name, colon, function = what.partition(":")
    if not (all(part.isidentifier() for part in name.split(".")) and colon and function):
        raise CommandError(
            f"{what!r} is no MODULE:FUNCTION, such as my_port:arguments"
            + (": write the module as Python imports it, not as a path" if "/" in name else "")
        )
    if name.endswith(".py"):
        raise CommandError(f"{what}: write the module without .py, as Python imports it")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise CommandError(f"{what}: there is no module {error.name}") from error
    try:
        make = getattr(module, function)
    except AttributeError as error:
        raise CommandError(f"{what}: {name} has no {function}") from error
    if not callable(make):
        raise CommandError(
            f"{what}: {function} is a {type(make).__name__}; expected a function without arguments"
        )
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        raise CommandError(
            f"{what}: {function} takes arguments; expected a function without, which returns them "
            "for bridge.compare"
        ) from error
    except ValueError:
        pass  # a builtin has no signature
    return make()
