"""Observing changes nothing: a recorded loop and a plain one leave the same bits behind."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from examples import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from observing_material import DATASETS, SAMPLERS, Case, Outcome, difference, run_loop
from PIL import Image

import audit

pytestmark = pytest.mark.workers


@pytest.fixture(scope="module")
def pictures_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("observing")
    for number in range(22):
        folder = root / f"class_{number % 3}"
        folder.mkdir(exist_ok=True)
        data = np.random.default_rng(number).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(data).save(folder / f"{number:02d}.png")
    return root


def check_unchanged(case: Case, root: Path) -> None:
    """The same loop plain and recorded, from the same seeds; then what was recorded hangs together."""
    plain = run_loop(case, root, None)
    store = Path(tempfile.mkdtemp())
    try:
        recorded = run_loop(case, root, store)
        for part in fields(Outcome):
            found = difference(getattr(plain, part.name), getattr(recorded, part.name), part.name)
            assert found is None, f"{case}: {found}"
        check_whole(store, sum(len(losses) > 0 for losses in plain.gradients) > 0)
    finally:
        shutil.rmtree(store)


def check_whole(store: Path, trained: bool) -> None:
    """Exactly one row where there must be one."""
    with audit.open(store) as lineage:
        run = lineage.run()
        assert run.status == "complete"
        twice = "SELECT count(*) FROM (SELECT epoch, index, visit FROM {0} GROUP BY ALL HAVING count(*) > 1)"
        for table in ("samples", "predictions"):
            assert lineage.sql(twice.format(table)).fetchone() == (0,), table
        orphans = "SELECT count(*) FROM {0} ANTI JOIN samples USING (run_id, epoch, index, visit)"
        for table in ("predictions", "stage_outputs", "payloads", "rng"):
            assert lineage.sql(orphans.format(table)).fetchone() == (0,), table
        other = """
            WITH lasts AS (SELECT epoch, index, visit, arg_max(digest, stage) AS digest FROM stage_outputs GROUP BY ALL)
            SELECT count(*) FROM predictions JOIN lasts USING (epoch, index, visit) WHERE input_digest <> digest
        """
        assert lineage.sql(other).fetchone() == (0,), lineage.sql("FROM stages").fetchall()
        if trained:
            predictions, steps = lineage.sql("SELECT count(*), count(DISTINCT step) FROM predictions").fetchone() or (
                0,
                0,
            )
            assert predictions > 0
            assert steps > 0


@st.composite
def cases(draw: st.DrawFn) -> Case:
    return Case(
        dataset=draw(st.sampled_from(DATASETS)),
        sampler=draw(st.sampled_from(SAMPLERS)),
        batch_size=draw(st.integers(1, 9)),
        drop_last=draw(st.booleans()),
        collate=draw(st.booleans()),
        pin_memory=draw(st.booleans()),
        seed=draw(st.integers(0, 2**31)),
        capture=draw(st.sampled_from(["digest", "preview", "full", "auto"])),
        layers=draw(st.booleans()),
        wrap=draw(st.sampled_from(["loader", "dataset"])),
    )


@pytest.mark.parametrize("wrap", ["loader", "dataset"])
@pytest.mark.parametrize("dataset", DATASETS)
def test_every_dataset(dataset: str, wrap: str, pictures_root: Path) -> None:
    check_unchanged(Case(dataset=dataset, wrap=wrap), pictures_root)


@settings(max_examples=examples(8))
@given(cases())
@example(Case(dataset="stream", drop_last=True, batch_size=4))
@example(Case(dataset="batched", wrap="dataset", sampler="weighted"))
@example(Case(dataset="folder", sampler="weighted", batch_size=3, wrap="dataset"))
def test_any_loop_in_one_process(pictures_root: Path, case: Case) -> None:
    check_unchanged(case, pictures_root)


@pytest.mark.parametrize(
    "case",
    [
        Case(workers=2, sampler="weighted"),
        Case(workers=2, persistent=True, prefetch=3, dataset="folder"),
        Case(workers=1, persistent=True, dataset="stream", init=True, drop_last=True),
        Case(workers=2, dataset="stream", init=True, collate=True),
        Case(workers=2, dataset="named", wrap="dataset", pin_memory=True, sampler="generator"),
        Case(workers=2, dataset="stream", wrap="dataset"),
        Case(workers=1, dataset="dict", sampler="batch_sampler", capture="preview"),
        Case(workers=2, dataset="concat", wrap="dataset", persistent=True, sampler="weighted"),
        Case(workers=2, dataset="hf", sampler="none"),
    ],
    ids=str,
)
def test_workers(case: Case, pictures_root: Path) -> None:
    check_unchanged(case, pictures_root)


@pytest.mark.parametrize(("method", "wrap"), [("spawn", "loader"), ("forkserver", "dataset")])
def test_start_methods(method: str, wrap: str, pictures_root: Path) -> None:
    check_unchanged(Case(workers=1, method=method, wrap=wrap, dataset="tuple", persistent=True), pictures_root)
