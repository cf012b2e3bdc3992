"""If a release of JAX lacks a private name, bridge avoids it or names it in an ImportError."""

from __future__ import annotations

import json
import re

import jax
import pytest

from bridge._private.jax import names
from tests.jax.subprocess_run import run

pytestmark = pytest.mark.long  # all cases together take twenty seconds

LACKS = re.compile(
    rf"bridge needs \S+, which jax {re.escape(jax.__version__)} lacks; "
    rf"bridge was run with jax {re.escape(names.known)}"
)

# Names with a fallback are removed together, which takes seconds (each alone takes minutes); the
# others one by one.
GROUPS = [
    [name.path for name in names.entries if not name.is_needed],
    *([name.path] for name in names.entries if name.is_needed),
]

# One process imports the frameworks, and forks a child for each group before JAX has started.
CODE = """
import json, os, traceback
import jax, torch
from bridge._private import names
from tests.jax.private_names import call_everything

def outcome(paths):
    names.hidden.update(paths)
    try:
        call_everything()
    except ImportError as error:
        return str(error)
    except BaseException:
        return traceback.format_exc()
    return "all is well"

outcomes = []
for paths in GROUPS:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, outcome(paths).encode()[-60000:])
        os._exit(0)
    os.close(write)
    with open(read) as file:
        outcomes.append(file.read())
    os.waitpid(child, 0)
print(json.dumps(outcomes))
"""


def outcomes_of(groups: list[list[str]]) -> list[str]:
    """Returns the outcomes of all calls, with each group of names removed."""
    found: list[str] = json.loads(run(f"GROUPS = {groups!r}\n{CODE}", JAX_PLATFORMS="cpu"))
    return found


@pytest.fixture(scope="module")
def outcomes() -> list[str]:
    return outcomes_of(GROUPS)


@pytest.mark.slow
@pytest.mark.parametrize("path", GROUPS[0])
def test_without_it_alone(path: str) -> None:
    (outcome,) = outcomes_of([[path]])
    assert outcome == "all is well" or LACKS.fullmatch(outcome), outcome


@pytest.mark.long
@pytest.mark.parametrize("group", range(len(GROUPS)), ids=lambda i: GROUPS[i][-1])
def test_without(group: int, outcomes: list[str]) -> None:
    outcome = outcomes[group]
    assert outcome == "all is well" or LACKS.fullmatch(outcome), outcome


def test_what_is_needed_is_missed(outcomes: list[str]) -> None:
    assert LACKS.fullmatch(outcomes[GROUPS.index(["jax.extend.core.Primitive"])])
