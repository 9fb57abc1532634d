"""Every file in pipelines/ end to end: as a script in this process, and through `audit run` where it defines what that takes."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import audit

FOLDER = Path(__file__).resolve().parents[2] / "pipelines"
DIGITS = FOLDER.parent / "fixtures" / "digits"
#: What each script is run with besides --store, and how many visits and epochs it then records.
SCRIPTS: dict[str, tuple[list[str], int, int]] = {
    "imagenet_eval": (["--limit", "4", "--batch-size", "2"], 4, 1),
    "augmented_training": (["--epochs", "2", "--samples", "64"], 128, 2),
    "text_tokens": (["--epochs", "2"], 24, 2),
    "tensors": ([], 1500, 5),
    "layers": ([], 384, 2),
    "spikes": ([], 768, 3),
}


def run_script(name: str, store: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--store", str(store), *arguments])
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")


def test_every_pipeline_is_tried() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {*SCRIPTS, "digits"}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_as_a_script(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, visits, epochs = SCRIPTS[name]
    run_script(name, tmp_path, arguments, monkeypatch)
    assert capsys.readouterr().out.strip()
    with audit.open(tmp_path) as store:
        (run,) = store.runs()
        assert (run.status, run.samples, run.graded, run.failed, run.warnings) == ("complete", visits, visits, 0, [])
        assert store.sql("SELECT count(DISTINCT epoch) FROM samples").fetchone() == (epochs,)
        # Each prediction was made of what the last stage of its sample gave.
        astray = store.sql(
            """
            SELECT p.index FROM predictions p JOIN (
                SELECT run_id, epoch, index, visit, arg_max(digest, stage) AS digest FROM stage_outputs GROUP BY ALL
            ) o USING (run_id, epoch, index, visit) WHERE p.input_digest IS DISTINCT FROM o.digest
            """
        ).fetchall()
        assert astray == []
        assert store.verify() == []


def test_the_text_pipeline_shows_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_script("text_tokens", tmp_path, ["--epochs", "1"], monkeypatch)
    with audit.open(tmp_path) as store:
        found = store.trace(index=3)
        assert [row["name"] for row in found.stages] == ["load", "Words", "Subwords", "Numbers", "Pad"]
        assert [row["kind"] for row in found.stages] == ["text", "tokens", "tokens", "tensor", "tensor"]
        assert found.value(0) == "funny, warm and beautifully told"
        assert found.value(1) == ["funny", "warm", "and", "beautifully", "told"]
        assert found.value(4).shape == (24,)


def test_the_text_pipeline_takes_a_file(tmp_path: Path) -> None:
    (tmp_path / "reviews.tsv").write_text("1\tgreat fun\n0\tdull\tand slow\n\n")
    run = audit.run(tmp_path / "reviews.tsv", pipeline=FOLDER / "text_tokens.py", store=tmp_path / "lineage", workers=0)
    with audit.open(tmp_path / "lineage") as store:
        assert (run.samples, run.failed) == (2, 0)
        assert store.trace(index=1).value(0) == "dull\tand slow"


@pytest.mark.slow
def test_the_wrong_labels_have_the_smallest_margins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_script("tensors", tmp_path, [], monkeypatch)
    wrong = runpy.run_path(str(FOLDER / "tensors.py"))["rows"](300)[1]
    with audit.open(tmp_path) as store:
        lowest = store.sql("SELECT index FROM aum ORDER BY aum LIMIT 15").fetchall()
    assert len({index for (index,) in lowest} & wrong) >= 12


@pytest.mark.slow
def test_the_dead_layer_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_script("layers", tmp_path, [], monkeypatch)
    with audit.open(tmp_path) as store:
        zeros = dict(
            store.sql(
                "SELECT layer, avg(zero_fraction) FROM activations WHERE port = 'output.0' AND direction = 'forward' GROUP BY layer"
            ).fetchall()
        )
        assert zeros["upper_relu"] > 0.75 > zeros["lower_relu"]
        steps = store.sql("SELECT DISTINCT step FROM activations ORDER BY step").fetchall()
        assert [step for (step,) in steps] == list(range(0, 24, 2))
        assert store.sql("SELECT count(*) FROM activations WHERE direction = 'backward'").fetchone() != (0,)


@pytest.mark.slow
def test_the_spike_leads_to_the_spoilt_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_script("spikes", tmp_path, [], monkeypatch)
    with audit.open(tmp_path) as store:
        worst = store.sql("SELECT step, index, source, reason FROM spikes ORDER BY loss DESC LIMIT 1").fetchone()
        assert worst is not None
        assert worst[1:] == (100, "dataset://100", "high")
        kept = store.sql(
            "SELECT DISTINCT index FROM activations JOIN predictions USING (run_id, epoch, index, visit) WHERE loss <= 3"
        )
        assert kept.fetchall() == []
        assert store.sql("SELECT count(*) FROM activations WHERE index = 100").fetchone() != (0,)
        # Exact inputs are kept for those visits alone.
        payloads = {index for (index,) in store.sql("SELECT DISTINCT index FROM payloads").fetchall()}
        assert payloads == {
            index for (index,) in store.sql("SELECT DISTINCT index FROM predictions WHERE loss > 3").fetchall()
        }


@pytest.mark.slow
def test_training_is_the_same_without_the_three_lines(tmp_path: Path) -> None:
    train = runpy.run_path(str(FOLDER / "augmented_training.py"))["train"]
    plain, recorded = train(2, 64, None), train(2, 64, str(tmp_path))
    for a, b in zip(plain.parameters(), recorded.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dataset", "options"),
    [
        ("imagenet_eval", DIGITS / "test", {"limit": 4}),
        ("augmented_training", DIGITS / "train", {"limit": 8}),
        ("text_tokens", "the sentences above", {}),
        ("tensors", "-", {"limit": 20}),
        ("layers", "-", {"limit": 20}),
        ("spikes", "-", {"limit": 20}),
    ],
)
def test_through_audit_run(name: str, dataset: Any, options: dict[str, Any], tmp_path: Path) -> None:
    """Its stages, and its network with weights of chance."""
    network = runpy.run_path(str(FOLDER / f"{name}.py"))["model"]()
    torch.save(network.state_dict(), tmp_path / "weights.pt")
    run = audit.run(
        dataset,
        model=tmp_path / "weights.pt",
        pipeline=FOLDER / f"{name}.py",
        store=tmp_path / "lineage",
        workers=0,
        **options,
    )
    assert (run.status, run.failed) == ("complete", 0)
    assert run.graded == run.samples == options.get("limit", 12)
