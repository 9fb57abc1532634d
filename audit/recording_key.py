"""The private key by which this machine knows the recipes that it recorded itself.

One key per user, in $XDG_DATA_HOME/audit or ~/.local/share/audit, made when it is first needed and readable by its
owner alone. It never leaves the machine and never goes into a store. Where no key can be kept, nothing is signed and
nothing is recognised: recording goes on, and a later replay asks for `--trust`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from contextlib import suppress

_FILE = "recipe.key"
_BYTES = 32


def key_path() -> str:
    """Return where the key of this user is kept."""
    data = os.environ.get("XDG_DATA_HOME", "")
    base = data if os.path.isabs(data) else os.path.join(os.path.expanduser("~"), ".local", "share")
    return os.path.join(base, "audit", _FILE)


def sign(message: bytes) -> str | None:
    """Return the signature of `message` by this user's key, as hex; None where no key can be kept."""
    key = _read_key() or _make_key()
    return hmac.new(key, message, hashlib.sha256).hexdigest() if key is not None else None


def is_signed(message: bytes, signature: object) -> bool:
    """Return whether this user's key made the signature. Makes no key."""
    key = _read_key()
    if key is None or not isinstance(signature, str) or not signature.isascii():
        return False
    return hmac.compare_digest(hmac.new(key, message, hashlib.sha256).hexdigest(), signature)


def has_key() -> bool:
    """Return whether this user has a usable key."""
    return _read_key() is not None


def _read_key() -> bytes | None:
    try:
        descriptor = os.open(key_path(), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        # A key that others can read or replace proves nothing.
        private = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
        key = os.read(descriptor, _BYTES + 1) if private else b""
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return key if len(key) == _BYTES else None


def _make_key() -> bytes | None:
    """Make the key, unless another process makes it first; None where it cannot be written."""
    path = key_path()
    new = f"{path}.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        try:
            os.write(descriptor, secrets.token_bytes(_BYTES))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        # Put if absent: of two processes that record for the first time, both use the first one's key.
        os.link(new, path)
    except FileExistsError:
        pass
    except OSError:
        # A file system without hard links.
        with suppress(OSError):
            if not os.path.lexists(path):
                os.rename(new, path)
    finally:
        with suppress(OSError):
            os.unlink(new)
    return _read_key()
