"""What a check is: facts in, findings out.

A check reads what was recorded and reports findings; it records nothing, changes nothing and imports no torch. Its
name, severity, requirements, and options with their defaults are declared on its class and nowhere else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

if TYPE_CHECKING:
    from audit.checks.context import Context

Severity = Literal["info", "warning", "error"]
Status = Literal["pass", "fail", "skip", "error"]
#: What a run must have for a check to run; without it the check is reported as skipped. `model`: predictions; `pictures`:
#: stage 0 returned pictures; `files`: the source files can be read now; `activations`: recorded layers;
#: `same_labels`: the batches have the numbers that predictions are graded against, as far as was observed.
Need = Literal["model", "labels", "same_labels", "pictures", "files", "activations", "baseline"]

#: Checks that find why a model is wrong; what else is wrong with its predictions follows from it.
CAUSES_OF_ERRORS = (
    *("probe", "evaluation_mode", "class_order", "head", "scale", "preprocessing", "channel_order", "alignment"),
)
#: From the least severe to the most severe.
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


@dataclass(frozen=True, slots=True)
class Option:
    """One setting of a check. `kind` is its type; without it, the type of the default."""

    default: Any
    help: str
    kind: type | None = None

    @property
    def type(self) -> type:
        """Return the type that a configured value must have."""
        return self.kind or type(self.default)


def settings(**options: Option) -> Mapping[str, Option]:
    """Return the options of a check, as its class declares them."""
    return MappingProxyType(options)


@dataclass(frozen=True, slots=True)
class Finding:
    """One defect and its place. `sql` is a query that shows it, for `audit sql`."""

    #: One sentence. If `source` is given, the message contains it.
    message: str
    index: int | None = None
    source: str | None = None
    stage: int | None = None
    value: float | None = None
    threshold: float | None = None
    sql: str | None = None
    #: For checks whose findings differ in severity; None means the check's own severity.
    severity: Severity | None = None
    #: Checks that may report the cause of this finding: if one fails with the same or a higher severity, this is only a note.
    #: A check yields its other findings first, because those beyond the limit are not listed.
    causes: tuple[str, ...] = ()


class Check(ABC):
    """One rule. A built-in check is found by its file; one of your own has a name, and is named by `--checks`, by the
    configuration or by an entry point `audit.checks`."""

    #: A built-in check has the name of its file, and the group of its folder; one of your own declares its name.
    name: ClassVar[str]
    group: ClassVar[str] = "yours"
    #: One sentence that says what the check finds; `--list` and docs/CHECKS.md show it.
    description: ClassVar[str]
    #: For docs/CHECKS.md, as Markdown: what the check asks; how it decides; what must be true for that. A check that compares
    #: or counts what was recorded has a `rule`, one that judges a sample of it a `statistic`. One of your own needs neither.
    question: ClassVar[str] = ""
    rule: ClassVar[str] = ""
    statistic: ClassVar[str] = ""
    assumes: ClassVar[str] = "–"
    severity: ClassVar[Severity] = "error"
    options: ClassVar[Mapping[str, Option]] = settings()
    needs: ClassVar[tuple[Need, ...]] = ()
    #: Checks whose findings explain this one's. If one of them fails with the same or a higher severity, the findings of
    #: this check are only notes.
    follows: ClassVar[tuple[str, ...]] = ()
    #: Whether it runs when the configuration chooses nothing.
    default: ClassVar[bool] = True
    #: Whether it imports torch: it then runs in a process of its own, beside the others, unless torch is imported already.
    imports_torch: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        place = cls.__module__.split(".")
        if place[:2] == ["audit", "checks"] and len(place) == 4 and "name" not in cls.__dict__:
            cls.group, cls.name = place[2:]

    def prepare(self, context: Context) -> None:  # noqa: B027
        """Raise `Skip` if there is nothing to check, before torch is imported. Only for a check that imports it."""

    @abstractmethod
    def run(self, context: Context) -> Iterable[Finding]:
        """Yield the findings, worst first. Raise `Skip` if there is nothing to check."""


class Skip(Exception):
    """Raised by a check that has nothing to check; the text says why."""
