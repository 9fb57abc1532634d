"""Landlock: a Linux process gives up files, network and signals for good, for itself and all it starts.

It must be called while the process has one thread: threads that exist already keep what they had. Where
the kernel has no Landlock it says so and changes nothing; it never pretends.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterable

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same numbers on every architecture
_NO_NEW_PRIVILEGES = 38
_VERSION = 1
_PATH_BENEATH = 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3

#: All file rights known to each ABI; a right that is not handled stays allowed.
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_TCP_BIND_AND_CONNECT = 0b11
_SCOPE_SOCKETS_AND_SIGNALS = 0b11


def abi() -> int:
    """Return the version of Landlock that this kernel offers; 0 when there is none."""
    if sys.platform != "linux":
        return 0
    return int(max(0, _libc().syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))))


def restrict(readable: Iterable[str], *, network: bool = False) -> int:
    """Confine this process to reading below `readable`, from now on; return the ABI used, 0 for none."""
    version = abi()
    if not version:
        return 0
    libc = _libc()
    files = _FILE_RIGHTS[min(version, 5)]
    net = _TCP_BIND_AND_CONNECT if version >= 4 and not network else 0
    scope = _SCOPE_SOCKETS_AND_SIGNALS if version >= 6 else 0
    wanted = struct.pack("=QQQ", files, net, scope)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = _require_success(
        libc.syscall(_CREATE, ctypes.c_char_p(wanted), ctypes.c_size_t(len(wanted)), ctypes.c_uint32(0))
    )
    try:
        for path in readable:
            _allow(libc, ruleset, path)
        _require_success(libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
        _require_success(libc.syscall(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0)))
    finally:
        os.close(ruleset)
    return version


def _allow(libc: ctypes.CDLL, ruleset: int, path: str) -> None:
    folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rights = _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0)
        rule = struct.pack("=Qi", rights, folder)
        _require_success(
            libc.syscall(
                _ADD, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), ctypes.c_char_p(rule), ctypes.c_uint32(0)
            )
        )
    finally:
        os.close(folder)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _require_success(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(result)
