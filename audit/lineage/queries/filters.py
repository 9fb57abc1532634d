"""Filters of a gallery: what can be filtered by, how it is distributed, and the SQL condition that a filter is.

A filter is a range of a number, or a list of values. Everything that an address names is quoted here, because the
condition is shown to people and runs as SQL.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from audit.errors import UsageError
from audit.records import Run
from audit.store.read.reader import Reader
from audit.store.sql_literal import literal

#: Numbers of a prediction and of a sample, by what a filter calls them.
PREDICTION_NUMBERS = {"confidence": "confidence", "loss": "loss", "margin": "margin", "entropy": "entropy"}
SAMPLE_NUMBERS = {"source_bytes": "source size, bytes"}
STAGE_NUMBERS = ("mean", "std", "min", "max", "microseconds")
LISTS = ("label", "predicted", "correct", "status", "split")
_BINS = 24
#: Where the middle is so much smaller than the largest, equal steps would put all into one bar.
_SKEWED_RATIO = 20.0
#: Drawn parameters are looked for in so many outputs of each stage; a list of values has at most so many.
_MOST_LOOKED_AT = 2_000
_MOST_VALUES = 12

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Filter:
    """One filter: from `low` to `high`, or one of `values`. `name` is one of the facets' names."""

    name: str
    low: float | None = None
    high: float | None = None
    values: tuple[Value, ...] | None = None

    def condition(self, run_id: str) -> str:
        """Return it as SQL over the columns of `lineage`."""
        kind, stage, key = _parts(self.name)
        if kind == "":
            return self._of(key)
        number = key if kind == "stage" else f"(params::JSON->>{literal(_pointer(key))})"
        if kind == "drew" and self.values is None:
            number = f"try_cast({number} AS DOUBLE)"
        picked = self._of(number)
        return (
            "(epoch, index, visit) IN (SELECT epoch, index, visit FROM stage_outputs "
            f"WHERE run_id = {literal(run_id)} AND stage = {stage} AND {picked})"
        )

    def _of(self, expression: str) -> str:
        if self.values is not None:
            listed = [literal(value) for value in self.values if value is not None]
            known = f"{expression} IN ({', '.join(listed)})" if len(listed) != 1 else f"{expression} = {listed[0]}"
            if None not in self.values:
                return known
            return f"({known} OR {expression} IS NULL)" if listed else f"{expression} IS NULL"
        if self.low is not None and self.high is not None:
            return f"{expression} BETWEEN {self.low!r} AND {self.high!r}"
        return f"{expression} >= {self.low!r}" if self.low is not None else f"{expression} <= {self.high!r}"


@dataclass(frozen=True, slots=True)
class Facet:
    """Something to filter by. A number has the edges and counts of its bars, a list has its values with their counts."""

    name: str
    title: str
    edges: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    values: list[tuple[Value, int]] = field(default_factory=list)


def parse_filters(text: str) -> tuple[Filter, ...]:
    """Return the filters that an address names: a JSON object of name to [low, high], or to {"in": [values]}."""
    if not text:
        return ()
    try:
        given = json.loads(text)
        return tuple(_parse_filter(str(name), value) for name, value in given.items())
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError("The address names a filter that cannot be read.", hint="Open the gallery again.") from error


def split_filter(split: str | None) -> str:
    """Return the filter of one split as an address names it; nothing for all splits."""
    return json.dumps({"split": {"in": [split]}}) if split is not None else ""


def facets(reader: Reader, run: Run, epoch: int | None) -> list[Facet]:
    """Return what the samples of an epoch (or of all) can be filtered by; facets with one value only are left out.

    Counts are those of `lineage`: its rows are the samples, and those without a prediction have none of its values.
    """
    of = "run_id = ?" + ("" if epoch is None else f" AND epoch = {int(epoch)}")
    found = _lists(reader, run, "samples", of, ("status", "split"))
    labels = _lists(reader, run, "samples", of, ("label",))
    if run.graded:
        total = reader.sql(f"SELECT count(*) FROM samples WHERE {of}", parameters=[run.run_id]).fetchall()[0][0]
        found += _lists(reader, run, "graded_predictions", of, ("correct",), total)
        found += _histograms(reader, run, f"graded_predictions WHERE {of}", {n: (n, n) for n in PREDICTION_NUMBERS})
        found += labels + _lists(reader, run, "graded_predictions", of, ("predicted",), total)
    else:
        found += labels
    return found + _histograms(reader, run, f"samples WHERE {of}", {n: (n, t) for n, t in SAMPLE_NUMBERS.items()})


def stage_facets(reader: Reader, run: Run, epoch: int | None, stage: int) -> list[Facet]:
    """Return statistics and drawn parameters of one stage's outputs."""
    of = f"run_id = ? AND stage = {int(stage)}" + ("" if epoch is None else f" AND epoch = {int(epoch)}")
    named = {f"stage:{stage}:{name}": (name, name) for name in STAGE_NUMBERS}
    found = _histograms(reader, run, f"stage_outputs WHERE {of}", named)
    numbers: dict[str, tuple[str, str]] = {}
    for key, kind in _drawn_parameters(reader, run, of):
        text = f"(params::JSON->>{literal(_pointer(key))})"
        name = f"drew:{stage}:{key}"
        if kind == "number":
            numbers[name] = (f"try_cast({text} AS DOUBLE)", f"drew {key}")
        else:
            found += _values(reader, run, f"stage_outputs WHERE {of}", name, text, f"drew {key}")
    return found + _histograms(reader, run, f"stage_outputs WHERE {of}", numbers)


def _parse_filter(name: str, value: Any) -> Filter:
    _parts(name)
    if isinstance(value, dict):
        values = value["in"]
        if not isinstance(values, list) or not values or not all(_is_plain(one) for one in values):
            raise ValueError(name)
        return Filter(name, values=tuple(values))
    low, high = (None if one is None else float(one) for one in value)
    if (low is None and high is None) or not all(one is None or math.isfinite(one) for one in (low, high)):
        raise ValueError(name)
    return Filter(name, low, high)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value))


def _parts(name: str) -> tuple[str, int, str]:
    """Return the kind of a filter ("", "stage" or "drew"), its stage and its column or parameter."""
    kind, _, rest = name.partition(":")
    if not rest and kind in (*PREDICTION_NUMBERS, *SAMPLE_NUMBERS, *LISTS):
        return "", 0, kind
    stage, _, key = rest.partition(":")
    if (kind == "stage" and key in STAGE_NUMBERS) or (kind == "drew" and key):
        return kind, int(stage), key
    raise ValueError(name)


def _pointer(key: str) -> str:
    """Return the JSON pointer of a parameter, whose name may be any text."""
    return "/" + key.replace("~", "~0").replace("/", "~1")


def _lists(
    reader: Reader, run: Run, table: str, of: str, columns: Sequence[str], total: int | None = None
) -> list[Facet]:
    """Return a list for each column. Of `total` samples, those that have no row in the table have no value."""
    rows = f"{table} WHERE {of}"
    return [facet for name in columns for facet in _values(reader, run, rows, name, name, name, None, total)]


def _values(
    reader: Reader,
    run: Run,
    rows: str,
    name: str,
    expression: str,
    title: str,
    most: int | None = _MOST_VALUES,
    total: int | None = None,
) -> list[Facet]:
    limit = "" if most is None else f" LIMIT {most + 1}"
    query = f"SELECT {expression} AS value, count(*) FROM {rows} GROUP BY value ORDER BY count(*) DESC, value{limit}"
    found = reader.sql(query, parameters=[run.run_id]).fetchall()
    absent = max(0, total - sum(count for _, count in found)) if total is not None else 0
    if absent:
        known = dict(found)
        found = [(value, count) for value, count in found if value is not None]
        found.append((None, absent + known.get(None, 0)))
    if len(found) < 2 or (most is not None and len(found) > most):
        return []
    return [Facet(name, title, values=[(value, count) for value, count in found])]


def _drawn_parameters(reader: Reader, run: Run, of: str) -> list[tuple[str, str]]:
    """Return the names of what the first outputs of a stage drew, and whether each is a `number` or `text`."""
    query = f"SELECT DISTINCT params FROM stage_outputs WHERE {of} AND params IS NOT NULL LIMIT {_MOST_LOOKED_AT}"
    kinds: dict[str, str] = {}
    for (text,) in reader.sql(query, parameters=[run.run_id]).fetchall():
        drawn = json.loads(text)
        for key, value in drawn.items() if isinstance(drawn, dict) else ():
            if isinstance(value, (bool, str)):
                kinds.setdefault(key, "text")
            elif isinstance(value, (int, float)):
                kinds.setdefault(key, "number")
    return sorted(kinds.items())


def _histograms(reader: Reader, run: Run, rows: str, named: dict[str, tuple[str, str]]) -> list[Facet]:
    """Return a histogram of each expression that has more than one value: two scans for all of them."""
    if not named:
        return []
    finite = [f"CASE WHEN isfinite(({e})::DOUBLE) THEN ({e})::DOUBLE END" for e, _ in named.values()]
    bounds = ", ".join(f"min({e}), approx_quantile({e}, 0.5), max({e})" for e in finite)
    first = reader.sql(f"SELECT {bounds} FROM {rows}", parameters=[run.run_id]).fetchone()
    assert first is not None
    wanted = []
    for place, (name, (_, title)) in enumerate(named.items()):
        low, middle, high = first[3 * place : 3 * place + 3]
        if low is not None and low < high:
            wanted.append((name, title, finite[place], _edges(low, middle, high)))
    if not wanted:
        return []
    counted = ", ".join(f"histogram({e}, {literal(edges[1:])})" for _, _, e, edges in wanted)
    second = reader.sql(f"SELECT {counted} FROM {rows}", parameters=[run.run_id]).fetchone()
    assert second is not None
    return [
        Facet(name, title, edges, [int(bars.get(edge, 0)) for edge in edges[1:]])
        for (name, title, _, edges), bars in zip(wanted, second, strict=True)
    ]


def _edges(low: float, middle: float, high: float) -> list[float]:
    """Return round numbers from below `low` to above `high`: about 24 bars, with growing steps where most values are small."""
    if low >= 0 and middle > 0 and high / middle > _SKEWED_RATIO:
        first, last = math.floor(math.log10(max(low, middle / 1e3, 1e-12)) * 4), math.ceil(math.log10(high) * 4)
        step = max(1, math.ceil((last - first) / _BINS))
        grown = [float(f"{10 ** (power / 4):.3g}") for power in range(first, last + step, step)]
        return [0.0, *grown] if low < grown[0] else grown
    rough = (high - low) / _BINS
    power = 10.0 ** math.floor(math.log10(rough))
    wide = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    begin, end = math.floor(low / wide + 1e-9), math.ceil(high / wide - 1e-9)
    return [float(f"{n * wide:.12g}") for n in range(begin, max(end, begin + 1) + 1)]
