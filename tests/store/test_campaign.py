"""The members of the campaign find nothing in a few tries, and find what is planted. `make campaign` tries for longer."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from bench.campaign import power_cuts
from bench.campaign.trial import Trial


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("member", "tries"),
    [("damage", 12), ("power_cuts", 12), ("errnos", 6), ("clock", 2), ("sql_escapes", 25), ("broken_files", 12)],
)
def test_nothing_bad_happens(tmp_path: Path, member: str, tries: int) -> None:
    trial = Trial(7, 60.0, tries, tmp_path)
    importlib.import_module(f"bench.campaign.{member}").run(trial)
    assert trial.bad == 0
    assert trial.tried == tries


def test_a_commit_that_is_not_flushed_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("audit.store.local_filesystem._flush_directory", lambda _: None)
    trial = Trial(7, 60.0, 12, tmp_path)
    power_cuts.run(trial)
    assert trial.bad > 0
