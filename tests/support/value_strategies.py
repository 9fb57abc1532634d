"""Examples of every kind, and hypothesis strategies that make more."""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from torchvision import tv_tensors

_MODES = "1 L P PA LA La RGB RGBA RGBX RGBa CMYK YCbCr LAB HSV I F I;16 I;16B I;16L I;16N"
MODES = tuple(_MODES.split(" "))
_NAMES = (
    "uint8 int8 uint16 int16 uint32 int32 uint64 int64 bool float16 bfloat16 float32 float64 complex32 complex64 "
    "complex128 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
)
DTYPES = [getattr(torch, name) for name in _NAMES.split(" ") if hasattr(torch, name)]
Point = namedtuple("Point", ["x", "y"])


@dataclasses.dataclass
class Annotation:
    boxes: Any
    extra: Any


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenValue:
    number: Any
    name: Any


def image(mode: str, width: int, height: int, seed: int) -> Image.Image:
    """A picture of that mode with arbitrary bytes."""
    blank = Image.new(mode, (width, height))
    size = len(blank.tobytes())
    if not size:
        return blank
    made = Image.frombytes(mode, (width, height), np.random.default_rng(seed).bytes(size))
    if mode in ("P", "PA"):
        made.putpalette(np.random.default_rng(seed + 1).bytes(768))
        if seed % 3 == 1:
            made.info["transparency"] = 7
        if seed % 3 == 2:
            made.info["transparency"] = bytes(range(50))
    return made


def tensor(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """A tensor of arbitrary bits (bool: of arbitrary truth)."""
    count = math.prod(shape)
    rng = np.random.default_rng(seed)
    if dtype is torch.bool:
        return torch.from_numpy(rng.integers(0, 2, shape).astype(bool))
    width = torch.empty(0, dtype=dtype).element_size()
    if not count:
        return torch.empty(shape, dtype=dtype)
    raw = torch.from_numpy(rng.integers(0, 256, count * width, dtype=np.uint8))
    return raw.view(dtype).reshape(shape)


shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
seeds = st.integers(0, 10_000)
images = st.builds(image, st.sampled_from(MODES), st.integers(0, 17), st.integers(0, 9), seeds)
tensors = st.builds(tensor, st.sampled_from(DTYPES), shapes, seeds)
dtypes: Any = st.one_of(
    hnp.scalar_dtypes(), hnp.unicode_string_dtypes(), hnp.byte_string_dtypes(), hnp.array_dtypes(allow_subarrays=False)
)
arrays: Any = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
any_text = st.text(st.characters(codec=None, categories=None, exclude_categories=()), max_size=400)
texts = st.one_of(any_text, st.binary(max_size=400), st.binary(max_size=50).map(bytearray))
numbers: Any = st.one_of(
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.integers(10**300, 10**320),
    hnp.arrays(hnp.scalar_dtypes(), ()).map(lambda a: a[()]),
)
flat = st.one_of(st.lists(any_text, min_size=1, max_size=20), st.lists(st.integers(), min_size=1, max_size=50))
tokens = st.one_of(flat, flat.map(tuple))
boxes = st.builds(
    lambda seed, form, canvas, clamping: tv_tensors.BoundingBoxes(
        torch.randint(0, 9, (2, 4), generator=torch.Generator().manual_seed(seed)),
        format=form,
        canvas_size=canvas,
        clamping_mode=clamping,
    ),
    seeds,
    st.sampled_from(["XYXY", "XYWH", "CXCYWH"]),
    st.tuples(st.integers(1, 99), st.integers(1, 99)),
    st.sampled_from(["soft", "hard"]),
)
sparse = st.builds(
    lambda seed, layout: (
        (torch.rand(3, 4, generator=torch.Generator().manual_seed(seed)) - 0.5).relu().to_sparse(layout=layout)
    ),
    seeds,
    st.sampled_from([torch.sparse_coo, torch.sparse_csr, torch.sparse_csc]),
)
plain_numbers = numbers.filter(lambda n: not isinstance(n, np.generic))
leaves = st.one_of(plain_numbers, any_text, st.none(), tensors, images, boxes, sparse)
keys = st.one_of(any_text, st.integers(), st.booleans(), st.none(), st.tuples(st.integers(), any_text))
nested: Any = st.recursive(
    leaves, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)), max_leaves=6
)
entries = st.dictionaries(keys, nested, max_size=4)
mappings = st.one_of(
    entries,
    entries.map(OrderedDict),
    entries.map(lambda found: defaultdict(dict, found)),
    st.builds(Annotation, nested, nested),
    st.builds(FrozenValue, nested, nested),
)
sequences = st.one_of(
    st.lists(nested, max_size=4).map(lambda v: [*v, None]),
    st.lists(nested, max_size=4).map(lambda v: (*v, None)),
    st.builds(Point, nested, nested),
    st.frozensets(st.integers(), max_size=5),
    st.sets(any_text, max_size=5),
)

EXAMPLES: dict[str, list[Any]] = {
    "image": [image(mode, 13, 7, seed) for mode in MODES for seed in range(3)]
    + [Image.new("RGB", (0, 4)), image("RGB", 300, 200, 1)],
    "tensor": [tensor(dtype, shape, 3) for dtype in DTYPES for shape in ((), (0, 3), (3, 8, 8), (2, 1, 3, 2, 2))]
    + [
        torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1),
        torch.randn(3, 4, dtype=torch.complex64).conj(),
        torch.randn(3, 4, dtype=torch.complex64).conj().imag,
        torch.ones(3, requires_grad=True) * 2,
        torch.full((3, 20, 20), 0.25),
        torch.tensor([0.0, -0.0, float("nan"), float("inf")]).repeat(20, 5),
        (torch.arange(768) % 256).reshape(3, 16, 16) / 255,
        ((torch.arange(768) % 256).reshape(3, 16, 16) / 255 - 0.485) / 0.229,
        tv_tensors.Image(torch.zeros(3, 4, 4, dtype=torch.uint8)),
        tv_tensors.Mask(torch.ones(4, 4)),
        tv_tensors.Video(torch.ones(2, 3, 4, 4)),
        tv_tensors.BoundingBoxes([[1, 2, 3, 4]], format="XYXY", canvas_size=(32, 48)),
        tv_tensors.KeyPoints([[1, 2]], canvas_size=(32, 48)),
        tv_tensors.BoundingBoxes([[1, 2, 3, 4]], format="CXCYWH", canvas_size=(9, 8), clamping_mode="hard"),
        torch.tensor([[0, 1.5], [2, 0]]).to_sparse(),
        torch.sparse_coo_tensor(torch.tensor([[0, 0], [1, 1]]), torch.tensor([1.0, 2.0]), (2, 3)),
        torch.tensor([[0, 1.5], [2, 0]]).to_sparse_csr(),
        torch.tensor([[0, 1.5], [2, 0]]).to_sparse_csc(),
        torch.eye(4).to_sparse_bsr((2, 2)),
        torch.eye(4).to_sparse_bsc((2, 2)),
        torch.quantize_per_tensor(torch.tensor([0.5, -1.25]), 0.1, 3, torch.qint8),
        torch.quantize_per_channel(torch.ones(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0, torch.quint8),
        torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)]),
        torch.nested.nested_tensor([torch.ones(2, 4), torch.zeros(3, 4)], layout=torch.jagged),
    ],
    "array": [
        np.arange(12.0).reshape(3, 4),
        np.asfortranarray(np.arange(12).reshape(3, 4)),
        np.arange(12)[::-2],
        np.array(3.5),
        np.zeros((0, 2)),
        np.array(["a", "ßx"]),
        np.array([b"a", b"bc"]),
        np.array(["2024-01-01", "NaT"], "datetime64[D]"),
        np.arange(5, dtype=">i4"),
        np.zeros(3, [("a", "<i4"), ("b", "U3"), ("c", "f8", (2,))]),
        np.zeros(4, np.dtype([("a", "i1"), ("b", "i8")], align=True)),
        np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8),
        np.array([1, 2], np.longdouble),
    ],
    "text": ["", "hello", "\ud800 lone", "x" * 3000, b"", b"\xff\x00" * 300, bytearray(b"abc")],
    "tokens": [["a", "b"], ("a", "\udfff"), [1, 2, 3], (5,), [2**70, -1], list(range(600)), [""]],
    "number": [
        True,
        False,
        0,
        -5,
        10**400,
        2**20_000,
        1.5,
        -0.0,
        math.nan,
        math.inf,
        1 - 2j,
        complex(math.nan, -0.0),
        np.float32(1.5),
        np.int8(-3),
        np.bool_(True),
        np.float64("nan"),
        np.datetime64("2024-01-01"),
        np.str_("x"),
        np.complex64(1j),
    ],
    "mapping": [
        {},
        {"a": 1},
        {1: "x", (2, "b"): None, None: [1.5, "s"], b"k": {"n": torch.ones(2)}},
        {"input_ids": [1, 2], "pixel_values": np.ones((2, 2))},
        OrderedDict(b=1, a=torch.ones(2)),
        defaultdict(list, a=[1, 2]),
        defaultdict(None, a=1.5),
        Annotation([[1, 2]], {"n": None}),
        FrozenValue(1, "a"),
        {"boxes": tv_tensors.BoundingBoxes([[1, 2, 3, 4]], format="XYWH", canvas_size=(32, 48))},
    ],
    "sequence": [
        [],
        (),
        [1, "a"],
        (torch.ones(2), 3),
        Point(1, Point("a", None)),
        {3, 1, 2},
        frozenset("abc"),
        [[1, 2], [3]],
        [True, False],
    ],
    "other": [None],
}
