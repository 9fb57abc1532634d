"""What ran is what is recorded: code that was edited is executed again, and its digests are those of the executed bytes."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import audit
from audit.engines.local import LocalRun, resume_locally
from audit.engines.plan import begin
from audit.engines.request import RunRequest
from audit.errors import UsageError
from audit.recorders.stages.describe import code_digest_of
from audit.usercode import load_module

PIPELINE = """
import torch
from helper_of_pipeline import factor

class Scale:
    def __call__(self, picture):
        return torch.full((2,), float(FACTOR * factor()))

mode = "keep"
FACTOR = 1
transform = [Scale()]
"""
HELPER = "def factor():\n    return VALUE\n\nVALUE = 1\n"
DATASET = """
import torch
from torch.utils.data import Dataset

class Constant(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return torch.full((2,), 1.0), index

def dataset():
    return Constant()
"""

Files = Callable[..., Path]


@pytest.fixture(autouse=True)
def _imports_are_put_back() -> Iterator[None]:
    modules, path = dict(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - set(modules):
        if "pipeline" in name or "helper" in name or "project" in name:
            del sys.modules[name]
    sys.path[:] = path


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Writes files of code. All get one time of change and, here, one length: what a cache goes by tells nothing."""

    def write(folder: str = "code", **texts: str) -> Path:
        place = tmp_path / folder
        for name, text in texts.items():
            file = place / f"{name.replace('__', '/')}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            os.utime(file, (1_000_000_000, 1_000_000_000))
        return place

    return write


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def values_of(store: Path, run: Any, stage: str = "Scale") -> set[float]:
    with audit.open(store) as opened:
        rows = opened.sql(f"SELECT mean FROM stage_outputs WHERE run_id = '{run.run_id}' AND name = '{stage}'")
        return {mean for (mean,) in rows.fetchall()}


def recorded_code(run: Any) -> dict[str, str]:
    return {one["module"]: one["sha256"] for one in run.recipe["code"]}


@pytest.mark.parametrize("workers", [0, 1])
def test_an_edited_pipeline_runs_as_edited(tmp_path: Path, pictures: Any, files: Files, workers: int) -> None:
    images, store = pictures(2), tmp_path / "lineage"
    for factor in ("FACTOR = 1", "FACTOR = 7", "FACTOR = 3", "FACTOR = 3"):
        place = files(pipeline_edited=PIPELINE.replace("FACTOR = 1", factor), helper_of_pipeline=HELPER)
        run = audit.run(images, pipeline=place / "pipeline_edited.py", store=store, workers=workers)
        assert values_of(store, run) == {float(factor[-1])}
        assert run.recipe["pipeline_sha256"] == sha256(place / "pipeline_edited.py")


@pytest.mark.parametrize("workers", [0, 1])
def test_edited_helpers_run_as_edited_and_are_recorded(
    tmp_path: Path, pictures: Any, files: Files, workers: int
) -> None:
    images, store = pictures(2), tmp_path / "lineage"
    helper = "def factor():\n    import helper_package\n    return helper_package.INNER\n"
    for inner in ("INNER = 1\n", "INNER = 4\n", "INNER = 2\n"):
        place = files(pipeline_helped=PIPELINE, helper_of_pipeline=helper)
        (place / "helper_package").mkdir(exist_ok=True)
        (place / "helper_package" / "__init__.py").write_text("from .inner import INNER\n")
        (place / "helper_package" / "inner.py").write_text(inner)
        run = audit.run(images, pipeline=place / "pipeline_helped.py", store=store, workers=workers)
        assert values_of(store, run) == {float(inner[8])}
        code = recorded_code(run)
        assert code == {
            "pipeline_helped": sha256(place / "pipeline_helped.py"),
            "helper_of_pipeline": sha256(place / "helper_of_pipeline.py"),
            "helper_package": sha256(place / "helper_package" / "__init__.py"),
            "helper_package.inner": sha256(place / "helper_package" / "inner.py"),
        }


@pytest.mark.usefixtures("warm_spawn")
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_an_edit_after_loading_reaches_no_worker(
    tmp_path: Path, pictures: Any, files: Files, start_method: str
) -> None:
    images, store = pictures(2), tmp_path / "lineage"
    lazy = PIPELINE.replace("from helper_of_pipeline import factor\n", "").replace(
        "        return", "        from helper_of_pipeline import factor\n        return"
    )
    place = files(pipeline_racing=lazy, helper_of_pipeline=HELPER)
    digests = {name: sha256(place / f"{name}.py") for name in ("pipeline_racing", "helper_of_pipeline")}
    request = RunRequest(
        str(images), str(store), pipeline=str(place / "pipeline_racing.py"), workers=1, start_method=start_method
    )
    run = LocalRun(begin(request))
    files(pipeline_racing=lazy.replace("FACTOR = 1", "FACTOR = 9"), helper_of_pipeline=HELPER.replace("E = 1", "E = 9"))
    recorded = run.execute()
    assert values_of(store, recorded) == {1.0}
    assert recorded_code(recorded) == digests


def test_a_stage_is_described_by_the_code_that_runs(files: Files) -> None:
    place = files(pipeline_described=PIPELINE, helper_of_pipeline=HELPER)
    module: Any = load_module(str(place / "pipeline_described.py"))
    files(pipeline_described=PIPELINE.replace("(2,)", "(3,)"))
    text = PIPELINE[PIPELINE.index("class Scale") : PIPELINE.index("\nmode")]
    assert code_digest_of(module.Scale()) == hashlib.sha256(text.encode()).hexdigest()[:32]
    edited: Any = load_module(str(place / "pipeline_described.py"))
    text = text.replace("(2,)", "(3,)")
    assert code_digest_of(edited.Scale()) == hashlib.sha256(text.encode()).hexdigest()[:32]


@pytest.mark.usefixtures("warm_spawn")
def test_two_projects_with_files_of_one_name(tmp_path: Path, pictures: Any, files: Files) -> None:
    images, store = pictures(2), tmp_path / "lineage"
    for number, name in ((2, "a"), (5, "b")):
        helper = HELPER.replace("VALUE = 1", f"VALUE = {number}")
        place = files(name, pipeline_twin=PIPELINE, helper_of_pipeline=helper)
        run = audit.run(images, pipeline=place / "pipeline_twin.py", store=store, workers=1, start_method="spawn")
        assert values_of(store, run) == {float(number)}
        assert recorded_code(run)["helper_of_pipeline"] == sha256(place / "helper_of_pipeline.py")


def test_an_edited_dataset_file(tmp_path: Path, files: Files) -> None:
    store = tmp_path / "lineage"
    for value in ("1.0", "6.0"):
        place = files(project_data=DATASET.replace("1.0", value))
        run = audit.run(f"{place / 'project_data.py'}:dataset", store=store, workers=0)
        assert values_of(store, run, "load") == {float(value)}
        assert recorded_code(run) == {"project_data": sha256(place / "project_data.py")}


def test_edited_modules_named_for_dataset_and_model(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "lineage"
    model = "import torch\nfrom torch import nn\n\nclass Fixed(nn.Module):\n    def forward(self, x):\n        return x * 1.0\n\ndef model():\n    return Fixed()\n"
    for value in ("1.0", "6.0"):
        place = files(project_named__data=DATASET.replace("1.0", value), project_model=model.replace("1.0", value))
        (place / "project_named" / "__init__.py").write_text("")
        monkeypatch.chdir(place)
        run = audit.run("project_named.data:dataset", model="project_model:model", store=store, workers=0)
        assert values_of(store, run, "load") == {float(value)}
        with audit.open(store) as opened:
            logits = opened.sql(f"SELECT logits[1] FROM predictions WHERE run_id = '{run.run_id}'").fetchall()
        assert set(logits) == {(float(value) ** 2,)}
        assert set(recorded_code(run)) == {"project_named", "project_named.data", "project_model"}
        assert recorded_code(run)["project_model"] == sha256(place / "project_model.py")


def test_replay_and_check_see_an_edited_helper(tmp_path: Path, pictures: Any, files: Files) -> None:
    images, store = pictures(2), tmp_path / "lineage"
    place = files(pipeline_checked=PIPELINE, helper_of_pipeline=HELPER)
    pipeline = place / "pipeline_checked.py"
    audit.run(images, pipeline=pipeline, store=store, name="before", workers=0)
    files(helper_of_pipeline=HELPER.replace("VALUE = 1", "VALUE = 8"))
    with audit.open(store) as opened:
        replayed = opened.replay("before")
        assert {one.reason for one in replayed.different} == {"code changed"}
        assert all("helper_of_pipeline.py" in one.detail for one in replayed.different)
    audit.run(images, pipeline=pipeline, store=store, name="after", workers=0)
    with audit.open(store) as opened:
        (result,) = opened.check("after", baseline="before", only=["pipeline_changed"]).outcomes
        assert result.status == "fail"
        assert ["helper_of_pipeline" in finding.message for finding in result.findings] == [True]


def test_resuming_refuses_an_edited_helper(tmp_path: Path, pictures: Any, files: Files) -> None:
    images, store = pictures(2), tmp_path / "lineage"
    place = files(pipeline_resumed=PIPELINE, helper_of_pipeline=HELPER)
    request = RunRequest(str(images), str(store), pipeline=str(place / "pipeline_resumed.py"), workers=0)
    begin(request).writer.finish("interrupted")
    files(helper_of_pipeline=HELPER.replace("VALUE = 1", "VALUE = 8"))
    with pytest.raises(UsageError, match=r"helper_of_pipeline\.py has changed"):
        resume_locally(str(store), None)


def test_a_reload_by_the_user_reads_the_disk(tmp_path: Path, pictures: Any, files: Files) -> None:
    place = files(pipeline_reloaded=PIPELINE, helper_of_pipeline=HELPER)
    audit.run(pictures(2), pipeline=place / "pipeline_reloaded.py", store=tmp_path / "lineage", workers=0)
    module = sys.modules["helper_of_pipeline"]
    (place / "helper_of_pipeline.py").write_text(HELPER.replace("VALUE = 1", "VALUE = 10"))
    assert importlib.reload(module).factor() == 10
    del sys.modules["helper_of_pipeline"]
    (place / "helper_of_pipeline.py").write_text(HELPER.replace("VALUE = 1", "VALUE = 111"))
    importlib.invalidate_caches()
    assert importlib.import_module("helper_of_pipeline").factor() == 111


def test_a_builder_that_was_edited_after_its_import_has_no_digest(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = files(project_builder=DATASET)
    monkeypatch.syspath_prepend(place)
    file = place / "project_builder.py"
    file.write_text(DATASET)  # written after this process began
    module: Any = importlib.import_module("project_builder")
    recipes = []
    for text in (DATASET, DATASET.replace("1.0", "2.0")):
        file.write_text(text)
        with audit.record(tmp_path / "lineage") as run:
            list(run.loader(DataLoader(module.dataset()), builder=module.dataset))
        with audit.open(tmp_path / "lineage") as opened:
            recipes.append(opened.runs()[-1].recipe["builders"][0]["sha256"])
    assert recipes == [hashlib.sha256(DATASET.encode()).hexdigest(), None]
