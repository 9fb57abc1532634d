"""A result prints itself, although what renders it lies above it."""

from __future__ import annotations

from pathlib import Path

import pytest
from webstores import begin, write_samples

import audit


def test_traces_and_diffs_print_themselves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("before", "after"):
        writer = begin(tmp_path / "lineage", name, classes=["cat", "dog"])
        write_samples(writer, [{"label": 0, "label_name": "cat", "predicted": 1, "predicted_name": "dog"}])
        writer.finish("complete")
    with audit.open(str(tmp_path / "lineage")) as store:
        store.trace(index=0).show()
        store.diff("before", "after").show()
        assert "stage" in (store.trace(index=0)._repr_html_() or "")
    printed = capsys.readouterr().out
    assert "0.png" in printed
    assert "no prediction flipped" in printed
