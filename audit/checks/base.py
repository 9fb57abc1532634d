"""What a check is: facts in, findings out.

A check reads what was recorded and judges it; it records nothing, changes nothing and imports no torch. All that is
to be known about it (name, severity, options with their defaults, what it needs) stands on its class and nowhere else.
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
#: What a run must have for a check to say anything; without it the check is skipped, visibly.
Need = Literal["model", "labels", "pictures", "files", "activations", "baseline"]

#: From least to worst.
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


@dataclass(frozen=True, slots=True)
class Option:
    """One setting of a check: its default decides its type, unless `kind` does."""

    default: Any
    help: str
    kind: type | None = None

    @property
    def type(self) -> type:
        """What a value in the configuration must be."""
        return self.kind or type(self.default)


def settings(**options: Option) -> Mapping[str, Option]:
    """The options of a check, as its class declares them."""
    return MappingProxyType(options)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, and where: `sql` is a query that shows it, for `audit sql`."""

    message: str
    index: int | None = None
    source: str | None = None
    stage: int | None = None
    value: float | None = None
    threshold: float | None = None
    sql: str | None = None
    #: Where one check finds things of different weight; None is the check's own severity.
    severity: Severity | None = None


class Check(ABC):
    """One judgement. Subclass it, give it a name, and register it (or name it in an entry point `audit.checks`)."""

    name: ClassVar[str]
    group: ClassVar[str] = "yours"
    #: One sentence on what is found; `--list` and docs/CHECKS.md show it.
    description: ClassVar[str]
    severity: ClassVar[Severity] = "error"
    options: ClassVar[Mapping[str, Option]] = settings()
    needs: ClassVar[tuple[Need, ...]] = ()
    #: Whether it runs when the configuration chooses nothing.
    default: ClassVar[bool] = True

    @abstractmethod
    def run(self, context: Context) -> Iterable[Finding]:
        """Everything that is wrong, worst first. Raise `Skip` where there is nothing to look at."""


class Skip(Exception):
    """There is nothing that this check could look at; the text says why."""
