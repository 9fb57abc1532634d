"""A run on Ray names the stages that it will not have, before it begins."""

from __future__ import annotations

from typing import Any

import pytest
from dataset_shapes import SHAPES, Shape
from torch.utils.data import IterableDataset

from audit.engines.assemble import Assembly
from audit.engines.ray.unobserved import describe_unobserved
from audit.recorders.stages.discover import find_pipeline


def describe(dataset: Any) -> list[str]:
    return describe_unobserved(Assembly(dataset, find_pipeline(dataset), None, None, []), 0, 0)


@pytest.mark.parametrize("name", ["functions", "text", "own Compose in transform", "reference preset", "methods"])
def test_stages_that_calls_would_find_are_named(name: str) -> None:
    (shape,) = (shape for shape in SHAPES if shape.name == name)
    known = {stage.path for stage in find_pipeline(shape.build()).stages}
    (text,) = describe(shape.build())
    for path, stage in shape.stages:
        assert (f"{stage} ({path})" in text) is (path not in known), text


def test_nothing_is_said_of_datasets_without_such_stages() -> None:
    def is_plain(shape: Shape) -> bool:
        return not shape.stages and not isinstance(shape.build(), IterableDataset)

    assert [describe(shape.build()) for shape in SHAPES if is_plain(shape)] == [[]] * sum(map(is_plain, SHAPES))
