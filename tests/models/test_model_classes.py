"""Class names are read out of a checkpoint in the model's order, and compared with a dataset's in order."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.errors import ClassMismatch
from audit.models import compare_classes
from audit.models.classes import classes_of

NAMES = st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=12, unique=True)


@given(NAMES)
def test_every_way_of_naming_classes_reads_alike(names: list[str]) -> None:
    forwards = dict(enumerate(names))
    for checkpoint in (
        {"classes": names},
        {"class_names": tuple(names)},
        {"idx_to_class": forwards},
        {"id2label": {str(index): name for index, name in forwards.items()}},
        {"class_to_idx": {name: index for index, name in reversed(forwards.items())}},
        {"label2id": {name: index for index, name in forwards.items()}},
        {"hyper_parameters": {"class_names": names}},
        {"args": argparse.Namespace(classes=names)},
    ):
        assert classes_of(checkpoint) == names


@pytest.mark.parametrize(
    "checkpoint",
    [
        {},
        {"classes": 10},
        {"classes": []},
        {"idx_to_class": {0: "a", 2: "b"}},
        {"classes": [1.5, None]},
        {"classes": "cat"},
    ],
)
def test_what_is_no_list_of_classes(checkpoint: dict[str, object]) -> None:
    assert classes_of(checkpoint) is None


def test_numbers_become_text() -> None:
    assert classes_of({"classes": [0, 1, 2]}) == ["0", "1", "2"]


@given(NAMES, st.data())
def test_only_the_same_numbering_passes(names: list[str], data: st.DataObject) -> None:
    compare_classes(names, names)
    compare_classes(names, names[: data.draw(st.integers(0, len(names)))])
    compare_classes(None, names)
    compare_classes(names, None)
    other = data.draw(st.permutations(names))
    if other != names:
        with pytest.raises(ClassMismatch, match="same names, other order"):
            compare_classes(names, other)


def test_folders_sorted_as_text() -> None:
    names = [str(number) for number in range(11)]
    with pytest.raises(ClassMismatch) as caught:
        compare_classes(names, sorted(names))
    assert "sorted as text" in caught.value.message
    assert "number 2 is '2' there and '10' here" in caught.value.message
    assert "Checkpoint (11): '0', '1', '2'" in caught.value.message
    assert "Dataset (11): '0', '1', '10'" in caught.value.message
    assert "manifest" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("checkpoint", "dataset", "said"),
    [
        (["cat", "dog"], ["Cat", "dog"], "only in spelling"),
        (["cat", "dog"], ["bird", "cat"], "the model has no 'bird'; the dataset has no 'dog'"),
        (["cat", "dog", "owl"], ["cat", "owl"], "the dataset has no 'dog'"),
        (["cat"], ["cat", "dog"], "the model has no 'dog'"),
    ],
)
def test_other_differences(checkpoint: list[str], dataset: list[str], said: str) -> None:
    with pytest.raises(ClassMismatch, match=said):
        compare_classes(checkpoint, dataset)
