"""A run that fails says so: its status, its exit code, the errors grouped, and what to do next."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from torch.utils.data import DataLoader, Dataset

import audit
from audit.cli.main import cli
from audit.errors import UsageError

ODD_FAILS = """
def check(picture):
    number = int(np.asarray(picture)[0, 0, 0])
    if {condition}:
        raise ValueError(f"pixel {{number}} of {{picture}} is not allowed")
    return picture
transform = [check, v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
"""


def invoke(*arguments: str | Path | int) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_without_a_good_sample_has_failed(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path, workers: int
) -> None:
    images, store = pictures(), tmp_path / "lineage"
    pipeline = write_pipeline(ODD_FAILS.format(condition="True"))
    options: list[str | Path | int] = ["--pipeline", pipeline, "--store", store, "--workers", workers]
    done = invoke("run", "--dataset", images, *options)
    assert done.exit_code == 1
    assert "failed" in done.stdout
    # Twelve samples, one kind of error: one group, with the count and the first sample.
    assert "12 × at check  ValueError: pixel" in done.stdout
    assert "first: sample 0, class_0/img_000.png" in done.stdout
    with audit.open(store) as opened:
        (run,) = opened.runs()
    assert (run.status, run.samples, run.failed) == ("failed", 12, 12)
    assert run.warnings == ["Every sample failed, so the run counts as failed."]
    assert f"audit sql 'FROM failures' --run {run.run_id}" in done.stdout
    assert "Fix the pipeline, or pass another --pipeline" in done.stdout


def test_json_names_the_errors_and_max_failures_judges(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    images, store = pictures(), tmp_path / "lineage"
    pipeline = write_pipeline(ODD_FAILS.format(condition="number % 2"))
    options: list[str | Path | int] = ["--pipeline", pipeline, "--store", store, "--workers", 0, "--json"]
    lenient = invoke("run", "--dataset", images, *options)
    assert lenient.exit_code == 0
    summary = json.loads(lenient.stdout)
    failed = summary["failed"]
    assert 0 < failed < 12
    assert summary["status"] == "complete"
    (group,) = summary["errors"]
    assert (group["count"], group["stage"]) == (failed, "check")
    assert group["error"].startswith("ValueError: pixel")
    assert group["source"].endswith(".png")
    for limit, code in ((failed, 0), (failed - 1, 1), (0, 1), ("100%", 0), ("0.5%", 1)):
        judged = invoke("run", "--dataset", images, *options, "--max-failures", limit)
        summary = json.loads(judged.stdout)
        assert (judged.exit_code, summary["status"]) == (code, "failed" if code else "complete"), limit
        assert summary["samples"] == 12
        reported = f"{failed} of 12 samples failed, and max_failures is {limit}."
        assert (reported in summary["warnings"]) == bool(code)
    for nonsense in ("-1", "many", "101%", "1.5", "%"):
        refused = invoke("run", "--dataset", images, *options, "--max-failures", nonsense)
        assert refused.exit_code == 2, nonsense
        assert "max_failures" in refused.stderr


def test_max_failures_is_an_option_of_the_library_too(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    pipeline = write_pipeline(ODD_FAILS.format(condition="number % 2"))
    options: dict[str, Any] = {"pipeline": pipeline, "store": tmp_path / "lineage", "workers": 0}
    assert audit.run(pictures(), max_failures=0, **options).status == "failed"
    assert audit.run(pictures(), max_failures="90%", **options).status == "complete"
    with pytest.raises(UsageError, match="max_failures cannot be 'some'"):
        audit.run(pictures(), max_failures="some", **options)


class Broken(Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        raise OSError(f"sample {index} is not there")


def test_an_own_loop_without_a_good_sample_has_failed(tmp_path: Path) -> None:
    """The loop goes on after each error, as its author wrote it; the recording ends as failed and says so."""
    store = tmp_path / "lineage"
    run = audit.record(store)
    dataset = run.dataset(Broken())
    for index in range(4):
        with pytest.raises(OSError, match="is not there"):
            dataset[index]
    with pytest.warns(audit.RecordingWarning, match="Every sample failed"):
        run.close()
    with audit.open(store) as opened:
        (row,) = opened.runs()
    assert (row.status, row.samples, row.failed) == ("failed", 4, 4)


def test_an_own_loop_with_good_samples_is_complete(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with audit.record(tmp_path / "lineage") as run:
            list(run.loader(DataLoader([1.0, 2.0], batch_size=2)))
    assert run.run.status == "complete"
