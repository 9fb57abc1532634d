"""A selection as a file or a folder, whatever the names in a store are."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import cast

from audit.lineage.selection import _COLUMNS, SelectedSample, as_text, write_selection


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
