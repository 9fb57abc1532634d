"""Mistakes that new users make: each message says what happened, where, and what to do next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from places import CHECKPOINT, DIGITS, PIPELINE
from torchvision.models import shufflenet_v2_x0_5

import audit
from audit.cli.main import cli
from audit.engines.resilient_loader import ResilientLoader
from audit.errors import UsageError

FLAT = """
from torch import nn
transform = [v2.Resize((8, 8)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
def model():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
def other():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
"""


def invoke(*arguments: str | Path | int) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("mistakes") / "lineage"
    audit.run(DIGITS, model=CHECKPOINT, pipeline=PIPELINE, store=place, workers=0, limit=20, name="only")
    return place


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.save(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3)).state_dict(), tmp_path / "head.pt")
    return tmp_path / "head.pt"


def test_an_architecture_without_a_model_is_refused(tmp_path: Path) -> None:
    done = invoke("run", DIGITS, "--pipeline", PIPELINE, "--arch", "resnet18", "--store", tmp_path / "lineage")
    assert done.exit_code == 2, done.output
    assert "--arch resnet18 names the architecture of a model, but no model was given." in done.stderr
    assert "Pass --model FILE, or omit --arch." in done.stderr


def test_the_architecture_that_is_passed_is_the_one_that_is_used(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], weights: Path, tmp_path: Path
) -> None:
    pipeline, store = write_pipeline(FLAT), tmp_path / "lineage"
    words = ["run", pictures(classes=3), "--model", weights, "--pipeline", pipeline, "--store", store, "--workers", 0]
    assert invoke(*words).exit_code == 0
    done = invoke(*words, "--arch", f"{pipeline}:other")
    assert done.exit_code == 1, "model() of the pipeline was used instead"
    assert "do not fit" in done.stderr


def test_a_manifest_whose_labels_have_another_name_says_so(pictures: Callable[..., Path], tmp_path: Path) -> None:
    files = sorted(pictures(classes=2).rglob("*.png"))
    manifest = tmp_path / "list.csv"
    manifest.write_text("file,kategorie\n" + "".join(f"{path},{path.parent.name}\n" for path in files))
    done = invoke("run", manifest, "--store", tmp_path / "lineage", "--workers", 0)
    assert done.exit_code == 0, done.output
    assert "has no column of labels, so its samples are unlabelled. It has other columns: kategorie." in done.stderr
    assert "is called label, class," in done.stderr
    manifest.write_text("path\n" + "".join(f"{path}\n" for path in files))
    assert "no column of labels" not in invoke("run", manifest, "--store", tmp_path / "lineage", "--workers", 0).stderr


def test_the_folder_of_one_class_says_that_it_has_no_labels(pictures: Callable[..., Path], tmp_path: Path) -> None:
    one = pictures(classes=3) / "class_0"
    words = ["run", one, "--store", tmp_path / "lineage", "--workers", 0, "--limit", 1]
    assert "no class folders" not in invoke(*words).stderr, "without a model, labels may not matter"
    torch.save(shufflenet_v2_x0_5(num_classes=3).state_dict(), tmp_path / "model.pt")
    done = invoke(*words, "--model", tmp_path / "model.pt")
    assert done.exit_code == 0, done.output
    assert "has no class folders: its samples have no labels, and accuracy is not computed." in done.stderr
    assert "pass the folder above it" in done.stderr


def test_texts_instead_of_pictures(write_pipeline: Callable[..., Path], tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "texts" / name).mkdir(parents=True)
        (tmp_path / "texts" / name / "1.txt").write_text("a review")
    pipeline = write_pipeline("transform = [transforms.Resize((8, 8)), transforms.ToTensor()]")
    words = ["--pipeline", pipeline, "--store", tmp_path / "lineage", "--workers", 0]
    done = invoke("run", tmp_path / "texts", *words)
    assert done.exit_code == 1
    assert "Every sample was loaded as text, and failed at" in done.stdout
    assert "If you meant pictures, check the value of --dataset." in done.stdout


def test_paths_that_are_not_relative_to_the_manifest(pictures: Callable[..., Path], tmp_path: Path) -> None:
    files = sorted(pictures(classes=2).rglob("*.png"))
    (tmp_path / "list.csv").write_text("path,label\n" + "".join(f"{path.name},0\n" for path in files))
    done = invoke("run", tmp_path / "list.csv", "--store", tmp_path / "lineage", "--workers", 0)
    assert done.exit_code == 1
    assert "list.csv are relative to its folder." in done.stdout


def test_no_more_workers_are_started_than_there_are_batches() -> None:
    loader = ResilientLoader([0], lost=lambda key: key, workers=99)
    assert (loader.worker_count(1), loader.worker_count(120)) == (1, 99)
    assert ResilientLoader([0], lost=lambda key: key, workers=0).worker_count(5) == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["trace", 3, "--run", "only"], 2, "Pass the run as an argument: cli trace [RUN] INDEX|SOURCE"),
        (["check", "--run", "only"], 2, "Pass the run as an argument: cli check [RUN]"),
        (["diff", "--run", "only"], 2, "Pass the run as an argument: cli diff [A] [B]"),
        (["diff", "only"], 2, "only is the newest run"),
        (["sql", "SELEC 1"], 1, "See the tables and views with: audit sql 'SHOW TABLES'"),
        (["select", "only", "--where", "confidence > ", "-o", "a.csv"], 1, "It is incomplete: confidence >"),
        (["select", "only", "--where", "indx = 1", "-o", "a.csv"], 1, "LINE 1: indx = 1\n        ^^^^"),
        (["tag", "only", "odd", "--where", "true AND\nindx = 1"], 1, "LINE 2: indx = 1\n        ^^^^"),
        (["tag", "only", "odd", "--where", "indx = 1"], 1, "See the columns with: audit sql 'DESCRIBE lineage'"),
        (["runs", "--where", "nam = 'x'"], 1, "See the columns with: audit sql 'DESCRIBE runs'"),
        (["export", "only", "--to", "fiftyone", "--where", "indx = 1", "-o", "out"], 1, "LINE 1: indx = 1"),
    ],
)
def test_words_that_do_not_fit(
    store: Path, words: list[str | int], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = invoke(*words, "--store", store)
    assert done.exit_code == code, done.output
    assert said in done.stderr


def test_the_queries_that_hints_name_work(store: Path) -> None:
    for query in ("SHOW TABLES", "DESCRIBE lineage", "DESCRIBE runs"):
        assert invoke("sql", query, "--store", store).exit_code == 0


def test_a_trace_is_not_written_among_other_files(store: Path, tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").touch()
    done = invoke("trace", 3, "--export", tmp_path, "--store", store)
    assert done.exit_code == 2, done.output
    assert "is not empty, and is not an earlier export." in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]
    with audit.open(store) as opened:
        for _ in range(2):
            assert (tmp_path / "new" / "trace.json") in opened.trace(index=3).export(tmp_path / "new")
        with pytest.raises(UsageError, match="not an earlier export"):
            opened.trace(index=3).export(tmp_path)
