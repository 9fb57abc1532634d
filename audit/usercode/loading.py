"""The user's own code: Python files and modules that --dataset, --pipeline and --model name.

They name it, so it runs without further trust. Whatever it raises becomes one sentence with file and line.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType

from audit.errors import AuditError
from audit.texts import path_as_utf8
from audit.usercode.code_files import FINDER, CodeFile, CodeFiles, is_ours, specification_of
from audit.usercode.import_search import find_code, find_named_code, forget_changed, is_library

_collector: ContextVar[CodeFiles | None] = ContextVar("collector", default=None)
#: Names under which files were loaded; another file may have them next.
_given_names: set[str] = set()


def load_module(path: str, failure: type[AuditError] = AuditError) -> ModuleType:
    """Return the module in a file, imported under the file's own name so that worker processes can import it too.

    It is executed again when its file, or a local module that it imports, has changed. Where its name already means
    another module, it gets one of its own, which only forked workers know.
    """
    path = os.path.abspath(path)
    stem = os.path.splitext(os.path.basename(path))[0]
    free = stem.isidentifier() and _is_free(stem, path)
    with (
        import_from(os.path.dirname(path)),
        explain_user_errors(f"Importing {path_as_utf8(path)}", failure),
        FINDER.lock,
    ):
        name = stem if free else f"{stem}@{path}"
        _given_names.add(name)
        return _load(find_code(name, path))


def import_named(name: str, failure: type[AuditError] = AuditError) -> ModuleType:
    """Import the module of that dotted name, which may lie in the current directory; a local one as `load_module` does."""
    with import_from(os.getcwd()), explain_user_errors(f"Importing {name}", failure), FINDER.lock:
        code = find_named_code(name)
        if code is None and _has_no_module(name):
            hint = "Install the package that has it, run the command from the folder that holds it, or pass FILE.py:function."
            raise failure(f"There is no Python module {name!r}.", hint=hint).as_usage()
        return importlib.import_module(name) if code is None else _load(code, name)


def _has_no_module(name: str) -> bool:
    """Return whether the first part of a dotted name means nothing that can be imported."""
    top = name.partition(".")[0]
    try:
        return top not in sys.modules and importlib.util.find_spec(top) is None
    except ValueError:  # a module without a specification, such as __main__
        return False


@contextmanager
def collect_code() -> Iterator[CodeFiles]:
    """Gather the files of all user code that is loaded meanwhile in this thread."""
    gathered = CodeFiles()
    before = _collector.set(gathered)
    try:
        yield gathered
    finally:
        _collector.reset(before)
        if (outer := _collector.get()) is not None:
            outer.add(gathered)


def _load(code: CodeFiles, name: str | None = None) -> ModuleType:
    """Import the first of these files, and with it what it needs of the others, from exactly these bytes."""
    first = next(iter(code))
    forget_changed(code)
    FINDER.offer(file for file in code if file.module not in sys.modules)
    module = _load_apart(first) if "@" in first.module else importlib.import_module(name or first.module)
    if (collector := _collector.get()) is not None:
        collector.add(code)
    return module


@contextmanager
def explain_user_errors(doing: str, failure: type[AuditError] = AuditError) -> Iterator[None]:
    """Turn whatever the user's code raises, an exit included, into one sentence with file and line."""
    try:
        yield
    except AuditError:
        raise
    except (Exception, SystemExit) as error:
        message = " ".join(str(error).split())[:300]
        raise failure(
            f"{doing} failed at {_place(error)}: {type(error).__name__}: {message}",
            hint=_hint(error),
        ) from error


def _hint(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"Install the package that has {error.name.split('.')[0]}, or correct the import."
    return "Fix the error there, then run the command again."


@contextmanager
def import_from(folder: str) -> Iterator[None]:
    """Put the folder first during the import, as for a script; then last, for worker processes to find it."""
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)


def _load_apart(code: CodeFile) -> ModuleType:
    if code.module in sys.modules:
        return sys.modules[code.module]
    specification = specification_of(code)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[code.module] = module
    try:
        specification.loader.exec_module(module)
    except BaseException:
        del sys.modules[code.module]
        raise
    return module


def _is_free(name: str, path: str) -> bool:
    """Return whether the name means this file, another that was named before, or nothing yet: a user's datasets.py must not
    become everyone's."""
    loaded = sys.modules.get(name)
    if name in _given_names and (loaded is None or is_ours(loaded)):
        return True
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a module without a specification, such as __main__
        return False
    if found is None:
        return True
    return found.origin is not None and os.path.exists(found.origin) and os.path.samefile(found.origin, path)


def _place(error: BaseException) -> str:
    """Return file:line of what was raised, in the user's code rather than in a library that it called."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    users = [frame for frame in frames if not is_library(os.path.abspath(frame.filename))]
    chosen = (users or frames)[-1] if frames else None
    return f"{chosen.filename}:{chosen.lineno}" if chosen else "an unknown place"
