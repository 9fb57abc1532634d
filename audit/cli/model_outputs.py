"""`--output` and `--target` of `audit run`: what the model's outputs mean, and where the target of each is."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

from audit.records import OUTPUT_TASKS


class OutputKind(click.ParamType[str]):
    """A kind of output, or NAME=KIND; `auto` for what is evident from the model and its first output."""

    name = "output"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        _, _, kind = str(value).rpartition("=")
        if kind not in OUTPUT_TASKS and not ("=" in str(value) and kind == "auto"):
            self.fail(f"{kind!r} is not one of {', '.join(map(repr, OUTPUT_TASKS))}.", param, ctx)
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        name, equals, kind = incomplete.rpartition("=")
        return [CompletionItem(f"{name}{equals}{one}") for one in OUTPUT_TASKS if one.startswith(kind)]


def parse_output(
    _: click.Context, __: click.Parameter, given: tuple[str, ...]
) -> str | dict[str | int, str | None] | None:
    """Return the one kind, or a dict of several graded outputs."""
    if not given or (len(given) == 1 and "=" not in given[0]):
        return given[0] if given else None
    if plain := [one for one in given if "=" not in one]:
        raise click.BadParameter(f"{plain[0]!r} has no name. With several outputs, write NAME={plain[0]}.")
    return {name: None if kind == "auto" else kind for name, kind in _pairs(given).items()}


def parse_target(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str | int, str | int] | None:
    """Return the key or position of each output's target."""
    if wrong := [one for one in given if "=" not in one]:
        raise click.BadParameter(f"{wrong[0]!r} is not NAME=PLACE, such as digit=1.")
    return {name: _place(place) for name, place in _pairs(given).items()} or None


def _pairs(given: tuple[str, ...]) -> dict[str | int, str]:
    found: dict[str | int, str] = {}
    for one in given:
        name, _, value = one.rpartition("=")
        if not name or not value:
            raise click.BadParameter(f"{one!r} needs a name and a value on either side of '='.")
        if _place(name) in found:
            raise click.BadParameter(f"{name} is given twice.")
        found[_place(name)] = value
    return found


def _place(text: str) -> str | int:
    """Return a position if the text is a whole number, else the key itself."""
    return int(text) if text.removeprefix("-").isdecimal() else text
