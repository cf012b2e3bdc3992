"""Trees keep their structure: every kind of node and key, and leaves that are no tensors."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
import torch

import bridge
from tests.exchange.values import address_of


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Plain:
    weight: Any
    name: str = "plain"


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    weight: Any
    derived: Any = dataclasses.field(init=False, default=None)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    weight: Any
    static: str = dataclasses.field(metadata={"static": True}, default="s")


@jax.tree_util.register_pytree_with_keys_class
class Node:
    """A node whose content only JAX's registry can see."""

    def __init__(self, hidden: Any) -> None:
        self.hidden = hidden

    def tree_flatten_with_keys(self) -> Any:
        return ((jax.tree_util.GetAttrKey("hidden"), self.hidden),), "aux"

    @classmethod
    def tree_unflatten(cls, aux: str, children: Any) -> Any:
        assert aux == "aux"
        return cls(*children)


class Pair(collections.namedtuple("Pair", ["x", "y"])):
    """A namedtuple with attributes, whose constructor does not take its fields."""

    label = "none"

    def __new__(cls, both: Any) -> Any:
        return super().__new__(cls, *both)


class Attributes(dict):
    """A dict whose attributes are its items."""

    def __init__(self, **items: Any) -> None:
        super().__init__(items)
        self.__dict__ = self


@dataclasses.dataclass
class Output(collections.OrderedDict):
    """A dict with its items as fields too, like outputs of transformers' models."""

    loss: Any = None
    logits: Any = None

    def __post_init__(self) -> None:
        for name in ("loss", "logits"):
            if getattr(self, name) is not None:
                super().__setitem__(name, getattr(self, name))


class Encoding(collections.UserDict):
    """A dict with an inner dict for its items, like transformers' BatchEncoding."""

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.length = len(data)


class Labelled(dict):
    label = "none"


class Versioned(collections.OrderedDict):
    """A dict whose constructor needs an argument, with attributes also in a slot."""

    __slots__ = ("slot",)

    def __init__(self, version: int) -> None:
        super().__init__()
        self.version = version


class Counted(collections.defaultdict):
    def __init__(self, version: int) -> None:
        super().__init__(list)
        self.version = version


MAKE = {
    "dict": lambda x: {"a": x, "b": 3},
    "keys": lambda x: {1: x, ("t", 2): x, None: x, frozenset([1]): [x]},
    "list": lambda x: [x, [], [x]],
    "tuple": lambda x: (x, (), ("s", x)),
    "namedtuple": lambda x: Point(x, Point(None, x)),
    "ordered": lambda x: collections.OrderedDict([("z", x), ("a", x)]),
    "default": lambda x: collections.defaultdict(list, {"q": [x]}),
    "none": lambda x: [None, x, None],
    "dataclass": lambda x: Plain([x], "other"),
    "frozen": lambda x: Frozen(x),
    "registered dataclass": lambda x: Registered({"k": x}, "static"),
    "node": lambda x: Node((x, 1)),
    "dict subclass": lambda x: Labelled(a=x),
    "namedtuple with a constructor": lambda x: Pair((x, [x])),
    "attributes": lambda x: Attributes(a=x, b=[x]),
    "output": lambda x: Output(logits=x),
    "encoding": lambda x: Encoding({"a": x, "b": 3}),
    "leaf": lambda x: x,
}


def same(one: Any, other: Any) -> bool:
    """True if two trees have the same structure and equal leaves, in the same order."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict | collections.UserDict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if dataclasses.is_dataclass(one):
        return all(
            same(getattr(one, field.name), getattr(other, field.name))
            for field in dataclasses.fields(one)
        )
    if isinstance(one, Node):
        return same(one.hidden, other.hidden)
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return bool(one is other or one == other)


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_structure_is_kept(make: Any) -> None:
    tensor = torch.arange(8.0)
    tree = make(tensor)
    there = bridge.to_jax(tree)
    array = bridge.to_jax(tensor)
    expected = make(array)
    assert same(bridge.to_torch(there), tree)
    assert same(bridge.to_torch(expected), tree)
    if tree is not tensor:
        assert there is not tree
        assert same(tree, make(tensor))  # the argument does not change


def test_leaves_share_memory() -> None:
    tensor = torch.randn(16)
    there = bridge.to_jax(Point({"w": tensor}, Node(tensor)))
    assert address_of(there.x["w"]) == address_of(there.y.hidden) == tensor.data_ptr()


def test_other_leaves_come_back_untouched() -> None:
    leaves = [object(), "s", 2, 3.0, 1j, b"", torch.float32, {1, 2}, len]
    for function in (bridge.to_jax, bridge.to_torch):
        assert all(a is b for a, b in zip(function(leaves), leaves, strict=True))


def test_what_defaultdicts_and_subclasses_carry() -> None:
    default = bridge.to_jax(collections.defaultdict(list, a=torch.ones(2)))
    assert default.default_factory is list
    labelled = Labelled(a=torch.ones(2))
    labelled.label = "mine"
    there = bridge.to_jax(labelled)
    assert type(there) is Labelled
    assert there.label == "mine"
    assert isinstance(there["a"], jax.Array)
    assert isinstance(labelled["a"], torch.Tensor)


def test_a_state_dict_keeps_the_versions_of_its_modules() -> None:
    state = torch.nn.BatchNorm1d(3, track_running_stats=False).state_dict()
    there = bridge.to_jax(state)
    assert there._metadata == state._metadata
    assert bridge.to_torch(there)._metadata[""]["version"] == 2


def test_attributes_of_subclasses() -> None:
    pair = Pair((torch.ones(2), None))
    pair.label = "mine"
    assert bridge.to_jax(pair).label == "mine"

    tensor = torch.ones(2)
    attributes, output = bridge.to_jax(Attributes(a=tensor)), bridge.to_jax(Output(logits=tensor))
    assert attributes.a is attributes["a"]
    assert isinstance(attributes.a, jax.Array)
    attributes.b = 3
    assert attributes["b"] == 3
    assert output.logits is output["logits"]
    assert isinstance(output.logits, jax.Array)
    assert output.loss is None
    encoding = bridge.to_jax(Encoding({"data": tensor}))
    assert isinstance(encoding["data"], jax.Array)
    assert encoding.length == 1


def test_outputs_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_outputs import CausalLMOutput

    tensor = torch.ones(2)
    output = bridge.to_jax(CausalLMOutput(logits=tensor, hidden_states=(tensor,)))
    assert type(output) is CausalLMOutput
    assert output.logits is output["logits"] is output[0]
    assert isinstance(output.logits, jax.Array)
    assert isinstance(output.hidden_states[0], jax.Array)
    assert output.loss is None
    encoding = transformers.BatchEncoding({"input_ids": torch.ones(3, dtype=torch.int32)})
    there = bridge.to_jax(encoding)
    assert type(there) is transformers.BatchEncoding
    assert isinstance(there.input_ids, jax.Array)
    assert isinstance(encoding.input_ids, torch.Tensor)


def test_results_of_torch_functions() -> None:
    values = bridge.to_jax(torch.max(torch.randn(3, 4), dim=0).values)
    assert values.shape == (4,)
    with jax.enable_x64(True):
        there = bridge.to_jax(torch.max(torch.randn(3, 4), dim=0))
    assert isinstance(there.values, jax.Array)
    assert there.indices.dtype == "int64"


PATHS = {
    "tree['a'][1]": lambda x: {"a": [0, x]},
    "tree[3][('k', 1)]": lambda x: [0, 1, 2, {("k", 1): x}],
    "tree.x.y": lambda x: Point(Point(0, x), 0),
    "tree.weight[0]": lambda x: Plain([x]),
    "tree.hidden[0].hidden": lambda x: Node((Node(x), 0)),
    "tree['z'].weight": lambda x: collections.OrderedDict(a=1, z=Frozen(x)),
    "the argument": lambda x: x,
}


@pytest.mark.parametrize("path", PATHS)
def test_errors_name_the_path(path: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        bridge.to_jax(PATHS[path](torch.ones(2, requires_grad=True)))
    assert str(error.value).startswith(f"to_jax: {path}: ")
    with pytest.raises(TypeError) as error:
        bridge.to_torch(PATHS[path](jnp.zeros(3, "int4")))
    assert str(error.value).startswith(f"to_torch: {path}: ")


def test_errors_of_the_nodes_themselves_pass_through() -> None:
    class Stubborn(dict):
        def __setitem__(self, key: Any, value: Any) -> None:
            raise RuntimeError("not mine")

    with pytest.raises(RuntimeError, match="not mine"):
        bridge.to_jax(Stubborn({"a": torch.ones(2)}))


@pytest.mark.parametrize("kind", [Versioned, Counted])
def test_attributes_of_ordered_and_default_dicts(kind: Any) -> None:
    """The constructor is not called, and the original does not change."""
    tree = kind(7)
    for key in ("z", "a", "m"):
        tree[key] = torch.ones(2)
    tree.extra = {"a": 1}
    if kind is Versioned:
        tree.slot = 5
        tree.move_to_end("z")
    there = bridge.to_jax({"in": tree})["in"]
    back = bridge.to_torch(there)
    for new, leaf in ((there, jax.Array), (back, torch.Tensor)):
        assert type(new) is kind
        assert list(new) == list(tree)
        assert all(isinstance(value, leaf) for value in new.values())
        assert vars(new) == {"version": 7, "extra": {"a": 1}}
        if kind is Versioned:
            assert new.slot == 5
            assert list(reversed(new)) == list(reversed(tree))
        else:
            assert new["new"] == []
    assert all(type(value) is torch.Tensor for value in tree.values())


def test_a_state_dict_keeps_its_versions() -> None:
    state = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)).state_dict()
    with jax.enable_x64(True):
        there = bridge.to_jax(state)
    assert there._metadata == state._metadata
    back = bridge.to_torch(there)
    assert back._metadata == state._metadata
    torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)).load_state_dict(back)


def test_a_tree_that_holds_itself() -> None:
    tensors: list[Any] = [torch.ones(2)]
    arrays: dict[str, Any] = {"a": jnp.ones(2)}
    tensors.append(tensors)
    arrays["self"] = arrays
    with pytest.raises(ValueError, match="to_jax: the tree contains itself"):
        bridge.to_jax(tensors)
    with pytest.raises(ValueError, match="to_torch: the tree contains itself"):
        bridge.to_torch(arrays)


def test_a_modules_state_crosses() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    with jax.enable_x64(True):  # num_batches_tracked is an int64
        there = bridge.to_jax(model.state_dict())
    assert list(there) == list(model.state_dict())
    assert address_of(there["0.weight"]) == model[0].weight.data_ptr()
    model.load_state_dict(bridge.to_torch(there))
