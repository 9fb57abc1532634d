"""A selection as a file or a folder, whatever the names in a store are."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from places import DIGITS, PIPELINE

import audit
from audit.cli.main import cli
from audit.errors import QueryError
from audit.lineage.selection import _COLUMNS, SelectedSample, UnlinkedWarning, as_text, write_selection


def row(**given: object) -> SelectedSample:
    return cast("SelectedSample", {**dict.fromkeys(_COLUMNS), "index": 0, **given})


def test_a_spreadsheet_computes_no_cell() -> None:
    rows = [row(path="=a.png", label_name="+1", notes="@x", predicted_name="-2"), row(path="/b.png", label_name="cat")]
    found = list(csv.DictReader(io.StringIO(as_text(rows, "csv", defused=True))))
    assert (found[0]["path"], found[0]["label_name"], found[0]["notes"]) == ("./=a.png", "'+1", "'@x")
    assert (found[1]["path"], found[1]["label_name"]) == ("/b.png", "cat")
    plain = list(csv.DictReader(io.StringIO(as_text(rows, "csv"))))
    assert plain[0]["label_name"] == "+1", "a manifest for --dataset keeps the names of classes"


def test_the_folder_of_a_class_stays_inside(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"x")
    names = ["..", ".", "", "../../up", "a\0b", "cat"]
    rows = [row(path=str(file), label_name=name, index=number) for number, name in enumerate(names)]
    assert write_selection(rows, str(tmp_path / "in" / "out")) == len(names)
    links = {path for path in tmp_path.rglob("*") if path.is_symlink()}
    assert len(links) == len(names)
    assert all((tmp_path / "in" / "out") in path.parents for path in links)
    assert {path.parent.parent for path in links} == {tmp_path / "in" / "out"}


def test_an_error_in_the_condition_shows_the_condition(tmp_path: Path) -> None:
    audit.run(DIGITS, pipeline=PIPELINE, store=tmp_path / "lineage", workers=0, limit=3)
    with audit.open(tmp_path / "lineage") as store:
        for ask in (
            lambda: store.select(str(tmp_path / "a.csv"), where="NOT corect"),
            lambda: store.sql("\n   SELECT 1 FROM lineage WHERE\nNOT corect").fetchall(),
        ):
            with pytest.raises(QueryError) as caught:
                ask()
            line, marks = caught.value.message.splitlines()[-2:]
            assert line.endswith(": NOT corect")
            assert line[marks.index("^") : marks.rindex("^") + 1] == "corect"


def test_names_that_are_not_text_are_read_back(tmp_path: Path, pictures: Callable[..., Path]) -> None:
    images = pictures(count=5, classes=1)
    odd = [b"new\nline.png", b"\xff\xfe.png", b'"quoted".png', b"\x1b[31mred.png"]
    for path, name in zip(sorted(images.rglob("*.png")), odd, strict=False):
        os.rename(path, os.path.join(os.fsencode(path.parent), name))
    audit.run(images, pipeline=PIPELINE, store=tmp_path / "lineage", workers=0)
    with audit.open(tmp_path / "lineage") as store:
        for form in ("csv", "jsonl"):
            assert store.select(str(tmp_path / f"chosen.{form}")) == 5
            again = audit.run(tmp_path / f"chosen.{form}", pipeline=PIPELINE, store=tmp_path / "again", workers=0)
            assert (again.samples, again.failed) == (5, 0)
        assert store.select(str(tmp_path / "links")) == 5


def test_a_folder_of_links_needs_files(tmp_path: Path) -> None:
    torch.save({"x": torch.zeros(3, 2), "y": torch.tensor([0, 1, 0])}, tmp_path / "data.pt")
    audit.run(tmp_path / "data.pt", store=tmp_path / "lineage", workers=0)
    command = ["select", "-o", str(tmp_path / "links"), "--store", str(tmp_path / "lineage")]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 1
    assert (
        "None of the 3 selected samples has a file on this machine to link to: sample 0 is dataset://0." in done.output
    )
    assert "FILE.csv" in done.output
    assert not (tmp_path / "links").exists()


def test_samples_without_a_file_are_counted(tmp_path: Path) -> None:
    for number in range(3):
        Image.new("L", (4, 4), number).save(tmp_path / f"{number}.png")
    (tmp_path / "list.csv").write_text("path\n0.png\n1.png\n2.png\n")
    audit.run(tmp_path / "list.csv", store=tmp_path / "lineage", workers=0)
    (tmp_path / "1.png").unlink()
    with audit.open(tmp_path / "lineage") as store, pytest.warns(UnlinkedWarning, match="1 of 3 selected samples"):
        assert store.select(str(tmp_path / "links")) == 2
