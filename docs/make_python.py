"""Writes docs/python.md from signatures and docstrings, so that the page and the code cannot disagree.

python docs/make_python.py
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

_WIDTH = 110
_INTRODUCTION = """# Python

Written by `make docs` from the code's own signatures and docstrings. Everything here is `import audit` away; what is not
listed may change without notice. The [README](../README.md) has a whole training loop, [INTEGRATIONS.md](INTEGRATIONS.md) trainers and
other tools, [FORMAT.md](FORMAT.md) the tables and views that `sql` asks.
"""


def reference() -> str:
    """The whole reference as Markdown."""
    import audit
    from audit import errors

    pages = [_INTRODUCTION, "## Recording\n"]
    pages += [_function("audit.record", audit.record), *_class("Recording", audit.Recording)]
    pages += [_function("audit.run", audit.run), _function("audit.resume", audit.resume)]
    pages += [_function("audit.stage", audit.stage), *_class("Run", audit.Run), *_class("Progress", audit.Progress)]
    pages += ["## Asking\n", _function("audit.open", audit.open), *_class("Store", audit.Store)]
    pages += [_function("audit.diff_pipelines", audit.diff_pipelines), _function("audit.serve", audit.serve)]
    pages += [_function("audit.doctor", audit.doctor)]
    for found in (
        audit.Relation,
        audit.Trace,
        audit.Replay,
        audit.Diff,
        audit.Report,
        audit.Baseline,
        audit.ExportResult,
    ):
        pages += _class(found.__name__, found)
    for found in (audit.AveragePrecision, audit.StoreStats, audit.Damage, audit.CompactionResult):
        pages += _class(found.__name__, found)
    pages += ["## Errors\n", "`from audit import errors` has all of them; `AuditError` is in `audit` too.\n"]
    pages += [*_errors(errors), _entry("RecordingWarning", "", audit.RecordingWarning)]
    return "\n".join(pages).rstrip() + "\n"


def _class(name: str, found: type) -> list[str]:
    fields = _fields(found)
    pages = [_entry(name, "", found, level=3)]
    pages += [f"Has {', '.join(f'`{field}`' for field in fields)}.\n"] if fields else []
    for inner, member in _members(found):
        if isinstance(member, property):
            pages.append(_entry(f"{name}.{inner}", "", member.fget))
        else:
            pages.append(_function(f"{name}.{inner}", member, skip=1))
    return pages


def _members(found: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties in the order they are written, those of parents of ours last."""
    listed: set[str] = set()
    for home in found.__mro__:
        if not home.__module__.startswith("audit."):
            continue
        for name, member in vars(home).items():
            public = isinstance(member, property) or inspect.isfunction(member)
            if public and not name.startswith("_") and name not in listed:
                listed.add(name)
                yield name, member


def _fields(found: type) -> list[str]:
    return [name for name in getattr(found, "__dataclass_fields__", ()) if not name.startswith("_")]


def _function(name: str, function: Any, *, skip: int = 0) -> str:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[skip:]
    bare = [parameter.replace(annotation=_simplify(parameter.annotation)) for parameter in parameters]
    returned = _simplify(signature.return_annotation)
    text = str(inspect.Signature(bare)).replace("'", "")
    ending = "" if returned in (inspect.Signature.empty, "None") else f" -> {returned}"
    return _entry(name, _fold(f"{name}{_quote(text, bare)}{ending}"), function)


def _quote(text: str, parameters: list[inspect.Parameter]) -> str:
    """Defaults that are texts in double quotes, as the code writes them."""
    for parameter in parameters:
        if isinstance(parameter.default, str):
            text = text.replace(f"{parameter.name}: {parameter.annotation} = {parameter.default}",
                                f'{parameter.name}: {parameter.annotation} = "{parameter.default}"')  # fmt: skip
    return text


def _simplify(annotation: Any) -> Any:
    """An annotation as the code writes it, without names that only the code knows."""
    shown = annotation if isinstance(annotation, (str, type)) else str(annotation)
    return shown.replace("JsonObject", "dict[str, Any]") if isinstance(shown, str) else shown


def _fold(call: str) -> str:
    """A call on one line if it fits, else with a parameter on each."""
    if len(call) <= _WIDTH:
        return call
    head, _, rest = call.partition("(")
    inside, _, tail = rest.rpartition(")")
    # Commas inside brackets belong to a type.
    parameters = re.split(r", (?![^\[]*\])", inside)
    return f"{head}(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + f"){tail}"


def _entry(name: str, call: str, documented: Any, *, level: int = 4) -> str:
    text = inspect.getdoc(documented)
    assert text, f"{name} has no docstring"
    code = f"```\n{call}\n```\n\n" if call else ""
    return f"{'#' * level} `{name}`\n\n{code}{text}\n"


def _errors(module: ModuleType) -> Iterator[str]:
    """The tree of errors, as its module draws it."""
    text = inspect.getdoc(module)
    assert text is not None
    drawn = text[text.index("AuditError") :].split("\n\n")[0]
    yield f"{inspect.getdoc(module.AuditError)}\n\n```\n{inspect.cleandoc(drawn)}\n```\n"


if __name__ == "__main__":
    (Path(__file__).parent / "python.md").write_text(reference(), encoding="utf-8")
