"""The sampling of test cases in a run (conftest.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest


def drawn(
    sample: int | None, commit: str, arguments: tuple[str, ...] = ("tests",), whole: bool = False
) -> list[str]:
    """Returns the sampled cases of a small test of 3 cases and of a `sampled` one of 50."""

    def item(name: str, marker: Any) -> Any:
        return SimpleNamespace(nodeid=f"tests/a.py::{name}", get_closest_marker=marker.get)

    sampled = {"sampled": SimpleNamespace(args=(5,))}
    items = [item(f"test_small[{i}]", {"whole": True} if whole else {}) for i in range(3)]
    items += [item(f"test_grid[{i}]", sampled) for i in range(50)]
    told: list[Any] = []
    config = SimpleNamespace(
        getoption=lambda _: sample,
        args=list(arguments),
        hook=SimpleNamespace(pytest_deselected=lambda items: told.extend(items)),
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(conftest, "commit", lambda: commit)
        conftest.pytest_collection_modifyitems(config, items)
    assert len(items) + len(told) in (53, len(items))
    return [item.nodeid.partition("::")[2] for item in items]


def test_a_grid_is_sampled_and_nothing_else() -> None:
    small = [f"test_small[{i}]" for i in range(3)]
    cases = drawn(None, "abc")
    assert cases[:3] == small
    assert len(cases) == 3 + 5
    assert len(drawn(2, "abc")) == 2 + 2
    assert len(drawn(2, "abc", whole=True)) == 3 + 2
    assert len(drawn(1, "abc", whole=True)) == 1  # one case of one of the two


def test_all_in_make_exhaustive_and_where_a_test_is_named() -> None:
    assert len(drawn(0, "abc")) == 53
    assert len(drawn(None, "abc", ("tests/a.py::test_grid",))) == 53


def test_others_for_each_commit_the_same_for_one() -> None:
    assert drawn(None, "abc") == drawn(None, "abc")
    assert {case for i in range(200) for case in drawn(None, str(i))} == set(drawn(0, ""))


def test_a_quarter_of_the_long_tests_others_for_each_commit() -> None:
    def drawn_long(sample: int | None, commit: str) -> list[str]:
        marked = {"long": True}
        items: list[Any] = [
            SimpleNamespace(nodeid=f"tests/a.py::test_{i}[{case}]", get_closest_marker=marked.get)
            for i in range(8)
            for case in range(2)
        ]
        config = SimpleNamespace(
            getoption=lambda _: sample,
            args=["tests"],
            hook=SimpleNamespace(pytest_deselected=lambda items: None),
        )
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(conftest, "commit", lambda: commit)
            conftest.pytest_collection_modifyitems(config, items)
        return [item.nodeid for item in items]

    assert len(drawn_long(6, "abc")) == 2
    assert len(drawn_long(None, "abc")) == len(drawn_long(0, "abc")) == 16
    assert len({case for i in range(200) for case in drawn_long(6, str(i))}) == 16
