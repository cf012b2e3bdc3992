"""Labels: a column for each row."""

from __future__ import annotations

from typing import Any

from bridge import lang as bl


def at_label(s: Any, labels: Any) -> Any:
    """Returns the number in the label's column of each row."""
    return bl.sum(bl.where(bl.column() == labels, s, -0.0))


def is_column(labels: Any) -> Any:
    return (labels >= 0) & (labels < bl.columns())


LABELS = ("labels", "columns")


def check_range(
    function: str, least: int, largest: int, columns: int, names: tuple[str, str] = LABELS
) -> None:
    """Raises ValueError if the smallest or the largest label is not a column.

    Args:
      names: the words for the labels and for the columns in the message.
    """
    for label in (least, largest):
        if not 0 <= label < columns:
            expected = f"from 0 to {columns - 1}" if columns else "of which there are none"
            labels, of = names
            raise ValueError(
                f"{function}: {labels} has {label}, expected numbers of {of}, {expected}"
            )
