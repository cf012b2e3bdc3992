"""A release of JAX that lacks a private name is worked around, or named in an ImportError."""

from __future__ import annotations

import json
import re
from typing import Any

import jax
import pytest

from bridge._private.jax import names
from tests.jax.subprocess_run import run

LACKS = re.compile(
    rf"bridge needs \S+, which jax {re.escape(jax.__version__)} lacks; "
    rf"bridge was run with jax {re.escape(names.known)}"
)

# One process imports the frameworks, and has a child for each name before JAX has started.
CODE = """
import json, os, traceback
import jax, torch
from bridge._private import names
from tests.jax.private_names import call_everything

def outcome(path):
    names.hidden.add(path)
    try:
        call_everything()
    except ImportError as error:
        return str(error)
    except BaseException:
        return traceback.format_exc()
    return "all is well"

outcomes = {}
for path in PATHS:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, outcome(path).encode()[-60000:])
        os._exit(0)
    os.close(write)
    with open(read) as file:
        outcomes[path] = file.read()
    os.waitpid(child, 0)
print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """By path: what comes of calls of everything where that name is gone."""
    paths = [name.path for name in names.entries]
    found: dict[str, str] = json.loads(run(f"PATHS = {paths!r}\n{CODE}", JAX_PLATFORMS="cpu"))
    return found


@pytest.mark.parametrize("name", names.entries, ids=lambda name: name.path)
def test_without(name: Any, outcomes: dict[str, str]) -> None:
    outcome = outcomes[name.path]
    assert outcome == "all is well" or LACKS.fullmatch(outcome), outcome


def test_what_is_needed_is_missed(outcomes: dict[str, str]) -> None:
    assert LACKS.fullmatch(outcomes["jax.extend.core.Primitive"])
