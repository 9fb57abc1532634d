"""Which code is the user's own, and which belongs to an installed package."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.usercode import import_search


@pytest.mark.parametrize("project", [False, True])
def test_a_folder_that_packages_were_installed_into_holds_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: bool
) -> None:
    """As after `pip install --target`: the folder is not called site-packages."""
    (tmp_path / "package-1.0.dist-info").mkdir()
    if project:
        (tmp_path / "pyproject.toml").touch()
    monkeypatch.syspath_prepend(tmp_path)
    import_search._library_folders.cache_clear()
    try:
        assert import_search.is_library(str(tmp_path / "package" / "code.py")) is not project
        assert not import_search.is_library(str(tmp_path.parent / "mine.py"))
    finally:
        monkeypatch.undo()
        import_search._library_folders.cache_clear()
