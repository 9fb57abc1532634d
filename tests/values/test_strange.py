"""Values that nobody expects: never an exception, never a change, never executed code."""

from __future__ import annotations

import dataclasses
import enum
import subprocess
import sys
import threading
import weakref
from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch

from audit import values
from audit.errors import NeedsTrust, NotFound, StoreDamaged
from audit.values import EncodedValue


@dataclasses.dataclass
class Sample:
    pixels: Any
    name: str


class Colour(enum.IntEnum):
    RED = 1


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    def __reduce__(self) -> Any:
        raise RuntimeError("no")


class Picklable:
    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Picklable) and other.value == self.value

    __hash__ = None  # type: ignore[assignment]


def loop() -> list[Any]:
    made: list[Any] = [1, "a"]
    made.append(made)
    return made


STRANGE: list[Any] = [
    Hostile(),
    threading.Lock(),
    lambda: 1,
    Colour.RED,
    object,
    loop(),
    np.array([object()]),
    np.ma.masked_array([1, 2], [False, True]),
    torch.ones(2, 2).to_sparse(),
    torch.empty(2, device="meta"),
    torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
    torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    torch.nn.Linear(2, 2),
    range(5),
    iter([]),
    np.rec.array([(1, 2)]),
    {"deep": [Hostile()]},
    NotImplemented,
    ...,
]


@pytest.mark.parametrize("value", STRANGE, ids=lambda v: type(v).__name__)
def test_strange_values_are_observed_without_an_exception(value: Any) -> None:
    facts = values.observe(value)
    assert facts.digest is None or len(facts.digest) == 32
    assert values.digest(value) == facts.digest
    values.preview(value)
    kind, _ = values.encode(value)
    assert kind == facts.kind


def test_a_pickle_is_not_executed_unless_allowed() -> None:
    kind, encoded = values.encode(Picklable(3))
    assert (kind, encoded.encoding) == ("other", "pickle")
    with pytest.raises(NeedsTrust, match="executes code"):
        values.decode(kind, encoded)
    assert values.decode(kind, encoded, allow_pickle=True) == Picklable(3)
    kind, encoded = values.encode({"a": [Picklable(3)]})
    with pytest.raises(NeedsTrust):
        values.decode(kind, encoded)
    assert values.decode(kind, encoded, allow_pickle=True) == {"a": [Picklable(3)]}


def test_what_cannot_be_pickled_says_so() -> None:
    assert values.observe(threading.Lock()).mode == "unpicklable"
    assert values.digest(threading.Lock()) is None
    with values.following_digests(1):
        assert values.digest(threading.Lock()) == values.digest(threading.Lock()) is not None
    with pytest.raises(NotFound, match="could not be pickled"):
        values.decode(*values.encode(threading.Lock()))


@pytest.mark.parametrize(
    "make",
    [lambda n: lambda: n, lambda n: iter(str(n) for _ in "a"), lambda n: memoryview(bytes([n])), lambda n: make_adder],
)
def test_what_cannot_be_distinguished_has_no_digest(make: Any) -> None:
    for wrapped in (lambda v: v, lambda v: {"x": torch.ones(2), "y": [v]}):
        facts = values.observe(wrapped(make(1)))
        assert facts.digest is None
        assert values.digest(wrapped(make(2))) is None
        assert values.encoded_digest(*values.encode(wrapped(make(1)))) is None


def make_adder() -> None:
    """A function is pickled as its name."""


class Words(list[Any]):
    """A subclass of list."""


class Settings(dict[str, Any]):
    """A subclass of dict."""


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Words([1, "a"]), [1, "a"]),
        (Settings(a=[1.5]), {"a": [1.5]}),
        ({"deep": Words([Settings(a=1)])}, {"deep": [{"a": 1}]}),
        (UserDict(input_ids=[1, 2]), {"input_ids": [1, 2]}),
    ],
)
def test_subclasses_come_back_as_plain_ones_with_their_digest_proved(value: Any, plain: Any) -> None:
    kind, encoded = values.encode(value)
    back = values.decode(kind, encoded)
    assert back == plain
    assert type(back) is type(plain)
    assert values.encoded_digest(kind, encoded) == values.digest(value) is not None


def test_a_dataclass_that_is_not_loaded_decodes_to_dict(monkeypatch: pytest.MonkeyPatch) -> None:
    kind, encoded = values.encode(Sample([1, 2], "x"))
    monkeypatch.delitem(sys.modules, Sample.__module__)
    assert values.decode(kind, encoded) == {"pixels": [1, 2], "name": "x"}


def test_mappings_decode_to_dict_and_dataclasses_to_themselves() -> None:
    assert values.decode(*values.encode(UserDict(a=1))) == {"a": 1}
    assert values.decode(*values.encode(Sample([1, 2], "x"))) == Sample([1, 2], "x")
    assert (values.observe(Sample(1, "x")).mode or "").startswith("dataclass ")


@pytest.mark.parametrize("kind", list(values.KINDS))
def test_damaged_bytes_are_an_error_that_says_so(kind: str) -> None:
    with pytest.raises(StoreDamaged, match="cannot be decoded"):
        values.decode(kind, EncodedValue("nonsense", b"\x02\0\0\0{}"))


@pytest.mark.parametrize("value", [torch.ones(3, 3), np.ones(9), "text" * 50, {"a": torch.ones(2)}])
def test_no_reference_is_kept(value: Any) -> None:
    if isinstance(value, str):
        return
    inner = value["a"] if isinstance(value, dict) else value
    before = sys.getrefcount(inner)
    values.observe(value)
    values.preview(value)
    values.encode(value)
    assert sys.getrefcount(inner) == before
    gone = weakref.ref(inner)
    assert gone() is inner


def test_reading_with_numpy_only() -> None:
    for tensor in (
        torch.ones(2, 3),
        torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        torch.ones(2, dtype=torch.complex64),
    ):
        back: Any = values.decode(*values.encode(tensor), numpy_only=True)
        assert isinstance(back, np.ndarray)
        wide = tensor.to(torch.float32) if tensor.dtype is torch.bfloat16 else tensor
        assert np.array_equal(back, wide.numpy())


@pytest.mark.workers
def test_importing_values_loads_neither_torch_nor_pyarrow() -> None:
    code = (
        "import sys; from audit import values; values.observe([1, 'a', None]); "
        "print([m for m in ('torch', 'pyarrow') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_previews_are_small() -> None:
    for value in (
        torch.rand(3, 224, 224),
        torch.rand(224, 224, 3),
        torch.rand(500, 20),
        np.zeros((300, 400), np.uint8),
    ):
        shown = values.preview(value)
        assert shown is not None
        assert shown.media_type == "image/jpeg"
        assert len(shown.data) < 12_000
    shown = values.preview(torch.rand(2, 2, 2, 2, 2))
    assert shown is not None
    assert shown.media_type == "text/plain"
    assert shown.data.startswith(b"float32 2")
