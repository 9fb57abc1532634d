"""Code and pages are written in plain technical English: words and phrases that readers stumbled over do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import audit

ROOT = Path(audit.__file__).parents[1]
#: What to write instead stands beside each.
STUMBLES = {
    r"\b(?:un)?told\b": "reported, named, distinguished",
    r"\bheard\b": "recorded, observed",
    r"\banew\b": "again",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\bwhoever\b": "the caller, the process that",
    r"\bis dear\b": "is expensive",
    r"\bin the words of\b": "as ... says",
    r"\bof such\b": "of these",
    r"\bbe had\b": "be read, be computed",
    r"\b(?-i:So) (?:do|does|did|were|have) ": "The same holds for",
    r"\b(?:nursery|roster)\b": "fork server, search",
    r"(?<!here )\b(?:is|are|was|were) no (?!longer\b|more\b|such\b)\w": "is not a",
}
#: Texts in which the word is somebody else's: a film review of the example data.
QUOTED = ("beautifully told", "story told badly", '"told"')


def texts() -> list[Path]:
    folders = ("audit", "bench", "docs", "pipelines", "tests")
    paths = [
        path for folder in folders for ending in ("py", "html", "md") for path in (ROOT / folder).rglob(f"*.{ending}")
    ]
    return sorted({*paths, *ROOT.glob("*.md")} - {Path(__file__)})  # this file lists the phrases


@pytest.mark.parametrize("phrase", STUMBLES)
def test_no_text_uses_the_phrase(phrase: str) -> None:
    pattern = re.compile(phrase, re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path in texts()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line) and not any(quoted in line for quoted in QUOTED)
    ]
    assert found == [], f"write {STUMBLES[phrase]!r} instead"


def test_no_text_holds_the_marks_of_an_unresolved_merge() -> None:
    mark = re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE)
    assert [str(path.relative_to(ROOT)) for path in texts() if mark.search(path.read_text())] == []


#: What a docstring that begins so describes is a result; what is asked for is the call: `Return whether`, `Return the`.
NO_VERBS = {
    "Whether",
    "The",
    "A",
    "An",
    "How",
    "What",
    "Where",
    "Why",
    "Which",
    "As",
    "For",
    "From",
    "While",
    "Meanwhile",
    "None",
}


def test_the_docstring_of_a_function_begins_with_what_the_call_does() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {text.splitlines()[0]}"
        for path in sorted((ROOT / "audit").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        # A property is described like an attribute; the text of a command is its help.
        if not any(re.search(r"property|group|command", ast.unparse(one)) for one in node.decorator_list)
        if (text := ast.get_docstring(node)) and (text.split()[0] in NO_VERBS or not text[0].isupper())
    ]
    assert found == [], "begin with a verb, such as Return"


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: A participle, a gerund or an adverb: alone it does not say what a function does, or what a class is.
PARTICIPLE = re.compile(r"\w+(?:ed|ing|ly)")
#: Words that end so and are verbs or nouns.
VERBS_AND_NOUNS = words(
    """
    apply assembly embed embedding encoding family finding listing mapping narrowing need preprocessing recording reply reseed
    seed setting speed tally
    """
)
#: Further participles, adverbs and adjectives.
ALONE = words(
    """
    about absent after again ahead alike alive alone apart around away before beside besides between broken built busy careful
    caught chosen current distinct done drawn elementwise finite found fresh given gone heard held here hidden importable
    incomplete inert inside interruptible kept later left lost made met mine nearest newest now once ours plain printable raw
    readable ready resumable safe said seen sent shown similar spent spoilt still storable taken theirs then thrown together
    unseen unusual usual viewable visible within without written wrong
    """
)
#: `held_by` and `left_out` are participles too.
PARTICLES = words("apart as at by for from in on out to up with")
#: Names that others give: our public ones, those of the checks, and those of the interfaces of libraries.
NAMES_OF_OTHERS = words(
    """
    Store.damaged Report.passed Replay.passed RecordedBatch.failed
    Clipped Displaced Finite Learning Truncated
    PartFilesystem.modified PartFile.readable JumpingTime.now _built_in HERE nested
    """
)


def is_participle_alone(name: str) -> bool:
    """`_paused`, `Replaced` and `held_by` are; `pause_matching`, `ReplacedMethod` and `held_values` are not."""
    first, *rest = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip("_")).lower().split("_")
    is_participle = first in ALONE or (PARTICIPLE.fullmatch(first) is not None and first not in VERBS_AND_NOUNS)
    return is_participle and (not rest or (len(rest) == 1 and rest[0] in PARTICLES))


def names_of(node: ast.AST, owner: str = "") -> Iterator[tuple[int, str, str]]:
    """Yield the line, the name and the name with its class of what a module or a class defines."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield child.lineno, child.name, f"{owner}.{child.name}".lstrip(".")
            yield from names_of(child, child.name if isinstance(child, ast.ClassDef) else "")
        elif isinstance(node, ast.Module) and isinstance(child, (ast.Assign, ast.AnnAssign)):
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            yield from ((child.lineno, one.id, one.id) for one in targets if isinstance(one, ast.Name))
        else:
            yield from names_of(child, owner)


def test_no_name_is_a_participle_alone() -> None:
    folders = ("audit", "bench", "docs", "fixtures", "packaging", "pipelines", "tests/support")
    found = {
        name: f"{path.relative_to(ROOT)}:{line}"
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, short, name in names_of(ast.parse(path.read_text()))
        if not short.startswith("__") and is_participle_alone(short)
    }
    others = {name: place for name, place in found.items() if name not in NAMES_OF_OTHERS}
    assert others == {}, "a function is named by a verb phrase, a class and a constant by a noun"
    assert found.keys() == NAMES_OF_OTHERS
