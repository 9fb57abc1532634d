"""audit beside what people use instead, for the same work, in one run. What is not installed is skipped, and said so.

    python bench/peers.py [--samples N] [--predictions N] [--rounds N]

`stages` keeps the exact output of every stage of every sample; `ask` finds the wrong predictions of one class.
CPU time of all processes, least of several rounds. TorchLens and nnsight record layers: `bench/training.py --only layers`
measures them beside `run.model`.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")

import numpy as np
import torch
from torchvision import datasets, transforms

sys.path.insert(0, str(Path(__file__).resolve().parent))
from overhead import measure
from own_loop import Loop, plain_loop, recorded_loop
from pictures import make_pictures

MEASURED_IF_INSTALLED = {"torchlens": "TorchLens", "nnsight": "nnsight", "mlflow": "MLflow", "datachain": "DataChain"}


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser()
    options.add_argument("--samples", type=int, default=240)
    options.add_argument("--predictions", type=int, default=100_000)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--only", choices=["stages", "ask"])
    options.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "audit-bench")
    given = options.parse_args()
    torch.set_num_threads(1)
    for module, name in MEASURED_IF_INSTALLED.items():
        if importlib.util.find_spec(module) is None:
            print(f"{name} is not installed here: skipped")
    given.dir.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=given.dir))
    try:
        if given.only != "ask":
            _compare("stages", given.rounds, _stages(given, work))
        if given.only != "stages":
            _compare("ask", given.rounds, _make_questions(given.predictions, work))
    finally:
        shutil.rmtree(work)


def _compare(title: str, rounds: int, ways: dict[str, Callable[[], Any]]) -> None:
    spent: dict[str, float] = {}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            cpu = measure(way)[1]
            if turn:
                spent[name] = min(cpu, spent.get(name, cpu))
    for name, cpu in spent.items():
        print(f"{title:7s} {name:32s} {cpu * 1000:9.1f} ms CPU", flush=True)


# -- the output of every stage ---------------------------------------------------------------------


def _stages(given: Any, work: Path) -> dict[str, Callable[[], Any]]:
    images = make_pictures(given.dir / f"pictures-{given.samples}", given.samples)
    loop = Loop("none", 0)
    ways: dict[str, Callable[[], Any]] = {"the loop alone": lambda: plain_loop(loop, images, None)}
    for level in ("digest", "preview", "full"):
        ways[f"audit, {level}"] = lambda level=level: _record_stages(loop, images, level, work)  # type: ignore[misc]
    ways["torch.save of every stage"] = lambda: _save_stages(images, work / "torch", _torch_save)
    ways["np.save of every stage"] = lambda: _save_stages(images, work / "numpy", _np_save)
    return ways


def _record_stages(loop: Loop, images: Path, level: str, work: Path) -> None:
    recorded_loop(loop, images, None, level, work)
    shutil.rmtree(work / "lineage")


def _save_stages(images: Path, folder: Path, save: Callable[[Any, Path], None]) -> None:
    folder.mkdir()
    steps: list[Any] = [transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor()]
    steps.append(transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    dataset = datasets.ImageFolder(str(images))
    for index in range(len(dataset)):
        value, _ = dataset[index]
        save(value, folder / f"{index}-0")
        for number, step in enumerate(steps, 1):
            value = step(value)
            save(value, folder / f"{index}-{number}")
    shutil.rmtree(folder)


def _torch_save(value: Any, path: Path) -> None:
    torch.save(value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value)), path)


def _np_save(value: Any, path: Path) -> None:
    np.save(path, np.asarray(value))


# -- the wrong predictions of one class --------------------------------------------------------------

QUESTION = "SELECT source, predicted FROM {table} WHERE NOT correct AND label = 2"


def _make_questions(count: int, work: Path) -> dict[str, Callable[[], Any]]:
    import duckdb
    import pandas

    import audit

    generator = np.random.default_rng(0)
    labels = generator.integers(0, 10, count)
    logits = generator.normal(size=(count, 10)).astype(np.float32)
    logits[np.arange(count), labels] += 3
    with audit.record(work / "lineage", capture="digest", strict=True) as run:
        for start in range(0, count, 5000):
            some = slice(start, start + 5000)
            run.log(
                indices=np.arange(count)[some].tolist(),
                logits=torch.from_numpy(logits[some]),
                labels=labels[some].tolist(),
            )
    predicted = logits.argmax(1)
    columns = {"label": labels, "predicted": predicted, "correct": labels == predicted}
    frame = pandas.DataFrame({"source": [f"dataset://{n}" for n in range(count)], **columns})
    frame.to_parquet(work / "table.parquet")
    with sqlite3.connect(work / "table.db") as database:
        frame.to_sql("predictions", database, index=False)
    ways = {
        "audit": lambda: audit.open(work / "lineage").sql(QUESTION.format(table="lineage")).fetchall(),
        "DuckDB on one Parquet file": lambda: duckdb.sql(
            QUESTION.format(table=f"'{work / 'table.parquet'}'")
        ).fetchall(),
        "pandas": lambda: _ask_pandas(work / "table.parquet"),
        "SQLite": lambda: sqlite3.connect(work / "table.db").execute(QUESTION.format(table="predictions")).fetchall(),
    }
    return ways | dict(_mlflow(frame, work)) | dict(_datachain(frame, work))


def _ask_pandas(path: Path) -> Any:
    import pandas

    frame = pandas.read_parquet(path)
    return frame[~frame["correct"] & (frame["label"] == 2)][["source", "predicted"]]


def _mlflow(frame: Any, work: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    if importlib.util.find_spec("mlflow") is None:
        return
    import mlflow

    mlflow.set_tracking_uri((work / "mlflow").as_uri())
    experiment = mlflow.create_experiment("bench", artifact_location=(work / "artifacts").as_uri())
    mlflow.set_experiment(experiment_id=experiment)
    with mlflow.start_run() as run:
        mlflow.log_table(frame, "table.json")

    def ask() -> Any:
        table = mlflow.load_table("table.json", run_ids=[run.info.run_id])
        return table[~table["correct"] & (table["label"] == 2)][["source", "predicted"]]

    yield "MLflow log_table", ask


def _datachain(frame: Any, work: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    if importlib.util.find_spec("datachain") is None:
        return
    os.environ["DATACHAIN_ROOT_DIR"] = str(work / "datachain")
    import datachain

    datachain.read_pandas(frame).save("bench")

    def ask() -> Any:
        wrong = datachain.C("correct") == False  # noqa: E712 (a condition in SQL)
        found = datachain.read_dataset("bench").filter(wrong, datachain.C("label") == 2)
        return found.select("source", "predicted").to_list()

    yield "DataChain", ask


if __name__ == "__main__":
    main()
