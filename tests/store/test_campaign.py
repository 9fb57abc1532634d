"""The members of the campaign find nothing in a few tries, and find what is planted. `make campaign` tries for longer."""

from __future__ import annotations

import errno
import importlib
from pathlib import Path

import pytest

from audit.errors import AuditError
from audit.store.read.reader import Reader
from bench.campaign.__main__ import MEMBERS
from bench.campaign.calls import watch_calls
from bench.campaign.errnos import Fault
from bench.campaign.planted import PLANTED_FAULTS, finds_fault
from bench.campaign.stores import BATCH, find_loss, make_fresh, write_run
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


def test_every_member_has_a_planted_fault() -> None:
    assert list(PLANTED_FAULTS) == list(MEMBERS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("member", [member for member, planted in PLANTED_FAULTS.items() if not planted.slow])
def test_a_planted_fault_is_found(tmp_path: Path, member: str) -> None:
    assert finds_fault(member, tmp_path)


@pytest.mark.workers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("member", ["writer_kills", "engine_kills"])
def test_a_fault_planted_in_processes_is_found(folder_on_disk: Path, member: str) -> None:
    assert finds_fault(member, folder_on_disk)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOENT], ids=errno.errorcode.get)
@pytest.mark.parametrize("what", UPKEEP)
def test_every_call_of_an_upkeep_may_fail(tmp_path: Path, what: str, code: int) -> None:
    run_id = write_run(make_fresh(tmp_path / "template"), commits=2)
    place, said = tmp_path / "s", []
    for at in range(60):
        fault = Fault(code, at, lasts=False)
        with watch_calls(str(make_fresh(place, tmp_path / "template")), fault, reads=True):
            try:
                keep_up(what, place, run_id)
            except AuditError as error:
                said.append(error.message)
        if not fault.met:
            assert all(message.endswith(".") for message in said)
            return
        assert find_loss(place, {} if what == REMOVE else {run_id: 2 * BATCH}) is None
    pytest.fail("it makes more than 60 calls")


def test_calls_that_read_are_watched(tmp_path: Path) -> None:
    write_run(make_fresh(tmp_path / "s"), commits=1)
    names: set[str] = set()
    with (
        watch_calls(str(tmp_path / "s"), lambda name, _: names.add(name), reads=True),
        Reader(str(tmp_path / "s")) as reader,
    ):
        reader.sql("FROM samples").fetchall()
    assert names == {"open", "listdir"}


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
