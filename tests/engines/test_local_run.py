"""`audit run` against an independent plain PyTorch loop: every label, logit and stage tensor."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from places import CHECKPOINT, DIGITS, PIPELINE
from torchvision import datasets, transforms

import audit
from audit import values

AUGMENTED = """
transform = transforms.Compose([
    transforms.RandomResizedCrop(16, antialias=True),
    transforms.RandomHorizontalFlip(),
    transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.5),
    transforms.ToTensor(),
])
"""


def stage_rows(store: audit.Store) -> dict[tuple[int, int], dict[str, Any]]:
    return {(row["index"], row["stage"]): row for row in store.sql("FROM stage_outputs").dicts()}


@pytest.mark.usefixtures("warm_spawn")
@pytest.mark.workers
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_digits_equal_a_plain_loop(tmp_path: Path, workers: int, start_method: str) -> None:
    if workers == 0 and start_method == "spawn":
        pytest.skip("no worker is started")
    recorded = audit.run(
        DIGITS,
        model=CHECKPOINT,
        pipeline=PIPELINE,
        store=tmp_path / "lineage",
        workers=workers,
        start_method=start_method,
        limit=70,
    )
    assert (recorded.status, recorded.samples, recorded.failed) == ("complete", 70, 0)

    import sys

    sys.path.insert(0, str(PIPELINE.parent))
    import digits

    network = digits.model()
    network.load_state_dict(torch.load(CHECKPOINT, weights_only=True)["state_dict"])
    network.eval()
    folder = datasets.ImageFolder(str(DIGITS), loader=Image.open)
    with audit.open(tmp_path / "lineage") as store:
        rows = stage_rows(store)
        predictions = {row["index"]: row for row in store.sql("FROM predictions").dicts()}
        samples = {row["index"]: row for row in store.sql("FROM samples").dicts()}
        assert len(rows) == 70 * 6
        assert len(predictions) == len(samples) == 70
        for index in range(70):
            value, label = folder[index]
            path, _ = folder.samples[index]
            assert samples[index]["source"] == str(Path(path).relative_to(DIGITS))
            assert samples[index]["label"] == label
            value.load()
            # Every digest, and the exact values of one sample in four: to look each up takes most of the time.
            trace = store.trace(index=index) if index % 4 == 0 else None
            for stage, transform in enumerate([None, *digits.transform.transforms]):
                value = transform(value) if transform else value
                assert rows[index, stage]["digest"] == values.digest(value)
                if trace is None:
                    continue
                stored = trace.value(stage)
                if isinstance(value, torch.Tensor):
                    assert type(stored) is type(value)
                    assert torch.equal(stored, value)
                else:
                    assert np.array_equal(np.asarray(stored), np.asarray(value))
            with torch.inference_mode():
                logits = network(value[None])[0]
            row = predictions[index]
            assert np.allclose(row["logits"], logits.numpy(), atol=1e-5)
            assert np.allclose(row["probabilities"], logits.softmax(0).numpy(), atol=1e-5)
            assert row["predicted"] == int(logits.argmax())
            assert row["correct"] == (int(logits.argmax()) == label)
            assert row["input_digest"] == rows[index, 5]["digest"]
            expected = torch.nn.functional.cross_entropy(logits[None], torch.tensor([label]))
            assert row["loss"] == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.workers
def test_the_rows_do_not_depend_on_workers_or_batch_size(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    images, pipeline = pictures(count=20), write_pipeline(AUGMENTED)
    digests = []
    for number, (workers, batch_size) in enumerate([(0, 20), (1, 3), (2, 7)]):
        audit.run(
            images,
            pipeline=pipeline,
            store=tmp_path / f"lineage{number}",
            workers=workers,
            batch_size=batch_size,
            seed=5,
        )
        with audit.open(tmp_path / f"lineage{number}") as store:
            digests.append(store.sql("SELECT index, stage, digest, params FROM stage_outputs ORDER BY ALL").fetchall())
    assert digests[0] == digests[1] == digests[2]
    changed = {row[2] for row in digests[0]}
    audit.run(images, pipeline=pipeline, store=tmp_path / "lineage3", workers=0, seed=6)
    with audit.open(tmp_path / "lineage3") as store:
        other = {row[0] for row in store.sql("SELECT digest FROM stage_outputs WHERE stage = 1").fetchall()}
    assert not other & changed


@pytest.mark.slow
def test_a_bare_state_dict_is_recognised_and_its_preset_recorded_stage_by_stage(
    pictures: Callable[..., Path], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    network = torchvision.models.mobilenet_v3_small(num_classes=3).eval()
    torch.save(network.state_dict(), tmp_path / "ckpt.pt")
    images = pictures(count=6, size=(300, 260))
    recorded = audit.run(images, model=tmp_path / "ckpt.pt", store=tmp_path / "lineage", workers=0)
    assert recorded.arch == "mobilenet_v3_small"
    preset = torchvision.models.get_model_weights("mobilenet_v3_small").DEFAULT.transforms()
    folder = datasets.ImageFolder(str(images), preset)
    with audit.open(tmp_path / "lineage") as store:
        names = [row[0] for row in store.sql("SELECT name FROM stages ORDER BY stage").fetchall()]
        assert names == ["load", "ConvertRGB", "Resize", "CenterCrop", "ToTensor", "Normalize"]
        for index in range(6):
            trace = store.trace(index=index)
            expected = folder[index][0]
            assert torch.equal(trace.value(5), expected)
            assert trace.prediction is not None
            with torch.inference_mode():
                assert np.allclose(trace.prediction["logits"], network(expected[None])[0].numpy(), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("capture", ["digest", "preview", "full"])
def test_whatever_was_stored_every_stage_can_be_had_back(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path, capture: str
) -> None:
    images, pipeline = pictures(count=5), write_pipeline(AUGMENTED)
    audit.run(images, pipeline=pipeline, store=tmp_path / "lineage", workers=0, capture=capture)
    with audit.open(tmp_path / "lineage") as store:
        for index in range(5):
            trace = store.trace(index=index)
            for row in trace.stages:
                assert values.digest(trace.value(row["stage"])) == row["digest"]
            assert (trace.preview(1) is None) == (capture == "digest")
        levels = {row[0] for row in store.sql("SELECT DISTINCT payload FROM stage_outputs").fetchall()}
        assert levels == {"none" if capture == "digest" else capture}


def test_capture_auto_keeps_to_its_budget(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    images, pipeline = pictures(count=30), write_pipeline("transform = [transforms.ToTensor()]")
    generous = audit.run(images, pipeline=pipeline, store=tmp_path / "a", workers=0)
    assert generous.capture is not None
    assert generous.capture.startswith("full (auto")
    tight = audit.run(images, pipeline=pipeline, store=tmp_path / "b", workers=0, capture_budget=1000)
    assert tight.capture is not None
    assert tight.capture.startswith("preview (auto")


@pytest.mark.slow
def test_capture_where_keeps_payloads_only_for_the_chosen(tmp_path: Path) -> None:
    audit.run(
        DIGITS,
        model=CHECKPOINT,
        pipeline=PIPELINE,
        store=tmp_path / "lineage",
        workers=0,
        capture="full",
        capture_where="NOT correct OR loss > 1",
    )
    with audit.open(tmp_path / "lineage") as store:
        chosen = {row[0] for row in store.sql("SELECT index FROM predictions WHERE NOT correct OR loss > 1").fetchall()}
        kept = {row[0] for row in store.sql("SELECT DISTINCT index FROM payloads").fetchall()}
        marked = {row[0] for row in store.sql("SELECT index FROM stage_outputs WHERE payload <> 'none'").fetchall()}
        assert chosen == kept == marked
        assert 0 < len(chosen) < 100
        assert store.sql("SELECT count(*) FROM stage_outputs").fetchone() == (3000,)


def test_what_random_stages_drew(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    pipeline = write_pipeline(
        "transform = v2.Compose([v2.RandomRotation(30), v2.RandomHorizontalFlip(0.5),"
        " v2.RandomChoice([v2.GaussianBlur(3), v2.RandomCrop(12)]), v2.RandomOrder([v2.Grayscale(3), v2.RandomInvert(1.0)])])"
    )
    audit.run(pictures(count=16), pipeline=pipeline, store=tmp_path / "lineage", workers=0)
    with audit.open(tmp_path / "lineage") as store:
        stages = store.sql("SELECT path, name, random FROM stages ORDER BY stage").fetchall()
        assert [row[0] for row in stages] == ["0", "1", "2", "3.1", "3.2", "3", "4.1", "4.2", "4"]
        drawn = {
            name: [
                json.loads(params)
                for (params,) in store.sql(
                    f"SELECT params FROM stage_outputs WHERE name = '{name}' AND params IS NOT NULL"
                ).fetchall()
            ]
            for name in ("RandomRotation", "RandomHorizontalFlip", "RandomChoice", "RandomOrder", "GaussianBlur")
        }
        assert all(-30 <= item["angle"] <= 30 for item in drawn["RandomRotation"])
        assert len({item["angle"] for item in drawn["RandomRotation"]}) == 16
        assert {item["choice"] for item in drawn["RandomChoice"]} == {0, 1}
        assert {tuple(item["order"]) for item in drawn["RandomOrder"]} == {(0, 1), (1, 0)}
        assert {item.get("fired", True) for item in drawn["GaussianBlur"]} == {True, False}
        flips = store.sql("SELECT params, changed FROM stage_outputs WHERE name = 'RandomHorizontalFlip'").fetchall()
        assert {changed for _, changed in flips} == {True, False}
        assert all((params == '{"fired": false}') == (not changed) for params, changed in flips)
        # One row per stage and visit, and the last is what the pipeline gave.
        assert store.sql("SELECT count(*) FROM stage_outputs").fetchone() == (16 * 9,)


def test_target_transform_is_a_stage_of_its_own(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    pipeline = write_pipeline(
        "def shifted(label): return label + 1\n"
        "def dataset(root):\n"
        "    from torchvision.datasets import ImageFolder\n"
        "    return ImageFolder(root, transform=transforms.ToTensor(), target_transform=shifted)\n"
    )
    images = pictures(count=6)
    audit.run(images, pipeline=pipeline, store=tmp_path / "lineage", workers=0)
    with audit.open(tmp_path / "lineage") as store:
        assert store.sql("SELECT path, name FROM stages ORDER BY stage").fetchall() == [
            ("0", "load"),
            ("1", "ToTensor"),
            ("target.1", "shifted"),
        ]
        rows = store.sql("SELECT source, label, source_digest IS NOT NULL FROM samples ORDER BY index").fetchall()
        folder = datasets.ImageFolder(str(images), transforms.ToTensor())
        for (source, label, hashed), (path, plain) in zip(rows, folder.samples, strict=True):
            assert (source, label, hashed) == (str(Path(path).relative_to(images)), plain + 1, True)


def test_text_and_tensor_datasets(tmp_path: Path, write_pipeline: Callable[..., Path]) -> None:
    (tmp_path / "texts.csv").write_text("text,label\nhello world,a\nbye now,b\n")
    pipeline = write_pipeline("def split(text): return text.split()\ntransform = [str.upper, split]")
    audit.run(tmp_path / "texts.csv", pipeline=pipeline, store=tmp_path / "lineage", workers=0)
    with audit.open(tmp_path / "lineage") as store:
        trace = store.trace(index=1)
        assert [trace.value(stage) for stage in range(3)] == ["bye now", "BYE NOW", ["BYE", "NOW"]]
        assert trace.sample["source"] == "dataset://1"
    torch.save({"x": torch.arange(12.0).reshape(4, 3), "y": torch.tensor([0, 1, 0, 1])}, tmp_path / "data.pt")
    audit.run(tmp_path / "data.pt", store=tmp_path / "lineage", workers=0)
    with audit.open(tmp_path / "lineage") as store:
        trace = store.trace(index=2)
        assert torch.equal(trace.value(0), torch.tensor([6.0, 7.0, 8.0]))
        assert trace.sample["label"] == 0
