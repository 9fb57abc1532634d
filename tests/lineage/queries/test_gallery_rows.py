"""A gallery shows the rows of `lineage`, whichever tables a query reads, in the order that is asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from webstores import begin, rows, visit, write_samples

from audit.errors import QueryError
from audit.lineage.queries import gallery_rows
from audit.lineage.queries.filters import facets
from audit.lineage.queries.gallery_rows import Completeness, PickedSamples
from audit.store.read.reader import Reader

#: By the name of a run, whether its predictions hold the rows of `lineage`.
RUNS: dict[str, Completeness] = {"whole": "all", "failed": "all but failed", "gaps": "unknown", "relabelled": "unknown"}
CONDITIONS = (
    "",
    "label = 1",
    "NOT correct",
    "correct IS NULL",
    "confidence > 0.5",
    "status = 'failed'",
    "source LIKE '1%'",
    "label = 1 AND source LIKE '%1.png'",
    "epoch = 1 -- the last",
)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Runs of two epochs: complete, with failed samples, without some predictions, with labels that differ."""
    place = tmp_path_factory.mktemp("rows") / "lineage"
    for name in RUNS:
        writer = begin(place, name)
        samples: list[dict[str, Any]] = []
        for number in range(48):
            index, epoch = number % 24, number // 24
            sample = {"index": index, "epoch": epoch, "source": f"{index}.png", "label": index % 3, "preview": None}
            if name == "failed" and index in (4, 7):
                samples.append({**sample, "error": "broken"})
            elif name == "gaps" and index == 5:
                samples.append(sample)
            else:
                loss = math.nan if index == 9 else float(index // 4)
                samples.append({**sample, "predicted": index % 2, "confidence": index / 24, "loss": loss})
        write_samples(writer, samples)
        if name == "relabelled":
            extra = {**visit(writer.run.run_id, 50), "label": 1, "predicted": 2, "correct": False}
            writer.append(
                {
                    "samples": rows("samples", [{**visit(writer.run.run_id, 50), "label": 2, "status": "ok"}]),
                    "predictions": rows("predictions", [extra]),
                }
            )
        writer.finish("complete")
    with Reader(str(place)) as opened:
        yield opened


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_every_query_picks_the_rows_of_lineage(reader: Reader, name: str, condition: str) -> None:
    run = reader.run(name)
    known = gallery_rows.completeness(reader, run)
    assert known == RUNS[name]
    expected = reader.sql(
        f"SELECT index, epoch, visit, label, correct, status FROM lineage WHERE run_id = ? AND ({condition or 'true'}\n) ORDER BY ALL",
        parameters=[run.run_id],
    ).fetchall()
    answered = 0
    for query in gallery_rows.block(PickedSamples(run, condition, known), limit=100).queries:
        try:
            found = reader.sql(
                f"SELECT index, epoch, visit, label, correct, status FROM ({query}) ORDER BY ALL"
            ).fetchall()
        except QueryError:
            continue  # it has fewer columns: the next one is tried
        assert found == expected
        answered += 1
    assert answered


@pytest.mark.parametrize("order", gallery_rows.ORDERS)
@pytest.mark.parametrize("name", ["whole", "failed"])
def test_blocks_and_neighbours_walk_the_whole_order(reader: Reader, name: str, order: str) -> None:
    run = reader.run(name)
    picked = PickedSamples(run, "", gallery_rows.completeness(reader, run))
    walked: list[tuple[int, int, int]] = []
    after = None
    while True:
        built = gallery_rows.block(picked, order=order, after=after, limit=7)
        found = reader.sql(built.queries[0], parameters=built.parameters).rows(gallery_rows.GalleryRow)
        walked += [(row["epoch"], row["index"], row["visit"]) for row in found]
        if len(found) < 7:
            break
        after = built.cursor(found[-1])
    assert len(walked) == len(set(walked)) == 48
    for place in (0, 1, 20, 46, 47):
        for many in (1, 3):
            built = gallery_rows.neighbours(picked, walked[place], order=order, many=many)
            found_row = reader.sql(built.queries[0], parameters=built.parameters).fetchone()
            assert found_row is not None
            nearest = walked[max(0, place - many) : place][::-1], walked[place + 1 : place + 1 + many]
            for keys, listed in zip(nearest, found_row, strict=True):
                assert [(epoch, index, seen) for index, epoch, seen in listed or ()] == keys
                assert listed is None or keys


def test_filters_count_the_same_rows(reader: Reader) -> None:
    run = reader.run("failed")
    found = {facet.name: dict(facet.values) for facet in facets(reader, run, 1)}
    for name in ("label", "correct", "predicted", "status"):
        counted = reader.sql(
            f"SELECT {name}, count(*) FROM lineage WHERE run_id = ? AND epoch = 1 GROUP BY ALL", parameters=[run.run_id]
        ).fetchall()
        assert found[name] == dict(counted)
