"""Signed runs: an Ed25519 signature over a run's chain head and over everything that its manifest lists.

Digests show accidents: a person who changes a part on purpose can compute them again. A signature cannot be made without its key.
It lies beside the run (`signatures/<key>.json`), and a run may have several. The run's name, its tags and its findings may
be changed later without breaking it; rows, counts and facts of the recording may not.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from audit.errors import MissingExtra, NotFound, UsageError
from audit.extras import EXTRAS
from audit.output_file import explain_write_errors
from audit.store.commits import run_folder
from audit.store.manifest import Manifest, lock_manifest
from audit.store.read.reader import Reader

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

FOLDER = "signatures"
_TYPE = "audit run signature 1"
#: What may be changed after a run was signed.
_AMENDED_KEYS = ("name", "tags")
_AMENDED_TABLE = "findings"


@dataclass(frozen=True, slots=True)
class RunSignature:
    """One signature of a run."""

    run_id: str
    #: The first 16 hex digits of the SHA-256 of the public key.
    key: str
    commit: int
    head: str
    content: str

    def as_json(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        return {
            "run_id": self.run_id,
            "key": self.key,
            "commit": self.commit,
            "head": self.head,
            "content": self.content,
        }


def make_keys(path: str | os.PathLike[str]) -> str:
    """Write a new private key to `path`, readable by its owner alone, and the public key to `path`.pub; return the latter."""
    _require_cryptography()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private, public = os.fspath(path), f"{os.fspath(path)}.pub"
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    shown = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    for name in (private, public):
        if os.path.lexists(name):
            raise UsageError(f"{name} exists already.", hint="Choose another file; no key is overwritten.")
    for name, data, mode in ((private, secret, 0o600), (public, shown, 0o644)):
        with explain_write_errors(name, "Choose another file."):
            descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
    return public


def sign(reader: Reader, reference: str | None, key: str | os.PathLike[str]) -> RunSignature:
    """Sign a run as it is committed now; StoreDamaged where its parts are not what it says."""
    from audit.store.maintain.verify import require_whole

    private = private_key(key)
    require_whole(reader, reference, "signed")
    filesystem = reader.filesystem
    with lock_manifest(filesystem, reader.run(reference).run_id) as manifest:
        if manifest.run.status == "running":
            raise UsageError(
                f"The run {manifest.run.run_id} has not ended.", hint="Finish it first: audit run --resume RUN"
            )
        made = RunSignature(
            manifest.run.run_id,
            key_id(private.public_key()),
            manifest.commit,
            manifest.head or "",
            content_digest(manifest),
        )
        sealed = base64.b64encode(private.sign(_message(made))).decode()
        data = json.dumps({"type": _TYPE, **made.as_json(), "signature": sealed}, indent=1).encode()
        filesystem.replace(f"{run_folder(made.run_id)}/{FOLDER}/{made.key}.json", data)
    return made


def problem_with(reader: Reader, manifest: Manifest, key: str | os.PathLike[str]) -> str | None:
    """Return why a run is not as the owner of this key signed it; None if it is."""
    from cryptography.exceptions import InvalidSignature

    public = public_key(key)
    run_id, name = manifest.run.run_id, key_id(public)
    try:
        stored = json.loads(reader.filesystem.read(f"{run_folder(run_id)}/{FOLDER}/{name}.json"))
        signed = RunSignature(**{field: stored[field] for field in ("run_id", "key", "commit", "head", "content")})
        public.verify(base64.b64decode(stored["signature"], validate=True), _message(signed))
    except FileNotFoundError:
        return f"is not signed by the key {name}"
    except (ValueError, KeyError, TypeError, InvalidSignature):
        return f"has a signature that the key {name} did not make"
    if signed.run_id != run_id:
        return f"has the signature of another run, {signed.run_id}"
    if signed.content != content_digest(manifest):
        return f"was changed after the key {name} signed it at commit {signed.commit}"
    if manifest.commit < signed.commit or (manifest.commit == signed.commit and manifest.head != signed.head):
        return f"is not the commit {signed.commit} that the key {name} signed"
    return None


def content_digest(manifest: Manifest) -> str:
    """Return the SHA-256 of what a manifest says of the recording: the run's row and the digest of every part."""
    row = {name: value for name, value in manifest.run.as_json().items() if name not in _AMENDED_KEYS}
    parts = sorted([p.table, p.file, p.rows, p.sha256] for p in manifest.parts if p.table != _AMENDED_TABLE)
    return hashlib.sha256(_canonical_bytes({"run": row, "parts": parts})).hexdigest()


def private_key(path: str | os.PathLike[str]) -> Ed25519PrivateKey:
    """Read a private Ed25519 key from a PEM file."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    data = _read(path)
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{os.fspath(path)} is not a private key in PEM without a password: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"{os.fspath(path)} is not an Ed25519 key.", hint="Make one with: audit store keygen FILE")
    return key


def public_key(path: str | os.PathLike[str]) -> Ed25519PublicKey:
    """Read a public Ed25519 key from a PEM file; of a private key, its public half."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    data = _read(path)
    if b"PRIVATE KEY" in data:
        return private_key(path).public_key()
    try:
        key = load_pem_public_key(data)
    except ValueError as error:
        raise UsageError(f"{os.fspath(path)} is not a public key in PEM: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError(f"{os.fspath(path)} is not an Ed25519 key.", hint="Make one with: audit store keygen FILE")
    return key


def key_id(key: Ed25519PublicKey) -> str:
    """Return the name that a key's signatures go by."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:16]


def _message(signature: RunSignature) -> bytes:
    return _TYPE.encode() + b"\n" + _canonical_bytes(signature.as_json())


def _canonical_bytes(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _read(path: str | os.PathLike[str]) -> bytes:
    _require_cryptography()
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise NotFound(
            f"There is no key at {os.fspath(path)}.", hint="Make one: audit store keygen FILE"
        ).as_usage() from None
    except OSError as error:
        raise UsageError(f"The key {os.fspath(path)} cannot be read: {error.strerror}.") from error


def _require_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ModuleNotFoundError:
        raise MissingExtra("cryptography", "Signing", EXTRAS["cryptography"]) from None
