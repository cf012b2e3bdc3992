"""Extends griffe, which reads the sources for `make site`, by two habits of this project."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Renames the section Example of each docstring: griffe reads only Examples as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Changes the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            text = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.M)
            obj.docstring.value = text


class FixedActivations(griffe.Extension):
    """Gives `swiglu = _with(...)` and its kind the signature of `glu` without the activation."""

    def on_module(self, *, mod: griffe.Module, **_: Any) -> None:
        """Replaces such attributes by functions."""
        glu = mod.functions.get("glu")
        for name, attribute in list(mod.attributes.items()):
            if glu and str(attribute.value).startswith("_with("):
                parameters = [each for each in glu.parameters if each.name != "activation"]
                function = griffe.Function(
                    name, parameters=griffe.Parameters(*parameters), returns=glu.returns
                )
                mod.set_member(name, function)
