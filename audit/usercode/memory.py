"""Whether a module that the user's program imported by itself was made from what its file holds now.

Python does not keep the bytes of a module. Certain are files that are older than the process; of others the functions
and constants in memory are compared with those that the file would give.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from audit.usercode.code_files import CodeFile, find_executed_code
from audit.usercode.process import is_older_than_process


def digest_in_memory(file: CodeFile) -> str | None:
    """Return the SHA-256 of what this process runs of a file; None where the file was edited after it had been imported."""
    module = _find_loaded(file)
    if module is None:
        return file.sha256  # not imported here: an import finds these bytes
    code = find_executed_code(module)
    if code is not None:
        return code.sha256
    return file.sha256 if is_older_than_process(file.path) or _agrees(module, file) else None


def _find_loaded(file: CodeFile) -> ModuleType | None:
    main = sys.modules.get("__main__")
    if getattr(main, "__file__", None) == file.path:
        return main
    return sys.modules.get(file.module)


def _agrees(module: ModuleType, file: CodeFile) -> bool:
    try:
        tree = ast.parse(file.source)
        compiled = dict(_iterate_compiled(compile(file.source, file.path, "exec", dont_inherit=True)))
    except (SyntaxError, ValueError):
        return False
    alive = dict(_iterate_alive(vars(module), module.__name__))
    return all(compiled.get(name) == code for name, code in alive.items()) and all(
        name in vars(module) and vars(module)[name] == value for name, value in _iterate_constants(tree)
    )


def _iterate_compiled(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant.co_qualname, constant
            yield from _iterate_compiled(constant)


def _iterate_alive(names: Any, module: str) -> Iterator[tuple[str, CodeType]]:
    for value in list(names.values()):
        value = getattr(value, "__func__", value)
        if getattr(value, "__module__", None) != module:
            continue
        if isinstance(value, FunctionType):
            yield value.__code__.co_qualname, value.__code__
        elif isinstance(value, type):
            yield from _iterate_alive(vars(value), module)


def _iterate_constants(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            try:
                yield node.targets[0].id, ast.literal_eval(node.value)
            except ValueError:
                continue
