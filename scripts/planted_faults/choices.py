"""Faults of choices of columns: the largest numbers, draws of tokens, and mixtures of experts."""

from __future__ import annotations

from .fault import Fault

_TOP_K = "tests/choices/test_top_k.py"
_SAMPLING = "tests/choices/test_sampling.py"
_EXPERTS = "tests/choices/test_experts.py"

CHOICES = (
    Fault(
        "of equal numbers the later column wins",
        "cpp/selection/selection_kernel.cpp",
        "place > 0 && keys[place - 1] < run[i]",
        "place > 0 && keys[place - 1] <= run[i]",
        tests=f"{_TOP_K}::test_values_and_derivatives",
    ),
    Fault(
        "zeros of two signs differ",
        "cpp/selection/order.h",
        "const Key number = size == 0 ? kSign<Key> : ordered;",
        "const Key number = ordered;",
        tests=f"{_TOP_K}::test_special_numbers",
    ),
    Fault(
        "NaN ranks by its bits",
        "cpp/selection/order.h",
        "return size > Bits<T>::kInfinity ? kNan<Key> : number;",
        "return number;",
        tests=f"{_TOP_K}::test_special_numbers",
    ),
    Fault(
        "top_p leaves out the column that reaches the part",
        "cpp/selection/order.h",
        "const uint64_t more = wanted > before ? wanted - before : 1;",
        "const uint64_t more = 0;",
        tests=f"{_SAMPLING}::test_definition",
        keyword="top_p",
    ),
    Fault(
        "all rows have the offset of the first",
        "bridge/torch/_ops/choices/sampling.py",
        "number = number + torch.arange(",
        "number = number + 0 * torch.arange(",
        tests=f"{_SAMPLING}::test_definition",
    ),
    Fault(
        "the offset of a row does not carry into its high word",
        "bridge/jax/_ops/choices/sampling.py",
        "high = first[1] + (low < row).astype(np.uint32)",
        "high = jnp.broadcast_to(first[1], rows)",
        tests=f"{_SAMPLING}::test_64_bits",
    ),
    Fault(
        "the bias of the choice is in the weights",
        "bridge/catalogue/choices/experts.py",
        "weights = self._functions.taken(scores, columns)",
        "weights = self._functions.taken(scores if bias is None else scores + bias, columns)",
        tests=f"{_EXPERTS}::test_router",
    ),
    Fault(
        "the rows of the last expert come first",
        "bridge/torch/_ops/choices/functions.py",
        "order = torch.sort(numbers, stable=True)[1]",
        "order = torch.sort(numbers, stable=True, descending=True)[1]",
        tests=f"{_EXPERTS}::test_moves",
    ),
)
