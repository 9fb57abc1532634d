"""Small charts as SVG text: no script, no inline style, colours from the page's style sheet.

Every number is formatted here and every label escaped, so that a chart can be put into any page. They work under a
content security policy that allows neither, in a file opened from disk, and in print.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup, escape

from audit.lineage.queries.overview import ConfidenceBin, LossBin


def _svg(width: float, height: float, body: Iterable[Markup], label: str, kind: str) -> Markup:
    return Markup('<svg class="chart {}" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        kind, _n(width), _n(height), label, Markup("").join(body)
    )


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _rect(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> Markup:
    tip = Markup("<title>{}</title>").format(title) if title else Markup("")
    return Markup('<rect x="{}" y="{}" width="{}" height="{}" class="{}">{}</rect>').format(
        _n(x), _n(y), _n(max(0.0, width)), _n(max(0.0, height)), kind, tip
    )


def _text(x: float, y: float, text: str, kind: str = "tick", anchor: str = "middle") -> Markup:
    return Markup('<text x="{}" y="{}" class="{}" text-anchor="{}">{}</text>').format(_n(x), _n(y), kind, anchor, text)


def _line(points: Sequence[tuple[float, float]], kind: str) -> Markup:
    path = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
    return Markup('<polyline points="{}" class="{}"/>').format(path, kind)


def sparkline(values: Sequence[float | None], width: float = 120, height: float = 24) -> Markup:
    """Return a line through the values that are there, the last one marked."""
    known = [(n, v) for n, v in enumerate(values) if v is not None and math.isfinite(v)]
    if len(known) < 2:
        return Markup("")
    low, high = min(v for _, v in known), max(v for _, v in known)
    span = (high - low) or 1.0
    step = (width - 6) / max(1, len(values) - 1)
    points = [(3 + n * step, 3 + (height - 6) * (1 - (v - low) / span)) for n, v in known]
    x, y = points[-1]
    dot = Markup('<circle cx="{}" cy="{}" r="2.5" class="dot"/>').format(_n(x), _n(y))
    return _svg(width, height, [_line(points, "line"), dot], f"from {low:.4g} to {high:.4g}", "spark")


_W, _H, _PAD = 360.0, 150.0, 20.0
#: Bars are drawn as if there were at least this many, so that one alone stays narrow.
_FEWEST = 6


def histogram(bins: Sequence[ConfidenceBin]) -> Markup:
    """Return how often each confidence occurs: the share that was right below, what was wrong on top."""
    top = max((b["count"] for b in bins), default=0) or 1
    width = _W / max(1, len(bins))
    body = []
    for number, b in enumerate(bins):
        height = (_H - _PAD - 10) * b["count"] / top
        right = height * (b["accuracy"] if b["accuracy"] is not None else 1.0)
        tip = f"{b['from']:.0%} to {b['to']:.0%}: {b['count']:,}"
        tip += f", {b['accuracy']:.1%} right" if b["accuracy"] is not None else ""
        x, base = number * width + 1, _H - _PAD
        body += [
            _rect(x, base - height, width - 2, height - right, "bad", tip),
            _rect(x, base - right, width - 2, right, "good", tip),
        ]
    body += [
        _text(_W * share, _H - 6, f"{share:.0%}", anchor=a) for share, a in ((0, "start"), (0.5, "middle"), (1, "end"))
    ]
    return _svg(_W, _H, body, "confidence histogram", "histogram")


def reliability(bins: Sequence[ConfidenceBin]) -> Markup:
    """Draw accuracy against confidence; a calibrated model lies on the diagonal."""
    side, base = _H - _PAD - 10, _H - _PAD
    total = sum(b["count"] for b in bins) or 1
    points = [
        (b["confidence"] * _W, base - b["accuracy"] * side, b)
        for b in bins
        if b["count"] and b["accuracy"] is not None and b["confidence"] is not None
    ]
    body = [_line([(0, base), (_W, base - side)], "diagonal"), _line([(x, y) for x, y, _ in points], "line")]
    for x, y, b in points:
        tip = f"confidence {b['confidence']:.1%}, right {b['accuracy']:.1%}, {b['count']:,} samples"
        radius = 2 + 5 * math.sqrt(b["count"] / total)
        body.append(
            Markup('<circle cx="{}" cy="{}" r="{}" class="dot"><title>{}</title></circle>').format(
                _n(x), _n(y), _n(radius), tip
            )
        )
    body += [_text(0, _H - 6, "0%", anchor="start"), _text(_W, _H - 6, "confidence 100%", anchor="end")]
    body.append(_text(4, base - side + 4, "right 100%", anchor="start"))
    return _svg(_W, _H, body, "reliability curve", "reliability")


def losses(bins: Sequence[LossBin], has_mistakes: bool = True) -> Markup:
    """Return how often each loss occurs, on a scale of powers of ten; in one colour where no prediction is right or wrong."""
    top = max((b["count"] for b in bins), default=0) or 1
    width = _W / max(_FEWEST, len(bins))
    body, labelled = [], False
    for number, b in enumerate(bins):
        # A square root keeps the few large losses visible beside the many small ones.
        height = (_H - _PAD - 10) * math.sqrt(b["count"] / top)
        bad = height * b["wrong"] / b["count"] if b["count"] else 0.0
        tip = f"loss {b['from']:.3g} to {b['to']:.3g}: {b['count']:,}" + (
            f", {b['wrong']:,} wrong" if has_mistakes else ""
        )
        x, base = number * width + 1, _H - _PAD
        body += [
            _rect(x, base - height, width - 2, bad, "bad", tip),
            _rect(x, base - height + bad, width - 2, height - bad, "good" if has_mistakes else "cool", tip),
        ]
        if math.isclose(math.log10(b["to"]) % 1, 0, abs_tol=1e-6) and 0.03 < (x + width) / _W < 0.97:
            body.append(_text(x + width - 1, _H - 6, f"{b['to']:g}"))
            labelled = True
    if bins and not labelled:
        body.append(_text(1, _H - 6, f"{bins[0]['from']:.3g} to {bins[-1]['to']:.3g}", anchor="start"))
    return _svg(_W, _H, body, "loss distribution, square root scale", "losses")


def bar(share: float | None, kind: str = "good") -> Markup:
    """Return one horizontal bar, filled to a share between 0 and 1."""
    value = min(1.0, max(0.0, share)) if share is not None and math.isfinite(share) else 0.0
    body = [_rect(0, 0, 100, 8, "track"), _rect(0, 0, 100 * value, 8, kind)]
    return Markup('<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">{}</svg>').format(
        Markup("").join(body)
    )


def shape(lengths: Sequence[int] | None) -> str:
    """Return the lengths of the axes, such as 3×224×224."""
    return "×".join(str(length) for length in lengths) if lengths else ""


def number(value: Any, digits: int = 4) -> str:
    """Return a number as text; an empty text for None, a word for a number that is not finite."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(escape(value))
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if abs(value) >= 1e6:
        return f"{value:.3e}"
    # Thousands are written out: 5,027 and not 5.03e+03.
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:,.{digits}g}"


def percent(value: float | None, digits: int = 1) -> str:
    """Return a share as a percentage."""
    return "" if value is None or not math.isfinite(value) else f"{value:.{digits}%}"


def duration(microseconds: float | None) -> str:
    """Return a duration in µs, ms or s."""
    if microseconds is None or not math.isfinite(microseconds):
        return ""
    if microseconds < 1_000:
        return f"{microseconds:.0f} µs"
    return f"{microseconds / 1e3:.3g} ms" if microseconds < 1e6 else f"{microseconds / 1e6:.3g} s"


def size(count: int | None) -> str:
    """Return a size in bytes, KB or MB."""
    if count is None:
        return ""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} bytes"
