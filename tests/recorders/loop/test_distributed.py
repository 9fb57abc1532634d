"""Two gloo processes, each with a recording of its own in one store: the same gradients, all samples between them."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch.multiprocessing
from ddp_material import train
from recording_material import Questions
from torch.multiprocessing.spawn import spawn

import audit

pytestmark = pytest.mark.workers


@pytest.mark.usefixtures("warm_spawn")
def test_two_processes(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with torch.multiprocessing.get_context("spawn").Manager() as manager:
        results = manager.dict()
        context = spawn(train, args=(port, str(tmp_path / "lineage"), results), nprocs=2, join=False, daemon=True)
        assert context is not None
        while not context.join(timeout=120):
            pass
        found = dict(results)
    for rank in (0, 1):
        plain, recorded = found[rank]
        assert plain == recorded
    assert found[0][0][:-2] == found[1][0][:-2]
    ask = Questions(tmp_path / "lineage")
    assert ask("SELECT name, status, tags['rank'], tags['world_size'] FROM runs ORDER BY name") == [
        (f"{name}-{rank}", "complete", str(rank), "2") for name in ("dropped", "padded", "rank") for rank in (0, 1)
    ]
    # The ranks agreed which runs belong together, recording by recording.
    groups = ask("SELECT tags['distributed'], list(name ORDER BY name) FROM runs GROUP BY 1 ORDER BY 2")
    assert [names for _, names in groups] == [
        ["dropped-0", "dropped-1"],
        ["padded-0", "padded-1"],
        ["rank-0", "rank-1"],
    ]
    once = "(SELECT * FROM lineage WHERE run_id IN (SELECT run_id FROM runs WHERE name LIKE 'rank-%'))"
    assert ask(f"SELECT count(*), count(DISTINCT index) FROM {once} WHERE predicted IS NOT NULL") == [(12, 12)]
    assert ask(f"SELECT rank, count(*) FROM {once} GROUP BY rank ORDER BY rank") == [(0, 6), (1, 6)]
    with audit.open(tmp_path / "lineage") as store:
        for run in ("rank-0", "rank-1"):
            (outcome,) = store.check(run, only=["coverage"]).outcomes
            assert (outcome.status, outcome.findings) == ("pass", [])
        (outcome,) = store.check("padded-1", only=["coverage"]).outcomes
        (dropped,) = store.check("dropped-0", only=["coverage"]).outcomes
    assert outcome.status == "fail"
    padded = "samples WHERE run_id IN (SELECT run_id FROM runs WHERE name LIKE 'padded-%')"
    drawn = ask(f"SELECT epoch, index FROM {padded} GROUP BY ALL HAVING count(DISTINCT rank) > 1 ORDER BY ALL")
    assert [epoch for epoch, _ in drawn] == [0, 1]
    assert sorted(finding.index for finding in outcome.findings if finding.index is not None) == sorted(
        index for _, index in drawn
    )
    assert all("padded" in finding.message for finding in outcome.findings)
    # What the sampler's drop_last leaves out is said, and fails nobody's build.
    assert (dropped.status, dropped.findings) == ("pass", [])
    assert "1 of 13 samples were left out of an epoch" in dropped.notes[0]
