"""Every result shows itself in a notebook: those of docs/, executed by a real kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from warm_programs import warm_python
from webstores import ROOT

from audit.api import Store

pytestmark = pytest.mark.workers


def shown(cell: Any) -> str:
    return "".join(
        "".join(output["data"].get("text/html", ""))
        for output in cell["outputs"]
        if output["output_type"] == "execute_result"
    )


def executed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Execute a notebook of docs/ with a store of its own, and return its code cells."""
    nbformat: Any = pytest.importorskip("nbformat", reason="nbformat is not installed: pip install -e '.[dev]'")
    nbclient: Any = pytest.importorskip("nbclient", reason="nbclient is not installed: pip install -e '.[dev]'")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: pip install -e '.[dev]'")
    monkeypatch.setenv("AUDIT_STORE", str(tmp_path / "lineage"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(ROOT / "docs" / name, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(ROOT)}})
    client.create_kernel_manager().kernel_spec.argv[0] = warm_python()
    client.execute()
    return [cell for cell in notebook.cells if cell["cell_type"] == "code"]


def test_the_training_notebook_finds_the_wrong_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = executed("training.ipynb", tmp_path, monkeypatch)
    assert all('class="audit cell"' in shown(cell) for cell in code[1:])
    with Store(str(tmp_path / "lineage")) as store:
        run = store.run("training")
        assert (run.samples, run.graded) == (300 * 8, 300 * 8)
        assert (7,) in store.sql("SELECT index FROM aum ORDER BY aum LIMIT 5").fetchall()


def test_the_notebook_runs_and_every_result_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [shown(cell) for cell in executed("notebook.ipynb", tmp_path, monkeypatch)]
    expected = ("baseline", "2 runs", "Runs", "predicted_name", "Normalize", "regressions", "Replay of", "Checks of")
    for words, page in zip(expected, pages, strict=True):
        assert 'class="audit cell"' in page
        assert words in page
        assert "<script" not in page
    assert "data:image/" in pages[3]
    assert "data:image/" in pages[4]
    assert "identical" in pages[6]


def test_views_escape_what_a_store_contains(photos: Path) -> None:
    with Store(str(photos)) as store:
        page = store.sql("SELECT '<script>hit(1)</script>' AS \"<b>name</b>\"")._repr_html_()
        assert page is not None
        assert "&lt;script&gt;" in page
        assert "<b>" not in page
        rows = store.sql("SELECT run_id, index FROM lineage ORDER BY run_id, index")._repr_html_()
        assert rows is not None
        assert rows.count("<img") == 20
        assert "The first 20 rows" in rows
        one = store.sql("SELECT index FROM lineage ORDER BY index LIMIT 3", run="photos")._repr_html_()
        assert str(one).count("<img") == 3
        assert "<img" not in str(store.sql("SELECT 3 AS index")._repr_html_()), "of which run is not known"
        assert "<img" not in str(store.sql("SELECT NULL AS run_id, 3 AS index")._repr_html_())
        unknown = store.sql("SELECT 'no such run' AS run_id, 3 AS index")._repr_html_()
        assert unknown is not None
        assert "<img" not in unknown
        run = str(store.run("training")._repr_html_())
        assert "over all epochs" in run
        assert "<dt>wrong" not in run, "mistakes of all epochs are not those of the accuracy"
        assert "no row" in str(store.sql("FROM runs WHERE false")._repr_html_())
