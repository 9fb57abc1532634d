"""Imports point one way, importing costs nothing, and the façade is the truth."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import audit

ROOT = Path(audit.__file__).parent

#: Lowest first. A module may import from its own layer and from those below it.
LAYERS = [
    {"display"},
    {
        "errors",
        "class_names",
        "split_names",
        "columns",
        "records",
        "tables",
        "identity",
        "config",
        "registry",
        "plainjson",
        "texts",
        "output_file",
        "picture_formats",
        "usercode",
        "extras",
        "provenance",
    },
    {"recording_key"},
    {"values", "metrics"},
    {"store"},
    {"sources", "models"},
    {"recorders"},
    {"engines"},
    {"lineage"},
    {"checks"},
    {"report", "integrations"},
    {"api"},
    {"web", "integrations.pytest_plugin"},
    {"cli"},
    {"__main__", "__init__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
#: Within a room: what a folder or file must not import. Folders that are not named here may import each other.
APART = {
    "recorders.stages": {"recorders.loop", "recorders.model", "recorders.visit"},
    "recorders.visit": {"recorders.loop", "recorders.model"},
    "recorders.files": {"recorders.loop", "recorders.model", "recorders.visit"},
    "recorders.items": {"recorders.loop", "recorders.model", "recorders.visit", "recorders.files"},
    "recorders.randomness": {"recorders.loop", "recorders.model", "recorders.stages", "recorders.visit"},
    "recorders.model": {"recorders.loop"},
    "recorders.seeded_dataset": {"recorders.loop", "recorders.model"},
    "engines": {"recorders.loop"},
    "store.read": {"store.write", "store.maintain", "store.sandbox"},
    "store.write": {"store.read", "store.maintain", "store.sandbox"},
    "store.bucket": {"store.read", "store.write", "store.maintain", "store.sandbox"},
    "lineage.diff": {"lineage.queries"},
    "lineage.replay": {"lineage.diff", "lineage.queries"},
    "lineage.queries": {"lineage.diff", "lineage.replay"},
    "report.diff": {"report.findings", "report.html"},
    "report.findings": {"report.diff", "report.html"},
}
#: Who may import these packages at all, at the top of a module.
RESTRICTED = {
    "duckdb": {"store"},
    "pyarrow": {"store"},
    "torch": {"recorders", "models", "engines", "integrations", "lineage.replay"},
    "torchvision": {"recorders", "models", "engines", "integrations", "lineage.replay"},
}


@cache
def modules() -> list[tuple[str, Path]]:
    return [(".".join(path.relative_to(ROOT).with_suffix("").parts), path) for path in sorted(ROOT.rglob("*.py"))]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path, *, top_only: bool = False) -> list[str]:
    """Every module that a file imports, but for what only a type checker sees."""

    def walk(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            if top_only and isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if isinstance(child, ast.Import):
                yield from (alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path} imports relatively"
                yield from (f"{child.module}.{alias.name}" for alias in child.names)
            yield from walk(child)

    return list(walk(tree_of(path)))


def room(module: str) -> str:
    return module.split(".")[0]


def level(module: str) -> int:
    return LEVEL[module] if module in LEVEL else LEVEL[room(module)]


def lies_in(module: str, place: str) -> bool:
    return module == place or module.startswith(place + ".")


def wrong_imports(module: str, path: Path) -> Iterator[str]:
    if room(module) not in LEVEL:
        yield f"{module} has no layer: give it one in this test"
        return
    for name in imports(path):
        if name.startswith("audit."):
            target = name.removeprefix("audit.")
            if room(target) not in LEVEL and target != "__version__":
                yield f"{module} takes {target} from the façade"
            elif room(target) in LEVEL and level(target) > level(module):
                yield f"{module} imports {name}, which lies above it"


def test_imports_point_one_way() -> None:
    assert [wrong for module, path in modules() for wrong in wrong_imports(module, path)] == []


@pytest.mark.parametrize(("place", "forbidden"), APART.items(), ids=[*APART])
def test_folders_of_a_room_stay_apart(place: str, forbidden: set[str]) -> None:
    found = [(module, path) for module, path in modules() if lies_in(module, place)]
    assert found, f"{place} does not exist"
    for module, path in found:
        for name in imports(path):
            for other in forbidden:
                assert not lies_in(name.removeprefix("audit."), other), f"{module} imports {name}"


def private_definitions(tree: ast.AST) -> set[str]:
    """The private methods and attributes that the classes of a module define."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found |= {child.name for child in node.body if isinstance(child, ast.FunctionDef)}
            found |= {
                child.attr
                for child in ast.walk(node)
                if isinstance(child, ast.Attribute)
                and isinstance(child.ctx, ast.Store)
                and ast.unparse(child.value) == "self"
            }
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def test_private_attributes_are_used_where_they_are_defined() -> None:
    """`other._attribute` of a class of ours stands only in the module of that class; libraries' own are not meant."""
    trees = {module: tree_of(path) for module, path in modules()}
    defined = {module: private_definitions(tree) for module, tree in trees.items()}
    # Names that libraries use too: multiprocessing's pipes, tensors, named tuples and torch modules.
    libraries = {"_reader", "_writer", "_values", "_indices", "_make", "_modules", "_version"}
    ours = set().union(*defined.values()) - libraries
    reached = [
        f"{module}:{node.lineno} {ast.unparse(node)}"
        for module, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ours - defined[module]
        if ast.unparse(node.value) not in ("self", "cls", "super()")
    ]
    assert reached == []


#: What reads a list, a dict or a text that another object holds as plain data.
READING = {"get", "items", "values", "keys", "index", "startswith"}
#: Calls through two objects that stay: the second is a library's own object, or a plain list or dict of a row.
REACHING = {
    "checks.own_process": {"self._child.stdin.write", "self._child.stdin.close"},
    "engines.watchdog": {"self._options.activity.current_samples"},
    "lineage.replay.counterfactual": {"self._result.changes.setdefault"},
    "lineage.replay.model": {"self._model.module.get_submodule", "self._model.module.named_modules"},
    "lineage.replay.replayer": {"self.result.different.append"},
    "recorders.model.call_recorder": {"self._run.recipe.setdefault"},
    "recorders.stages.drawn_parameters": {"self._stage.__dict__.pop"},
    "store.write.writer": {"self._manifest.parts.extend"},
}


def indexed_names(text: str) -> Iterator[str]:
    """Yield the modules that the docstring of a package lists: `name, name   what they are for`."""
    for line in text.splitlines():
        names, gap, _ = line.strip().partition("  ")
        if gap and re.fullmatch(r"[a-z_]+/?(, [a-z_]+/?)*", names):
            yield from (name.rstrip("/") for name in names.split(", "))


def test_packages_list_modules_that_exist() -> None:
    listed = [
        (path.parent / name, path)
        for _, path in modules()
        if path.name == "__init__.py"
        for name in indexed_names(ast.get_docstring(tree_of(path)) or "")
    ]
    assert len(listed) > 50
    assert [
        f"{path}: {place.name}" for place, path in listed if not (place.is_dir() or place.with_suffix(".py").is_file())
    ] == []


def test_every_name_that_a_module_offers_is_there() -> None:
    missing = []
    for module, path in modules():
        for node in tree_of(path).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                loaded = importlib.import_module(f"audit.{module.removesuffix('__init__')}".rstrip("."))
                missing += [f"{module}.{name}" for name in loaded.__all__ if not hasattr(loaded, name)]
    assert missing == []


def test_no_call_reaches_through_two_objects() -> None:
    """Instead of `self.a.b.c()`, the object `a` has a method that says what is wanted."""
    found: dict[str, set[str]] = {}
    for module, path in modules():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call):
                names = ast.unparse(node.func).split(".")
                is_chain = len(names) > 3 and names[0] == "self" and all(name.isidentifier() for name in names)
                if is_chain and names[-1] not in READING:
                    found.setdefault(module, set()).add(".".join(names))
    assert found == REACHING


#: Methods that a part of the recording gives away: to a thread or its clock, to a loader in place of its own method, or to
#: itself.
GIVEN_AWAY = {
    "Channel._drain",
    "LayoutSearch._equal_rows",
    "LayoutSearch._views",
    "OwnIteration._make",
    "RecordedMap._fetch_list",
    "RecordedMap._item",
    "RecordingState._note_loss",
    "RecordingState._on_tick",
}


def test_parts_of_the_recording_call_no_methods_that_they_were_given() -> None:
    """A part returns rows; the object that owns it decides what becomes of them."""
    found: set[str] = set()
    for module, path in modules():
        for node in ast.walk(tree_of(path)) if lies_in(module, "recorders.loop") else ():
            if isinstance(node, ast.ClassDef):
                called = {id(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)}
                methods = {
                    child.name for child in node.body if isinstance(child, ast.FunctionDef) and not child.decorator_list
                }
                found |= {
                    f"{node.name}.{child.attr}"
                    for child in ast.walk(node)
                    if isinstance(child, ast.Attribute) and child.attr in methods and id(child) not in called
                    if ast.unparse(child.value) == "self"
                }
    assert found == GIVEN_AWAY


def test_signatures_name_the_type_of_their_rows() -> None:
    """A row is a TypedDict or a dataclass; what is free is a JsonObject, a QueryRow or Settings, each defined once."""
    untyped = [
        f"{module}:{node.lineno} {node.name}"
        for module, path in modules()
        if room(module) in ("lineage", "report", "checks", "web")
        for node in ast.walk(tree_of(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name != "__getstate__"
        for annotation in [
            *(argument.annotation for argument in ast.walk(node.args) if isinstance(argument, ast.arg)),
            node.returns,
        ]
        if annotation is not None
        and any(f"{kind}[str, Any]" in ast.unparse(annotation) for kind in ("dict", "Mapping"))
    ]
    assert untyped == []


def test_no_two_classes_share_a_name() -> None:
    places: dict[str, list[str]] = {}
    for module, path in modules():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name.lstrip("_"), []).append(module)
    twice = {name: found for name, found in places.items() if len(found) > 1}
    # Each of two tools is given a callback, and users import it from the tool's own module.
    assert twice.pop("AuditCallback", None) is not None
    assert twice == {}


#: Names of modules that occur in several folders and say the same in each.
COMMON_MODULES = {
    *("base", "baseline", "config", "filesystem", "files", "formats", "huggingface", "manifest", "markdown"),
    *("registry", "run", "text"),
}


def test_no_two_modules_share_a_name() -> None:
    """A command, a page and a check are called after what they show, and so as other modules."""
    places: dict[str, list[str]] = {}
    for module, _ in modules():
        *folder, name = module.split(".")
        is_check = folder[:1] == ["checks"] and len(folder) == 2 and folder[1] != "shared"
        if not (name.startswith("__") or folder[:1] == ["cli"] or folder == ["web", "pages"] or is_check):
            places.setdefault(name, []).append(module)
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert twice.keys() == COMMON_MODULES


def test_heavy_packages_stay_in_their_rooms() -> None:
    outside = [
        f"{module} imports {name}"
        for module, path in modules()
        for name in imports(path, top_only=True)
        if (allowed := RESTRICTED.get(name.split(".")[0])) is not None
        if not any(lies_in(module, place) for place in allowed)
    ]
    assert outside == []


def test_presentation_holds_no_sql_engine() -> None:
    for module, path in modules():
        if room(module) in ("cli", "web", "report"):
            assert not {"duckdb", "pyarrow"} & {name.split(".")[0] for name in imports(path)}, module


def test_no_import_cycles() -> None:
    graph = {
        f"audit.{module.removesuffix('.__init__')}": {
            name for name in imports(path, top_only=True) if name.startswith("audit.")
        }
        for module, path in modules()
        if module != "__init__"
    }

    def resolve(name: str) -> str | None:
        while name and name not in graph:
            name = name.rpartition(".")[0]
        return name or None

    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"import cycle: {' → '.join([*trail[trail.index(name) :], name])}"
        if name in done:
            return
        for target in graph[name]:
            resolved = resolve(target)
            if resolved is not None and resolved != name and not name.startswith(resolved + "."):
                visit(resolved, (*trail, name))
        done.add(name)

    for name in graph:
        visit(name, ())


def test_every_thread_is_named_after_us() -> None:
    """So that a stack dump, and the test that no thread outlives a recording, can tell ours from others."""
    started = 0
    for module, path in modules():
        for call in ast.walk(tree_of(path)):
            if isinstance(call, ast.Call) and getattr(call.func, "attr", None) == "Thread":
                names = [word.value for word in call.keywords if word.arg == "name"]
                assert names, f"{module} starts a thread without a name"
                assert all(isinstance(n, ast.Constant) and str(n.value).startswith("audit-") for n in names), module
                started += 1
    assert started


def test_the_facade_is_the_truth() -> None:
    assert len(audit.__all__) <= 30
    assert {*audit.__all__} == {*audit._HOMES, "__version__"}
    for name in audit.__all__:
        assert getattr(audit, name) is not None
    with pytest.raises(AttributeError):
        audit.nothing_of_that_name  # noqa: B018


def loaded_after(code: str) -> set[str]:
    script = f"{code}\nimport sys; print(' '.join(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stderr.split()}


@pytest.mark.workers
def test_importing_costs_nothing() -> None:
    assert not {"torch", "duckdb", "pyarrow", "numpy", "PIL", "rich"} & loaded_after("import audit")


HELP = "from click.testing import CliRunner; from audit.cli.main import cli; CliRunner().invoke(cli, {arguments})"


@pytest.mark.workers
@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["sql", "--help"], ["trace", "--help"]])
def test_help_loads_neither_torch_nor_duckdb(arguments: list[str]) -> None:
    assert not {"torch", "duckdb", "pyarrow", "numpy", "PIL"} & loaded_after(HELP.format(arguments=arguments))


@pytest.mark.workers
def test_reading_a_store_loads_no_torch(tmp_path: Path) -> None:
    code = (
        "from audit.store.write.writer import RunWriter; import audit\n"
        f"RunWriter.create({str(tmp_path / 'lineage')!r}).finish('complete')\n"
        f"store = audit.open({str(tmp_path / 'lineage')!r}); store.sql('FROM lineage').fetchall(); store.close()"
    )
    assert not {"torch", "torchvision"} & loaded_after(code)


def test_tests_lie_where_the_modules_lie_that_they_test() -> None:
    tests = Path(__file__).parent
    folders = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")}
    # The ready-made pipelines are not part of the package.
    missing = [str(folder) for folder in sorted(folders) if not (ROOT / folder).is_dir() and folder.name != "pipelines"]
    assert missing == []


def test_test_files_have_names_of_their_own() -> None:
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
