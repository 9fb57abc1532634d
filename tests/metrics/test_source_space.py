"""The size of the picture in a stage's output, as far as it was recorded."""

from __future__ import annotations

from typing import Any

import pytest

from audit.metrics.source_space import output_size


@pytest.mark.parametrize(
    ("output", "size"),
    [
        ({"kind": "image", "shape": [24, 18, 3]}, (24, 18)),
        ({"kind": "tensor", "shape": [3, 24, 18]}, (24, 18)),
        ({"kind": "tensor", "shape": [7, 24, 18]}, None),
        ({"kind": "number", "shape": []}, None),
        ({"kind": "image", "shape": None}, None),
        ({"kind": "tensor", "shape": None, "target": None}, None),
        ({"kind": "sequence", "shape": None, "target": '{"height": 24, "width": 18}'}, (24, 18)),
    ],
)
def test_a_size_is_known_only_where_it_was_recorded(output: dict[str, Any], size: tuple[int, int] | None) -> None:
    assert output_size(output) == size
