"""Large runs are compared piece by piece: the answer is that of one piece, and every pair is in exactly one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from diff_material import make_digest, write_run

from audit.lineage.diff.comparison_pieces import split_pairs
from audit.lineage.diff.diff import diff
from audit.lineage.diff.matching import match_visits, side_of
from audit.store.read.reader import Reader
from audit.store.read.scratch import Scratch

COUNT = 60
MOST = "audit.lineage.diff.matching.MOST_VISITS"


def visits(second: bool) -> list[dict[str, Any]]:
    """The samples of a run. The second renames every ninth, changes stage 1 of every third, and flips every fifth."""
    return [
        {
            "source": f"moved/{n}.png" if second and n % 9 == 0 else f"{n}.png",
            "content": make_digest(f"bytes {n}"),
            "label": n % 3,
            "predicted": (n + 1) % 3 if second and n % 5 == 0 else n % 3,
            "confidence": 0.5,
            "outputs": {0: f"load {n}", 1: f"other {n}" if second and n % 3 == 0 else f"same {n}"},
        }
        for n in range(COUNT)
    ]


STAGES = [
    {"stage": n, "path": str(n), "name": name, "qualname": name, "parameters": "{}"}
    for n, name in enumerate(["load", "Resize"])
]
# A sample that is put first moves all others by one; the one of index 7 is put at the end.
SHIFTED = [visits(second=True)[3] | {"source": "new.png", "content": make_digest("new")}, *visits(second=True)]
SHIFTED.append(SHIFTED.pop(8))


@pytest.mark.parametrize(
    ("second", "expected"),
    [(visits(second=True), 10), (SHIFTED, 10), (visits(second=True)[::-1], 10), (visits(second=True)[::7], 3)],
    ids=["in place", "shifted", "reversed", "few"],
)
def test_pieces_give_the_answer_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: list[dict[str, Any]], expected: int
) -> None:
    write_run(str(tmp_path), visits(second=False), STAGES, name="a")
    write_run(str(tmp_path), second, STAGES, name="b")
    with Reader(str(tmp_path)) as reader:
        whole = diff(reader, "a", "b").as_json()
        monkeypatch.setattr(MOST, 7)
        assert diff(reader, "a", "b").as_json() == whole
        with Scratch(reader, ["a", "b"]) as scratch:
            a, b = (side_of(scratch, reader.run(name)) for name in "ab")
            pairs = match_visits(scratch, a, b).pairs
            pieces = split_pairs(scratch, pairs, a, b)
            held = [index for piece in pieces for (index,) in scratch.rows(f"SELECT index_a FROM {piece.pairs}")]
            assert sorted(held) == [index for (index,) in scratch.rows(f"SELECT index_a FROM {pairs} ORDER BY 1")]
    assert len(pieces) == expected


def test_samples_in_another_order_are_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(str(tmp_path), visits(second=False), STAGES, name="a")
    mixed = visits(second=True)
    write_run(str(tmp_path), [mixed[n * 23 % COUNT] for n in range(COUNT)], STAGES, name="b")
    monkeypatch.setattr(MOST, 7)
    with Reader(str(tmp_path)) as reader, Scratch(reader, ["a", "b"]) as scratch:
        a, b = (side_of(scratch, reader.run(name)) for name in "ab")
        assert len(split_pairs(scratch, match_visits(scratch, a, b).pairs, a, b)) == 1
