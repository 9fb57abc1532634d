"""HTTP connections that end: a client that does not read its answer, or never completes its request, is disconnected.

uvicorn waits for such clients without limit, and answers what is not HTTP before any of our code sees it.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from uvicorn.protocols.http.h11_impl import H11Protocol

from audit.web.guard import HEADERS

#: Seconds without progress after which a connection ends.
PATIENCE = 30.0


class PatientProtocol(H11Protocol):
    """HTTP/1.1 with a limit on how long a client may keep the server waiting."""

    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_limit()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_limit()  # a whole request has arrived: the rest is up to us
        else:
            self._continue_limit()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self._start_limit()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_limit()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_limit()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_limit()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, with the headers that every other answer has."""
        body = msg.encode("ascii", "replace")
        headers = {
            **HEADERS,
            "cache-control": "no-store",
            "content-type": "text/plain; charset=utf-8",
            "content-length": str(len(body)),
            "connection": "close",
        }
        lines = [
            f"HTTP/1.1 400 {HTTPStatus.BAD_REQUEST.phrase}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        self.transport.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        self.transport.close()

    def _continue_limit(self) -> None:
        """Keep a limit that runs: a client that sends one byte at a time gets no more time by it."""
        if self._limit is None:
            self._start_limit()

    def _start_limit(self) -> None:
        self._stop_limit()
        # Not `close`, which would wait until the client has read what was written.
        self._limit = asyncio.get_running_loop().call_later(PATIENCE, self.transport.abort)

    def _stop_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
