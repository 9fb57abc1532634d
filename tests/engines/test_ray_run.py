"""Ray and the local engine: the same rows, digest for digest, whoever makes them, and whoever dies meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from ray_material import ray_nodes, rows_of, unlisted, write_material

import audit
from audit.engines.request import Progress

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


def test_a_node_is_killed_in_the_middle(nodes: Any, pictures: Callable[..., Path], tmp_path: Path) -> None:
    images, store = pictures(count=60), tmp_path / "lineage"
    pipeline, checkpoint = write_material(tmp_path, pause=0.02)
    options: dict[str, Any] = {"pipeline": pipeline, "model": checkpoint, "store": store, "batch_size": 2}
    local = audit.run(images, workers=0, **options)
    lost = nodes.add_node(num_cpus=1, object_store_memory=100 * 2**20)
    killed: list[int] = []

    def progress(now: Progress) -> None:
        if not killed and now.done >= 6:
            killed.append(now.done)
            nodes.remove_node(lost, allow_graceful=False)

    remote = audit.run(images, engine="ray", actors=2, progress=progress, **options)
    assert killed
    assert killed[0] < 60
    assert (remote.status, remote.samples) == ("complete", 60)
    assert rows_of(store, remote.run_id) == rows_of(store, local.run_id)
    assert unlisted(store, remote.run_id) == []


def test_recorders_and_models_are_killed(nodes: Any, pictures: Callable[..., Path], tmp_path: Path) -> None:
    images, store, present = pictures(count=40), tmp_path / "lineage", tmp_path / "present"
    present.mkdir()
    pipeline, checkpoint = write_material(tmp_path, pause=0.02, pids=present)
    options: dict[str, Any] = {"pipeline": pipeline, "model": checkpoint, "store": store, "batch_size": 2}
    local = audit.run(images, workers=0, **options)
    for left in present.iterdir():
        left.unlink()
    killed: list[str] = []

    def progress(now: Progress) -> None:
        for role in ("recorder", "model") if not killed and now.done < 40 else ():
            one = next(present.glob(f"{role}-*"))
            os.kill(int(one.name.partition("-")[2]), signal.SIGKILL)
            killed.append(role)

    remote = audit.run(images, engine="ray", actors=1, progress=progress, **options)
    assert killed == ["recorder", "model"]
    assert (remote.status, remote.samples) == ("complete", 40)
    assert rows_of(store, remote.run_id) == rows_of(store, local.run_id)
    assert unlisted(store, remote.run_id) == []


def test_a_sample_that_kills_its_worker_is_a_failed_row(
    nodes: Any, pictures: Callable[..., Path], tmp_path: Path
) -> None:
    images, store = pictures(count=9), tmp_path / "lineage"
    trap = images / "class_2" / "img_005.png"
    colour = (255, 0, 254)
    with Image.open(trap) as picture:
        picture.putpixel((0, 0), colour)
        picture.save(trap)
    pipeline, _ = write_material(tmp_path, trap=colour)
    done = audit.run(images, engine="ray", pipeline=pipeline, store=store, batch_size=3, capture="digest")
    assert (done.status, done.samples, done.failed) == ("complete", 9, 1)
    with audit.open(store) as opened:
        assert opened.sql("SELECT source, failed_stage FROM failures").fetchall() == [("class_2/img_005.png", "worker")]
        assert opened.sql(
            "SELECT count(DISTINCT index), count(DISTINCT (batch, position)) FROM samples"
        ).fetchone() == (
            9,
            9,
        )
