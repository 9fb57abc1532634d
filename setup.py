"""The optional C extension; everything else about the package is in pyproject.toml.

`optional` means that an install without a compiler succeeds: audit then computes the same with numpy, slower.
"""

from __future__ import annotations

import sys

from setuptools import Extension, setup

_FLAGS = [] if sys.platform == "win32" else ["-O3", "-std=c11", "-ffp-contract=off", "-fno-trapping-math"]

setup(
    ext_modules=[
        Extension(
            "audit.values._native",
            ["audit/values/_native.c"],
            depends=["audit/values/_kernels.h", "audit/values/_shapes.h"],
            extra_compile_args=_FLAGS,
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
