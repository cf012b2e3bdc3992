"""The state of a search for the parts, which causes, choices and conditions of numbers read."""

from __future__ import annotations

from dataclasses import dataclass, field

from bridge.compared.found import Found
from bridge.compared.held import Held, budget
from bridge.compared.pairs import Pairs
from bridge.compared.recording.randomness import lines_of_dropout
from bridge.compared.recording.recorder import RANDOM as RANDOM_OPS
from bridge.compared.recording.tape import RANDOM as RANDOM_EQUATIONS
from bridge.compared.recording.values import Value, frontier
from bridge.compared.replay import Replay


@dataclass
class State(Pairs):
    """The pairs of both runs, and the parts that are known so far.

    Attributes:
      found: the parts.
      is_joined: both sides met again behind each of them.
      dropout: the lines that draw random numbers for dropout.
      boundaries: sentences about numbers that rounding leaves on another side of a boundary.
      tried: how often a wrong value was tried with numbers on the other side.
      replay: the equations of JAX, run again with replaced values.
      held: arrays of torch for values that are tried.
    """

    found: list[Found] = field(default_factory=list)
    is_joined: bool = True
    boundaries: list[str] = field(default_factory=list)
    tried: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        # An eighth is left for the arrays that a run has in use.
        eighth = budget(self.recording.values) / 8
        self.held, replaced = (Held(self.torch_side, self.recording, 3 * eighth) for _ in range(2))
        here, there = self.recording, self.tape
        self.dropout = lines_of_dropout(here.values, RANDOM_OPS, here.random)
        self.dropout |= lines_of_dropout(there.values, RANDOM_EQUATIONS, there.random)
        self.replay = Replay(self.tape, replaced, eighth)

    def first_dead(self) -> Value | None:
        """Returns the first dead value of JAX, None without one."""
        if not self.jax_dead:
            return None
        return self.tape.values[frontier(self.tape.values, self.jax_dead, self.joined)[0]]
