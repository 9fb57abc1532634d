"""What a terminal shows of a diagnosis."""

from __future__ import annotations

from collections.abc import Sequence

from audit.lineage.doctor import Diagnosis
from audit.report.clean_text import clean

_MOST = 4


def doctor_text(found: Diagnosis) -> str:
    """Return a line for each fact, and one for each thing that will not be recorded."""
    stages = [f"{name} ({path})" for path, name in found.stages]
    labelled = sum(label is not None for label in found.labels)
    replayed = "not possible" if found.identical is None else f"{found.identical} of {found.samples} identical"
    missing = "none found; say where with label=" if found.samples else "none"
    lines = [
        f"dataset   {clean(found.dataset)}, {found.samples} samples tried",
        f"stages    {' → '.join(map(clean, stages)) or 'none'}",
        f"sources   {_list_some(found.sources) or 'none'}",
        f"labels    {f'{labelled} of {found.samples}' if labelled else missing}",
        f"random    {_list_some([*found.random_stages, *found.generators]) or 'nothing drawn'}",
        f"replay    {replayed}",
    ]
    lines += [f"failed    {clean(failure)}" for failure in found.failures]
    lines += [f"NOT SEEN  {clean(text)}" for text in found.unrecorded]
    lines += [f"note      {clean(note)}" for note in found.notes]
    if found.unrecorded:
        lines.append('          Wrap such a step to record it: with audit.stage("name") as s: value = s.out(...)')
    return "\n".join(lines)


def _list_some(texts: Sequence[str]) -> str:
    shown = ", ".join(clean(text) for text in texts[:_MOST])
    return f"{shown}, …" if len(texts) > _MOST else shown
