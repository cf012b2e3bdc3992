"""The ops that are measured. To add an op, write a module like these and add a line here."""

from __future__ import annotations

from tools.bench.bias_dropout_add import BiasDropoutAdd
from tools.bench.bias_gelu import BiasGelu
from tools.bench.cases import Op
from tools.bench.catalogue import Catalogue
from tools.bench.declared import Declared
from tools.bench.linear_cross_entropy import LinearCrossEntropy
from tools.bench.softmax import Softmax

_OPS = (
    BiasGelu(),
    Softmax(),
    BiasDropoutAdd(),
    Catalogue(),
    LinearCrossEntropy(),
    Declared(),
)
OPS: dict[str, Op] = {op.name: op for op in _OPS}
