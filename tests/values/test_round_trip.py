"""Every kind gives every value back, bit for bit, and looking at it changes nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import value_strategies as make
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from value_contracts import check_kind

from audit import values
from audit.values.hashing import RECIPE_CHANGES

quick = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
CASES = [
    pytest.param(name, example, id=f"{name}-{at}")
    for name, some in make.EXAMPLES.items()
    for at, example in enumerate(some)
]


def test_every_registered_kind_has_examples() -> None:
    assert set(values.KINDS) == set(make.EXAMPLES), "add examples to EXAMPLES of support/value_strategies.py"


def test_every_registered_kind_is_documented() -> None:
    docs = Path(__file__).parents[2] / "docs"
    (column,) = re.findall(
        r"^\| kind \| VARCHAR \| (`image`.*?) \|", (docs / "FORMAT.md").read_text("utf-8"), re.MULTILINE
    )
    assert re.findall(r"`(\w+)`", column) == [*values.KINDS], "write docs/FORMAT.md again with docs/make_format.py"
    digests, encodings = (docs / "FORMAT-values.md").read_text("utf-8").split("\n## Encodings\n")
    for rows, text in (("digest_rows", digests), ("encoding_rows", encodings)):
        shown = "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("|"))
        missing = [name for name in values.KINDS if not re.search(rf"\b{name}\b", shown)]
        assert not missing, f"declare `{rows}` on the classes of {missing}, and write the page with docs/make_values.py"


def test_every_new_kind_says_since_which_version() -> None:
    """Runs of versions 1 to 3 have no other kinds: what is new has a version of its own, and each version a reason."""
    first = {"image", "tensor", "array", "number", "text", "tokens", "mapping", "sequence", "other"}
    new = {kind.name: kind.since for kind in values.KINDS.values() if kind.name not in first}
    undated = [name for name, since in new.items() if since <= 3]
    assert not undated, f"set `since` of {undated} to one more than the version that docs/FORMAT-values.md names"
    reasons = {*RECIPE_CHANGES, *new.values()}
    skipped = {*range(2, values.DIGEST_VERSION + 1)} - reasons
    assert not skipped, f"no kind of value and no entry of RECIPE_CHANGES came with version {skipped}: lower `since`"


@pytest.mark.parametrize(("kind", "value"), [("text", "text"), ("image", Image.new("RGB", (2, 2)))])
def test_a_run_of_an_earlier_recipe_has_no_kind_that_came_later(
    monkeypatch: pytest.MonkeyPatch, kind: str, value: Any
) -> None:
    """Whatever was observed before in this process."""
    monkeypatch.setattr(type(values.KINDS.get(kind)), "since", values.DIGEST_VERSION)
    for _ in range(2):
        assert values.observe(value).kind == kind
        preview = values.preview(value)
        assert preview is not None
        with values.following_digests(values.DIGEST_VERSION - 1):
            assert values.observe(value).kind == "other"
            assert values.preview(value) != preview


@pytest.mark.slow
@pytest.mark.parametrize(("name", "example"), CASES)
def test_contract(name: str, example: Any, tmp_path: Path) -> None:
    check_kind(name, example, tmp_path)


@quick
@given(make.images)
def test_images(value: Any) -> None:
    check_kind("image", value)


@quick
@given(st.one_of(make.tensors, make.boxes, make.sparse))
def test_tensors(value: Any) -> None:
    check_kind("tensor", value)


@quick
@given(make.arrays)
def test_arrays(value: Any) -> None:
    check_kind("array", value)


@quick
@given(make.texts)
def test_texts(value: Any) -> None:
    check_kind("text", value)


@quick
@given(make.tokens)
def test_tokens(value: Any) -> None:
    check_kind("tokens", value)


@quick
@given(make.numbers)
def test_numbers(value: Any) -> None:
    check_kind("number", value)


@settings(quick, max_examples=examples(30))
@given(make.mappings)
def test_mappings(value: Any) -> None:
    check_kind("mapping", value)


@settings(quick, max_examples=examples(30))
@given(make.sequences)
def test_sequences(value: Any) -> None:
    check_kind(values.kind_of(value).name, value)


@quick
@given(st.integers(1, 12), st.integers(2, 30), st.integers(2, 30), make.seeds, st.floats(0.01, 10), st.floats(-5, 5))
def test_quantised_float_pictures(
    channels: int, height: int, width: int, seed: int, scale: float, shift: float
) -> None:
    """What ToTensor and Normalize make is stored as bytes and comes back as the same floats."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    levels = torch.randint(0, 256, (channels, height, width), generator=generator, dtype=torch.uint8)
    check_kind("tensor", levels / 255)
    check_kind("tensor", (levels / 255 - shift) / scale)


def test_a_masked_array_has_one_digest() -> None:
    """Its fill value is set when somebody first asks for it; the digest must not depend on that."""
    value, other = (
        np.ma.masked_array(np.arange(3.0), mask=[False, True, False]),
        np.ma.masked_array(np.arange(3.0), mask=[False, False, True]),
    )
    digest = values.digest(value)
    values.preview(value)
    assert repr(value)
    assert digest is not None
    assert values.digest(value) == digest == values.digest(value.copy())
    assert values.digest(other) != digest
