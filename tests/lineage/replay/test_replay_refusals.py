"""A replay that cannot say yes says so: nothing is passed over in silence, and every error tells what to do next."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from places import CHECKPOINT, DIGITS, PIPELINE
from torch.utils.data import DataLoader, Dataset

import audit
from audit.cli.main import cli
from audit.errors import AuditError, UsageError


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("refusals") / "lineage"
    audit.run(DIGITS, pipeline=PIPELINE, store=store, workers=0, limit=3, name="bare", capture="digest")
    return store


@pytest.mark.workers
@pytest.mark.parametrize("workers", [0, 1])
def test_a_stage_that_exits_fails_its_sample_and_not_the_replay(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path, workers: int
) -> None:
    """With code 0 it would have looked as if everything were identical."""
    pipeline = write_pipeline(
        "import sys\ndef leaves(value):\n    if value[0, 0, 0] > 0.5: sys.exit(0)\n    return value\n"
        "transform = [transforms.ToTensor(), leaves]"
    )
    store = tmp_path / "lineage"
    audit.run(pictures(count=6), pipeline=pipeline, store=store, workers=0)
    done = invoke("replay", "--json", "--workers", workers, "--store", store)
    found = json.loads(done.stdout)
    assert (done.exit_code, found["checked"], found["identical"]) == (0, 6, 6)
    with audit.open(store) as opened:
        assert opened.sql("SELECT DISTINCT error FROM failures").fetchall() == [("SystemExit: 0",)]


class Unsteady(Dataset):  # type: ignore[type-arg]
    """Never gives the same twice."""

    given = 0

    def __len__(self) -> int:
        return 1010

    def __getitem__(self, index: int) -> torch.Tensor:
        Unsteady.given += 1
        return torch.tensor([index, Unsteady.given])


@pytest.mark.slow
def test_how_many_differ_is_reported_whole_though_only_the_first_are_listed(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage", capture="digest") as run:
        for _ in run.loader(DataLoader(Unsteady(), batch_size=101), builder=Unsteady):
            pass
    done = invoke("replay", "--workers", 0, "--store", tmp_path / "lineage")
    assert "0 of 1,010 visits identical" in done.stdout
    assert "and 990 more (--json lists the first 1,000)" in done.stdout


def test_logits_that_were_not_recorded_do_not_agree(digits: Path) -> None:
    done = invoke("replay", "bare", "--model", CHECKPOINT, "--store", digits)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "no predictions" in done.stderr


def test_an_index_after_model_is_no_checkpoint(digits: Path) -> None:
    done = invoke("replay", "bare", "--model", "2", "--store", digits)
    assert (done.exit_code, "before --model" in done.stderr) == (2, True)


def test_what_the_run_was_made_of_is_gone_or_has_moved(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    images, pipeline = (
        pictures(count=4),
        write_pipeline("transform = [transforms.RandomCrop(9), transforms.ToTensor()]"),
    )
    store = tmp_path / "lineage"
    audit.run(images, pipeline=pipeline, store=store, workers=0)
    moved = tmp_path / "moved"
    images.rename(moved)
    with audit.open(store) as opened:
        with pytest.raises(AuditError, match="There is no") as refused:
            opened.replay()
        assert "--dataset" in str(refused.value.hint)
        # The folder's new name stands in for the old one; the pipeline is still the run's own.
        assert opened.replay(dataset=str(moved), workers=0).identical == 4
        assert invoke("replay", "--dataset", moved, "--workers", 0, "--store", store).exit_code == 0
        pipeline.rename(tmp_path / "elsewhere.py")
        with pytest.raises(AuditError, match="no pipeline file") as refused:
            opened.replay(dataset=str(moved))
        assert "Put it back" in str(refused.value.hint)


def test_a_damaged_part_is_named_in_one_sentence(digits: Path, tmp_path: Path) -> None:
    store = tmp_path / "damaged"
    shutil.copytree(digits, store)
    next((store / "runs").glob("*/stage_outputs/*.parquet")).unlink()
    for command in (("replay", "bare"), ("diff", "bare", "bare")):
        done = invoke(*command, "--store", store)
        assert (done.exit_code, done.stdout) == (1, ""), command
        assert "parquet is missing." in done.stderr
        assert "Traceback" not in done.stderr


def test_sql_of_a_run_that_is_not_there_is_an_error(digits: Path) -> None:
    with audit.open(digits) as store:
        for query in (
            "FROM flips('bare', 'typo')",
            "FROM flips('typo', 'bare')",
            "FROM matches('latest~7', 'bare')",
        ):
            with pytest.raises(AuditError, match=r"There is no run '(typo|latest~7)'"):
                store.sql(query).fetchall()
        assert store.sql("SELECT count(*) FROM flips('bare', 'latest')").fetchall() == [(0,)]


def test_a_split_that_was_not_recorded_is_refused(digits: Path) -> None:
    with audit.open(digits) as store:
        with pytest.raises(UsageError, match="split 'other'"):
            store.replay(dataset={"other": Unsteady()})
        with pytest.raises(UsageError, match="mapping of datasets is empty"):
            store.replay(dataset={})


def test_a_run_without_samples_is_not_identical(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage", name="empty") as run:
        run.loader(DataLoader(Unsteady()), builder=Unsteady)
    done = invoke("replay", "empty", "--store", tmp_path / "lineage")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "has no samples" in done.stderr
