"""Two gloo processes, each with a recording of its own in one store: the same gradients, all samples between them."""

from __future__ import annotations

import socket
from pathlib import Path

import torch.multiprocessing
from ddp_material import train
from recording_material import Asked


def test_two_processes(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with torch.multiprocessing.get_context("spawn").Manager() as manager:
        results = manager.dict()
        context = torch.multiprocessing.spawn(
            train, args=(port, str(tmp_path / "lineage"), results), nprocs=2, join=False, daemon=True
        )
        assert context is not None
        while not context.join(timeout=120):
            pass
        found = dict(results)
    for rank in (0, 1):
        plain, recorded = found[rank]
        assert plain == recorded
    assert found[0][0][:-2] == found[1][0][:-2]
    ask = Asked(tmp_path / "lineage")
    assert ask("SELECT name, status, tags['rank'] FROM runs ORDER BY name") == [
        ("rank-0", "complete", "0"),
        ("rank-1", "complete", "1"),
    ]
    assert ask("SELECT count(*), count(DISTINCT index) FROM lineage WHERE predicted IS NOT NULL") == [(12, 12)]
    assert ask("SELECT rank, count(*) FROM samples GROUP BY rank ORDER BY rank") == [(0, 6), (1, 6)]
