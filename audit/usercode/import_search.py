"""Which files a piece of the user's code consists of, found in its import statements before anything is executed.

A file is local when it lies in the project of the file that was named and belongs to no installed package.
"""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import os
import site
import sys
import sysconfig

from audit.usercode.code_files import CodeFile, CodeFiles, find_executed_code, is_ours, read_bytes
from audit.usercode.process import is_older_than_process

_AUDIT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_MARKERS = (".git", "pyproject.toml", "setup.py", "setup.cfg")


def find_code(module: str, path: str, *, is_package: bool = False) -> CodeFiles:
    """Find the file's code, and every local module that it imports, directly or not. OSError if it cannot be read."""
    first = CodeFile(module, path, read_bytes(path), is_package)
    project = _project_of(module, path, is_package)
    found = {module: first}
    waiting = [first]
    while waiting:
        file = waiting.pop()
        for name in _find_imports(file):
            if name in found or (specification := _resolve(name)) is None:
                continue
            origin = specification.origin
            if origin is None or not _is_local(origin, project):
                continue
            try:
                found[name] = CodeFile(
                    name,
                    os.path.abspath(origin),
                    read_bytes(origin),
                    specification.submodule_search_locations is not None,
                )
            except OSError:
                continue  # the import itself will say so
            waiting.append(found[name])
    return CodeFiles(found.values())


def find_named_code(module: str) -> CodeFiles | None:
    """Return the files of a module that is known by its dotted name; None where it is not local."""
    specification = _resolve(module)
    origin = specification.origin if specification is not None else None
    if specification is None or origin is None or not origin.endswith(".py") or is_library(os.path.abspath(origin)):
        return None
    return find_code(module, os.path.abspath(origin), is_package=specification.submodule_search_locations is not None)


def _find_imports(file: CodeFile) -> list[str]:
    """Return every module name that its import statements may mean, those inside functions too."""
    try:
        tree = ast.parse(file.source)
    except (SyntaxError, ValueError):
        return []  # the import itself will say so
    package = file.module if file.is_package else _parent(file.module)
    names: dict[str, None] = dict.fromkeys(_prefixes(_parent(file.module)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names |= dict.fromkeys(_prefixes(alias.name))
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            if base is not None:
                names |= dict.fromkeys(_prefixes(base))
                names |= dict.fromkeys(f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
    return [name for name in names if name.partition(".")[0] not in sys.stdlib_module_names]


def _base(node: ast.ImportFrom, package: str) -> str | None:
    """Return the module that `from … import` names, relative ones resolved."""
    if not node.level:
        return node.module
    parts = package.split(".") if package else []
    if node.level - 1 > len(parts) or not parts:
        return None
    above = parts[: len(parts) - (node.level - 1)]
    return ".".join([*above, *([node.module] if node.module else [])]) or None


def _parent(module: str) -> str:
    """Return the package that a module is in; a file that is loaded apart is in none."""
    return "" if "@" in module else module.rpartition(".")[0]


def _prefixes(name: str) -> list[str]:
    parts = name.split(".") if name else []
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


def _resolve(name: str) -> importlib.machinery.ModuleSpec | None:
    """Find where an import of this name would come from; nothing is imported."""
    loaded = sys.modules.get(name)
    if loaded is not None and not is_ours(loaded):
        return getattr(loaded, "__spec__", None)
    parent = name.rpartition(".")[0]
    if not parent:
        return importlib.machinery.PathFinder.find_spec(name)
    above = _resolve(parent)
    if above is None or above.submodule_search_locations is None:
        return None
    return importlib.machinery.PathFinder.find_spec(name, list(above.submodule_search_locations))


def _project_of(module: str, path: str, is_package: bool) -> str:
    """Return the folder below which files are the user's own: the nearest with a project's marker, else the file's own."""
    folder = os.path.dirname(path)
    for _ in range(len(_prefixes(_parent(module))) + is_package):
        folder = os.path.dirname(folder)
    above = folder
    while True:
        if any(os.path.exists(os.path.join(above, marker)) for marker in _MARKERS):
            return above
        if above == os.path.dirname(above):
            return folder
        above = os.path.dirname(above)


def _is_local(origin: str, project: str) -> bool:
    path = os.path.abspath(origin)
    if not path.endswith(".py") or not path.startswith(os.path.join(project, "")):
        return False
    return not is_library(path)


def is_library(path: str) -> bool:
    """Return whether a file belongs to Python, to an installed package or to audit itself."""
    return path.startswith(_library_folders()) or bool({"site-packages", "dist-packages"} & {*path.split(os.sep)})


@functools.cache
def _library_folders() -> tuple[str, ...]:
    folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages(), _AUDIT]
    folders += filter(_has_installed_packages, sys.path)
    return tuple({os.path.join(path, "") for folder in folders for path in (folder, os.path.realpath(folder))})


def _has_installed_packages(folder: str) -> bool:
    """Return whether packages were installed into a folder, as `pip install --target` does; a project is not such a folder."""
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    return any(name.endswith(".dist-info") for name in names) and not any(name in _MARKERS for name in names)


def forget_changed(files: CodeFiles) -> None:
    """Take modules out of `sys.modules` whose file is another now, and those that import them."""
    dropped = {file.module for file in files if file.module in sys.modules and not _is_current(file)}
    importers = {file.module: set(_find_imports(file)) for file in files if file.module in sys.modules}
    while True:
        more = {
            name
            for name, imported in importers.items()
            if name not in dropped and (imported & dropped or any(name.startswith(f"{one}.") for one in dropped))
        }
        if not more:
            break
        dropped |= more
    for name in dropped:
        del sys.modules[name]


def _is_current(file: CodeFile) -> bool:
    module = sys.modules[file.module]
    code = find_executed_code(module)
    if code is not None:
        return code == file
    return is_older_than_process(file.path)
