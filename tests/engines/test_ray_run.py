"""Ray and the local engine: the same rows, digest for digest, whoever makes them, and whoever dies meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_material import ray_nodes, rows_of, unlisted, write_material

import audit

pytest.importorskip("ray.data")
pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    with ray_nodes(2) as cluster:
        yield cluster


@pytest.mark.parametrize("actors", [1, 2, 3])
def test_rows_are_those_of_the_local_engine(
    nodes: Any, actors: int, pictures: Callable[..., Path], tmp_path: Path
) -> None:
    images, store = pictures(count=22), tmp_path / "lineage"
    (images / "class_1" / "img_004.png").write_bytes(b"no picture")
    pipeline, checkpoint = write_material(tmp_path)
    options: dict[str, Any] = {"pipeline": pipeline, "model": checkpoint, "store": store, "batch_size": 4, "seed": 7}
    local = audit.run(images, workers=0, name="local", **options)
    remote = audit.run(images, engine="ray", actors=actors, name="ray", **options)
    assert (remote.status, remote.samples, remote.failed) == ("complete", 22, 1)
    assert (remote.graded, remote.wrong, remote.accuracy) == (local.graded, local.wrong, local.accuracy)
    expected = rows_of(store, local.run_id)
    assert len(expected["samples"]) == 22
    assert len(expected["predictions"]) == 21
    assert rows_of(store, remote.run_id) == expected
    assert unlisted(store, remote.run_id) == []
    with audit.open(store) as opened:
        assert opened.verify() == []
        difference = opened.diff("local", "ray")
        assert (difference.matched, difference.first_divergent_stage, difference.regressions) == (22, {}, 0)
