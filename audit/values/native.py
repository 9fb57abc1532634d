"""Where the compiled loops are, if they are: one place that knows whether the C extension was built.

Callers ask `loops.native` each time and do the same with numpy when it is None: slower, same digests, same encodings'
contents, same integers; means and deviations of float32 agree to 1e-6. Nothing else in here, so that one assignment
turns the extension off.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

native: ModuleType | None
try:
    native = import_module("audit.values._native")
    if not hasattr(native, "make_visits"):  # built from older sources
        native = None
except ImportError:  # installed without a compiler
    native = None
