"""The list of collectives in docs/sharding.md for DTensors, against two real processes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.torch_processes import JOIN
from tests.split_forms import FORMS, PARTS, counts, listed

LISTED = listed()


@pytest.mark.sampled(16)
@pytest.mark.parametrize("dims", ["rows", "columns"])
@pytest.mark.parametrize("name", FORMS)
def test_the_page_says_what_dtensors_send(processes: Any, name: str, dims: str) -> None:
    row = LISTED[name, dims]
    expected = counts(row.dtensor_forward), counts(row.dtensor_backward)
    ranks = processes(JOIN, PARTS)
    for found in ranks.run("tests.distributed.split_form_checks:sent", name=name, dims=dims):
        assert found == expected
