"""Generated kernels: programs of declared ops, compiled while Python runs, for speed.

The first call of a program with operands of given dtypes requests a kernel. A thread compiles it in
the background, and calls run it as soon as it is loaded. It gives the interpreter's bits: the
native module compares both on random arrays before it accepts the kernel. The environment variable
BRIDGE_COMPILE selects when to compile: "background" (the default), "now", for which the first call
waits, or "0", never. CUDA kernels compiled ahead of time are added before the first call
(`built_kernels`).
"""

from bridge.generated.built_kernels import load_built_kernels
from bridge.generated.cache import CompileError
from bridge.generated.requests import asked_for, wait

__all__ = ["CompileError", "asked_for", "load_built_kernels", "wait"]
