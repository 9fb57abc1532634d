"""The members of the campaign find nothing in a few tries, and find what is planted. `make campaign` tries for longer."""

from __future__ import annotations

import errno
import importlib
from pathlib import Path
from typing import Any

import pytest

from audit.errors import AuditError
from audit.store.write.writer import RunWriter
from bench.campaign import power_cuts
from bench.campaign.calls import watched
from bench.campaign.errnos import Fault
from bench.campaign.stores import BATCH, fresh, lost, write_run
from bench.campaign.trial import Trial
from bench.campaign.upkeep import REMOVE, UPKEEP, keep_up


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


def _without_stages(self: RunWriter, tables: dict[str, Any]) -> None:
    _APPEND(self, {name: rows for name, rows in tables.items() if name != "stage_outputs"})


_APPEND = RunWriter.append
#: For each member a fault of the product that it must find: what is replaced, by what, and how many tries it takes.
PLANTED: list[tuple[str, str, Any, int]] = [
    ("damage", "audit.store.maintain.verify._examine", lambda *_: (None, None), 30),
    ("errnos", "audit.store.local_filesystem._write_error", lambda _, __, error: error, 12),
    ("clock", "audit.store.write.writer.read_manifests", lambda _: ([], []), 15),
    ("sql_escapes", "audit.store.read.connection._SETTINGS", {"threads": 1}, 60),
    ("broken_files", "bench.campaign.broken_files.load", lambda *_, **__: {}["raw"], 12),
]
PLANTED_IN_PROCESSES = [
    ("writer_kills", "audit.store.write.writer.RunWriter.flush", lambda _: None, 25),
    ("engine_kills", "audit.store.write.writer.RunWriter.append", _without_stages, 4),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("member", "replaced", "fault", "tries"), PLANTED, ids=lambda value: str(value)[:12])
def test_a_planted_fault_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, member: str, replaced: str, fault: Any, tries: int
) -> None:
    monkeypatch.setattr(replaced, fault)
    trial = Trial(7, 60.0, tries, tmp_path)
    importlib.import_module(f"bench.campaign.{member}").run(trial)
    assert trial.bad > 0


@pytest.mark.workers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("member", "replaced", "fault", "tries"), PLANTED_IN_PROCESSES, ids=lambda value: str(value)[:12]
)
def test_a_fault_planted_in_processes_is_found(
    folder_on_disk: Path, monkeypatch: pytest.MonkeyPatch, member: str, replaced: str, fault: Any, tries: int
) -> None:
    monkeypatch.setattr(replaced, fault)
    trial = Trial(7, 120.0, tries, folder_on_disk)
    importlib.import_module(f"bench.campaign.{member}").run(trial)
    assert trial.bad > 0


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOENT], ids=errno.errorcode.get)
@pytest.mark.parametrize("what", UPKEEP)
def test_every_call_of_an_upkeep_may_fail(tmp_path: Path, what: str, code: int) -> None:
    run_id = write_run(fresh(tmp_path / "template"), commits=2)
    place, said = tmp_path / "s", []
    for at in range(60):
        fault = Fault(code, at, lasts=False)
        with watched(str(fresh(place, tmp_path / "template")), fault, reads=True):
            try:
                keep_up(what, place, run_id)
            except AuditError as error:
                said.append(error.message)
        if not fault.met:
            assert all(message.endswith(".") for message in said)
            return
        assert lost(place, {} if what == REMOVE else {run_id: 2 * BATCH}) is None
    pytest.fail("it makes more than 60 calls")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.workers
@pytest.mark.parametrize(
    ("member", "tries"), [("writer_kills", 12), ("engine_kills", 3), ("memory_kills", 1), ("full_places", 3)]
)
def test_nothing_bad_happens_to_processes(folder_on_disk: Path, member: str, tries: int) -> None:
    trial = Trial(7, 120.0, tries, folder_on_disk)
    importlib.import_module(f"bench.campaign.{member}").run(trial)
    assert trial.bad == 0
    assert trial.tried == tries or trial.counts["cannot mount here"]
