"""Several graded outputs of the model of `audit run`: which they are, what each means, and where its target is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from audit.errors import StoreDamaged, UsageError
from audit.records import OUTPUT_TASKS

#: What `output` and `target` of `audit.run` may be.
Output = str | Mapping[str | int, str | None] | None
HeadTargets = Mapping[str | int, str | int] | None


@dataclass(frozen=True, slots=True)
class DeclaredHead:
    """One graded output. `key` is its key or position in what the model returns."""

    key: str | int
    #: What its numbers mean; None for what is evident from the model and its first output.
    kind: str | None
    #: The key or position of its target in an item.
    target: str | int

    @property
    def name(self) -> str:
        """Its name in `predictions.head`."""
        return str(self.key)


def declare_heads(output: Output, target: HeadTargets) -> tuple[DeclaredHead, ...]:
    """Return the heads that `output` declares, in its order; none if it declares a single output."""
    if not isinstance(output, Mapping):
        if target is not None:
            raise UsageError(
                "target is for a model with several graded outputs.",
                hint="Name the outputs too: --output digit=logits, or output={'digit': 'logits'} in Python.",
            )
        return ()
    wanted = {str(key): place for key, place in (target or {}).items()}
    names = [str(key) for key in output]
    if not output or len(set(names)) < len(names):
        raise UsageError(
            "output names an output twice." if output else "output is an empty dict.", hint="Name each output once."
        )
    if unknown := wanted.keys() - set(names):
        raise UsageError(
            f"target names {', '.join(sorted(unknown))}, but output does not.",
            hint=f"Use the names of output: {', '.join(names)}.",
        )
    return tuple(_declare(key, kind, wanted.get(str(key), str(key))) for key, kind in output.items())


def _declare(key: Any, kind: Any, target: Any) -> DeclaredHead:
    for what, place in (("output", key), (f"target of {key}", target)):
        if isinstance(place, bool) or not isinstance(place, (str, int)):
            raise UsageError(
                f"The {what} cannot be {place!r}.",
                hint="Give a key or a position. A function of the batch is for run.model in a loop of your own.",
            )
    if kind is not None and kind not in OUTPUT_TASKS:
        raise UsageError(f"The output {key} cannot be {kind!r}.", hint=f"Use one of: {', '.join(OUTPUT_TASKS)}.")
    return DeclaredHead(key, kind, target)


def heads_to_recipe(heads: tuple[DeclaredHead, ...]) -> list[list[Any]]:
    """Return the heads as a recipe keeps them: JSON has no positions as keys."""
    return [[head.key, head.kind, head.target] for head in heads]


def heads_from_recipe(found: Any) -> tuple[dict[str | int, str | None], dict[str | int, str | int]]:
    """Return `output` and `target` as they were declared. A recipe is data from a store: it may say anything."""
    try:
        heads = [_declare(key, kind, target) for key, kind, target in found]
    except (TypeError, ValueError, UsageError):
        raise StoreDamaged(f"The recipe of the run says graded_outputs = {str(found)[:80]}.") from None
    return {head.key: head.kind for head in heads}, {head.key: head.target for head in heads}
