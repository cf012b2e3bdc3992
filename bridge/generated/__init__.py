"""Programs of declared ops, compiled while Python runs: machine code instead of the interpreter.

The first call of a program with operands of some dtypes asks for it; a thread has it compiled in
the background, and calls take it as soon as it is there. It gives the interpreter's bits: the
native module compares them on random arrays before it takes what was compiled. The environment
variable BRIDGE_COMPILE says when: "background" (or nothing), "now", in which the first call waits,
or "0", never. For CUDA those of the build are added before the first call (`shipped`).
"""

from bridge.generated.cache import CompileError
from bridge.generated.requests import asked_for, wait
from bridge.generated.shipped import load_shipped

__all__ = ["CompileError", "asked_for", "load_shipped", "wait"]
