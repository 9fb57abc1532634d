"""Which split a loader is of, where the user does not say: what its dataset says about itself.

A loader that draws a part of a dataset may be any split of it. So only a loader whose sampler draws every sample has the
split of its dataset, and a dataset that chooses from another, as the parts of `random_split` do, says nothing. Nor does one
of Hugging Face: both parts of its `train_test_split` are called "train".
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from audit.recorders.loop.expected_draws import draws_of
from audit.split_names import is_split_name


def split_of_loader(loader: Any) -> str | None:
    """Return the split that the dataset of a loader says it is; None if it does not say, or is not drawn as a whole."""
    return _find_named_split(loader.dataset) if draws_of(loader) is not None else None


def _find_named_split(dataset: Any) -> str | None:
    with contextlib.suppress(Exception):
        # Attributes are the user's code.
        attributes = vars(dataset)
        is_training = attributes.get("train")
        if isinstance(is_training, bool) and _is_of_torchvision(dataset):
            return "train" if is_training else "test"
        for name in (attributes.get("split"), _folder_name(attributes.get("root"))):
            if isinstance(name, str) and is_split_name(name):
                return name
    return None


def _is_of_torchvision(dataset: Any) -> bool:
    return any(kind.__module__.startswith("torchvision.datasets.") for kind in type(dataset).__mro__)


def _folder_name(root: Any) -> str | None:
    return os.path.basename(os.path.abspath(os.fspath(root))) if isinstance(root, (str, os.PathLike)) else None
