"""Class names that a checkpoint carries, and whether a dataset numbers the same classes the same way.

The commonest silent mistake is a dataset whose folders sort as text ("1", "10", "2") under a model trained with another
order: every prediction then has a wrong name. So names are compared here, in order, and never mapped silently.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest

from audit.errors import ClassMismatch
from audit.texts import enumerate_some

_LISTS = ("classes", "class_names", "label_names", "labels", "categories")
_BY_INDEX = ("idx_to_class", "idx2class", "id2label", "index_to_class")
_BY_NAME = ("class_to_idx", "class2idx", "label2id", "class_to_index")
_NESTED_KEYS = ("meta", "metadata", "config", "hyper_parameters", "hparams", "args")


def classes_of(checkpoint: Mapping[str, object]) -> list[str] | None:
    """Return the class names in the order of the model's outputs, if the checkpoint has all of them."""
    for key in (*_LISTS, *_BY_INDEX, *_BY_NAME):
        if key in checkpoint and (found := _names(key, _parse_json(checkpoint[key]))):
            return found
    for key in _NESTED_KEYS:
        inner = as_mapping(checkpoint.get(key))
        if inner and (found := classes_of({name: value for name, value in inner.items() if name not in _NESTED_KEYS})):
            return found
    return None


def as_mapping(value: object) -> Mapping[str, object] | None:
    """Return a dict unchanged, and a namespace such as argparse's as a dict."""
    if isinstance(value, Mapping):
        return value
    if type(value).__name__ == "Namespace":
        return vars(value)
    return None


def _parse_json(value: object) -> object:
    # safetensors holds text only, so lists and dicts arrive there as JSON.
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _names(key: str, value: object) -> list[str] | None:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return _texts(value) if key in _LISTS else None
    if not isinstance(value, Mapping) or not value:
        return None
    pairs = list(value.items())
    if key in _BY_NAME or (key in _LISTS and all(_index(index) is not None for _, index in pairs)):
        pairs = [(index, name) for name, index in pairs]
    by_index = {_index(index): name for index, name in pairs}
    if set(by_index) != set(range(len(pairs))):
        return None
    return _texts([by_index[index] for index in range(len(pairs))])


def _index(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and value.isdecimal() else None


def _texts(values: Sequence[object]) -> list[str] | None:
    plain = all(isinstance(value, str | int) and not isinstance(value, bool) for value in values)
    return [str(value) for value in values] if values and plain else None


def compare_classes(checkpoint: list[str] | None, dataset: list[str] | None) -> None:
    """Raise `ClassMismatch` unless every class of the dataset has the model's number; missing class names pass.

    A dataset that has only the model's first classes passes: its numbers are the model's own.
    """
    if checkpoint is None or dataset is None or dataset == checkpoint[: len(dataset)]:
        return
    raise ClassMismatch(
        f"The checkpoint and the dataset disagree about the classes: {_difference(checkpoint, dataset)}. "
        f"Checkpoint ({len(checkpoint)}): {_enumerate_names(checkpoint)}. Dataset ({len(dataset)}): {_enumerate_names(dataset)}.",
        hint=_advice(checkpoint, dataset),
    )


def complete_classes(
    checkpoint: list[str] | None, dataset: list[str] | None, labels: Collection[int] | None
) -> list[str] | None:
    """Return the dataset's class names, with the checkpoint's for numbers that no sample has and that have no name.

    A manifest of a few samples names the classes of these alone; every other number is its own name.
    """
    if checkpoint is None or dataset is None or labels is None:
        return dataset
    return [
        checkpoint[number] if name == str(number) and number not in labels and number < len(checkpoint) else name
        for number, name in enumerate(dataset)
    ]


def _difference(checkpoint: list[str], dataset: list[str]) -> str:
    at = next(index for index, (a, b) in enumerate(zip_longest(checkpoint, dataset)) if a != b)
    if sorted(checkpoint) == sorted(dataset):
        order = ", the dataset's sorted as text" if dataset == sorted(dataset) else ""
        return f"same names, other order{order} (number {at} is {checkpoint[at]!r} there and {dataset[at]!r} here)"
    if [_fold_case(name) for name in checkpoint] == [_fold_case(name) for name in dataset]:
        return f"the names differ only in spelling (number {at} is {checkpoint[at]!r} there and {dataset[at]!r} here)"
    unknown = [name for name in dataset if name not in set(checkpoint)]
    absent = [name for name in checkpoint if name not in set(dataset)]
    parts = []
    if unknown:
        parts.append(f"the model has no {_enumerate_names(unknown, 5)}")
    if absent:
        parts.append(f"the dataset has no {_enumerate_names(absent, 5)}")
    return "; ".join(parts) or "a name occurs twice"


def _fold_case(name: str) -> str:
    return "".join(character for character in name.casefold() if character.isalnum())


def _enumerate_names(names: list[str], limit: int = 12) -> str:
    return enumerate_some([repr(name) for name in names], limit)


def _advice(checkpoint: list[str], dataset: list[str]) -> str:
    if set(dataset) <= set(checkpoint):
        return (
            "Pass the dataset as a manifest (.csv, .jsonl or .parquet) whose labels are the checkpoint's numbers, or "
            "build it in the checkpoint's order with `dataset(root)` in a --pipeline file."
        )
    return "Check that this checkpoint was trained on these classes, or rename the folders to the checkpoint's names."
