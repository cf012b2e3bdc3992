"""The faults that check_faults.py plants: their places, and the tests that must detect them.

Calls from torch and JAX share the binding of a call (cpp/bindings): a fault there changes both
frameworks alike, so only a comparison with a reference can detect it.
"""

from __future__ import annotations

from .adapters import BIAS_DROPOUT_ADD, MANY_DEVICES, SHARED
from .builds import BUILD
from .choices import CHOICES
from .compared import COMPARED
from .convolutions import CONVOLUTIONS
from .declared import DECLARED, MASKS, TABLES
from .fault import Fault
from .gelu_and_softmax import BIAS_GELU, SOFTMAX
from .models import ATTENTION, INVARIANT, OPTIMIZERS, REPLACED_PRODUCTS
from .products import EMBEDDINGS, PRODUCTS

__all__ = ["FAULTS", "Fault"]

FAULTS = (
    *BIAS_GELU,
    *SOFTMAX,
    *BIAS_DROPOUT_ADD,
    *SHARED,
    *MANY_DEVICES,
    *DECLARED,
    *TABLES,
    *MASKS,
    *PRODUCTS,
    *CONVOLUTIONS,
    *EMBEDDINGS,
    *CHOICES,
    *COMPARED,
    *ATTENTION,
    *BUILD,
    *INVARIANT,
    *OPTIMIZERS,
    *REPLACED_PRODUCTS,
)
