"""The ops of the catalogue, compared with the same expressions in each framework."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from bridge.cli.catalogue import ENTRIES
from bridge.cli.entries import FIXED, MASKS, Entry, Operands, shape_of
from tools.bench.cases import TINY, Case, Function, Make, Op

# Sizes within the caches and beyond; and one row, or a few, of a vocabulary, as in a sampler.
SHAPES = ((64, 1024), (4096, 4096))
FEW_ROWS = ((1, 1 << 17), (8, 1 << 17))
OF_VOCABULARIES = ("log_softmax", "logsumexp", "token_log_probs", "cross_entropy")
QUICK = ("rms_norm", "swiglu packed")


class OfEntries(Op):
    """An op whose forms have entries."""

    entries: ClassVar[Mapping[str, Entry]]

    def moved(self, case: Case) -> tuple[float, float]:
        return self.entries[case.form].arrays_moved

    def operands(self, case: Case, make: Make) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        entry = self.entries[case.form]
        made = {}
        for name, role in entry.roles.items():
            shape = shape_of(role, case.shape)
            if role == "label":
                made[name] = make.below(case.shape[-1], *shape)
            elif role == "integer":
                made[name] = make.key()
            elif role == "causal mask":
                made[name] = make.upper(*shape)
            else:
                made[name] = (make.hidden if role in MASKS else make.normal)(*shape)
        others = tuple(made[name] for name, role in entry.roles.items() if role in FIXED)
        return tuple(made[name] for name in entry.inputs), others

    def cotangent(self, case: Case, make: Make) -> Any:
        # Results with one number per row are in float32 or wider, and so are their gradients.
        results = self.entries[case.form].results
        shapes = [(shape_of(role, case.shape), role) for role in results]
        made = [make.normal(*s) if role != "per row" else make.wide(*s) for s, role in shapes]
        return made[0] if len(made) == 1 else tuple(made)

    def bridged(self, case: Case, ops: Any) -> Function:
        call = self.entries[case.form].call
        return self._of_arguments(case, lambda p: call(ops, p))

    def in_torch(self, case: Case) -> Function:
        return self._of_arguments(case, self.entries[case.form].in_torch)

    def in_jax(self, case: Case) -> Function:
        return self._of_arguments(case, self.entries[case.form].in_jax)

    def _of_arguments(self, case: Case, function: Any) -> Function:
        """Returns a function of the inputs and then the others, for one of operands by name."""
        entry = self.entries[case.form]
        names = [*entry.inputs, *(name for name, role in entry.roles.items() if role in FIXED)]

        def run(*arguments: Any) -> Any:
            p: Operands = dict(zip(names, arguments, strict=True))
            return function(p)

        return run


class Catalogue(OfEntries):
    """A form is the name of an entry."""

    name = "catalogue"
    entries = ENTRIES

    def cases(self, framework: str, quick: bool) -> Iterator[Case]:
        chosen = [*itertools.product(SHAPES, ENTRIES)]
        chosen += [*itertools.product(FEW_ROWS, OF_VOCABULARIES)]
        dtypes: tuple[str, ...] = ("float32", "bfloat16")
        if quick:
            chosen, dtypes = [*itertools.product(SHAPES[:1], QUICK)], dtypes[:1]
        for (shape, form), dtype, what in itertools.product(
            chosen, dtypes, ("forward", "forward+backward")
        ):
            yield Case(self.name, framework, what, dtype, form, shape)
        tiny = {"torch": ("forward", "forward+backward"), "jax": ("outside jit",)}
        for what in tiny[framework]:
            yield Case(self.name, framework, what, "float32", QUICK[0], TINY, part="tiny")
