"""The choice of ops and forms: the names that --ops and --forms take."""

from __future__ import annotations

from collections.abc import Sequence

from bridge.cli.errors import CommandError
from bridge.cli.parity.grid import OPS

# Parts of the grid besides ops: conversions between frameworks, and rows in other batches.
BORDER, INVARIANCE = "border", "invariance"
FORMS = tuple(form for forms in OPS.values() for form in forms)
EVERYTHING = (*OPS, INVARIANCE, BORDER)


def choose(
    ops: Sequence[str], forms: Sequence[str]
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Returns the forms of each op, and the other parts of the grid; every named part is included.

    Raises:
      CommandError: if a form is unknown or belongs to another op, or a named op has none of the
        forms.
    """
    for form in forms:
        if form not in FORMS:
            expected = f"expected some of {', '.join(FORMS)}"
            hint = f"choose it with --ops {form}" if form in EVERYTHING else expected
            raise CommandError(f"--forms {form}: no form; {hint}")
    others = [name for name in (INVARIANCE, BORDER) if name in ops]
    chosen = {
        name: tuple(form for form in OPS[name] if form in forms)
        for name in dict.fromkeys(ops)
        if name in OPS
    }
    if tuple(forms) == FORMS:
        return chosen, others
    if tuple(ops) == EVERYTHING:
        return {name: of_op for name, of_op in chosen.items() if of_op}, []
    if others:
        raise CommandError(f"{', '.join(others)}: there are no forms of it to choose from")
    for form in forms:
        if not any(form in of_op for of_op in chosen.values()):
            raise CommandError(f"--forms {form}: no form of {', '.join(chosen)}")
    for name, of_op in chosen.items():
        if not of_op:
            raise CommandError(
                f"--ops {name}: no form named {', '.join(forms)}; its forms are "
                f"{', '.join(OPS[name])}"
            )
    return chosen, others
