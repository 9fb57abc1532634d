"""The lock of a place that has none: an object that its holder renews, and that counts as long as it is young.

A lease is taken by put-if-absent, or from a holder that stopped renewing it, by a put that demands the version which was
read: of two exactly one wins. Its age is measured by the service's clock. It is given back by marking it, never by deleting:
a holder that was paused for long could delete another's. A service without versions offers put-if-absent alone: there a lease
is given back by deleting it, and one that was not can be taken over by nobody until somebody deletes it by hand.

Its limits: after a killed writer the run counts as being written until the lease is old (`SECONDS`). A holder that is paused
for longer than that and wakes up writes on without knowing, as with any lease; it cannot undo the other's commits, because
run.json is replaced only when it still is the version that was read.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading

from audit.errors import StoreBusy, StoreError
from audit.store.bucket.client import Blob, ConditionFailed, ObjectClient, RequestError
from audit.store.bucket.retry import retry_request

#: A lease that has not been renewed for this long is nobody's.
SECONDS = 60.0
#: How many times it is renewed within that.
RENEWALS = 4


class Lease:
    """One lease, held from `take` to `give_back`."""

    def __init__(self, client: ObjectClient, key: str, shown: str) -> None:
        self._client = client
        self._key = key
        self._shown = shown
        self._token = secrets.token_hex(8)
        self._renewed = 0
        self._version: str | None = None
        self._process = os.getpid()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="audit-lease", daemon=True)

    def take(self) -> None:
        """Hold the lease, or StoreBusy."""
        found = read_lease(self._client, self._key, self._shown)
        if found is not None and is_held(found):
            raise self._busy_error()
        if found is not None and not self._client.can_match:
            raise StoreError(
                f"A writer of {self._shown} ended without releasing its lease, and this service has no safe way to "
                "take it over.",
                hint=f"If you are sure that it is no longer running, delete the object {self._key}.",
            )
        self._put(match=found.version if found else None)
        self._thread.start()

    def give_back(self) -> None:
        """Let another have it at once. In a forked child nothing happens: the lease is its parent's."""
        if self._process != os.getpid():
            return
        self._ended.set()
        self._thread.join()
        # Failing to give it back harms nobody: it grows old.
        with contextlib.suppress(RequestError, FileNotFoundError):
            if self._client.can_match:
                self._client.put(self._key, self._dump(released=True), match=self._version)
            elif self._is_mine():
                self._client.delete(self._key)

    def _is_mine(self) -> bool:
        return _content(self._client.get(self._key)).get("token") == self._token

    def _put(self, *, match: str | None) -> None:
        data = self._dump()

        def put() -> str | None:
            try:
                return self._client.put(self._key, data, absent=match is None, match=match)
            except ConditionFailed:
                # Ours after all, when it was the answer to an earlier attempt that was lost.
                now = self._client.get(self._key)
                if now.data == data:
                    return now.version
                raise self._busy_error() from None
            except FileNotFoundError:
                raise self._busy_error() from None

        self._version = retry_request(put, f"The lease of {self._shown} could not be taken")

    def _renew(self) -> None:
        while not self._ended.wait(SECONDS / RENEWALS):
            self._renewed += 1
            data = self._dump()
            try:
                if not self._client.can_match and not self._is_mine():
                    return
                self._version = self._client.put(self._key, data, match=self._version)
            except (ConditionFailed, FileNotFoundError):
                try:
                    now = self._client.get(self._key)
                except (RequestError, FileNotFoundError):
                    continue
                if _content(now).get("token") != self._token:
                    return  # another has it: the next commit will say so
                self._version = now.version
            except RequestError:
                continue  # tried again at the next turn, before the lease is old

    def _dump(self, *, released: bool = False) -> bytes:
        content = {"token": self._token, "renewed": self._renewed, "seconds": SECONDS, "released": released}
        return json.dumps(content).encode()

    def _busy_error(self) -> StoreBusy:
        return StoreBusy(
            f"Another process is writing {self._shown}, or did until less than {SECONDS:g} seconds ago.",
            hint="Wait until it has finished, or stop it and wait a minute, and try again.",
        )


def read_lease(client: ObjectClient, key: str, shown: str) -> Blob | None:
    """Return the lease object, where there is one."""
    try:
        return retry_request(lambda: client.get(key), f"The lease of {shown} could not be read")
    except FileNotFoundError:
        return None


def is_held(lease: Blob) -> bool:
    """Return whether its holder has renewed it lately and not given it back."""
    content = _content(lease)
    seconds = content.get("seconds")
    allowed = float(seconds) if isinstance(seconds, (int, float)) else SECONDS
    return not content.get("released") and lease.age < allowed


def _content(lease: Blob) -> dict[str, object]:
    try:
        content = json.loads(lease.data)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
