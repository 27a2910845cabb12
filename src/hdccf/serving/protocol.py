"""uvicorn's HTTP protocol with limits: a request must arrive in time, and its head has a largest size."""

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hdccf.serving.middleware import Problem, problem, response

MAX_HEAD_BYTES = 64 << 10


class LimitedProtocol(HttpToolsProtocol):
    """Closes connections whose request does not arrive, and refuses heads that are too large."""

    def __init__(self, *arguments: Any, seconds: float, **named: Any) -> None:
        """A head has so many `seconds`; a body twice as many, as the gateway answers late ones itself."""
        super().__init__(*arguments, **named)
        self._seconds = seconds
        self._deadline: asyncio.TimerHandle | None = None
        self._awaits_head = True
        self._head_bytes = 0  # received of a head that is not complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_within(self._seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_within(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._awaits_head:
            self._head_bytes += len(data)
            if self._deadline is None:
                self._expect_within(self._seconds)
        super().data_received(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(_TOO_LARGE)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_within(self._seconds)

    def on_headers_complete(self) -> None:
        self._awaits_head, self._head_bytes = False, 0
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            self._head_bytes = MAX_HEAD_BYTES + 1
            raise ValueError  # the parser stops, and calls `send_400_response`
        self._expect_within(2 * self._seconds)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._awaits_head = True
        self._expect_within(None)
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(
            _TOO_LARGE if self._head_bytes > MAX_HEAD_BYTES else problem(400, "this is no HTTP request")
        )

    def _expect_within(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._is_late)

    def _is_late(self) -> None:
        if self.flow.read_paused:  # it is we who do not read
            self._expect_within(self._seconds)
        elif self._head_bytes:
            self._refuse(problem(408, f"the head of the request did not come within {self._seconds:g} s"))
        else:
            self.transport.close()

    def _refuse(self, found: Problem) -> None:
        answer = response(found, {"Connection": "close"})
        lines = [f"HTTP/1.1 {found.status} {HTTPStatus(found.status).phrase}".encode()]
        lines += [name + b": " + value for name, value in answer.raw_headers]
        self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + bytes(answer.body))
        self.transport.close()


_TOO_LARGE = problem(431, f"the head of the request is larger than {MAX_HEAD_BYTES:,} bytes; send less")
