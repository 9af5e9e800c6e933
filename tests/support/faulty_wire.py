"""A faulty network: an HTTP proxy before a real server that loses, delays, refuses and cuts.

It runs in threads of the test process, so that a test can set faults and see the traffic.
"""

import contextlib
import http.client
import socket
import threading
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit
from xml.sax.saxutils import escape

ALWAYS = 1_000_000
_CODES = {409: "ConditionalRequestConflict", 500: "InternalError", 503: "ServiceUnavailable"}
_HOP = ("connection", "keep-alive", "transfer-encoding", "content-length")


@dataclass(slots=True)
class Fault:
    """What goes wrong with requests of a method whose address contains `match`.

    `kind` is "drop" (the connection is closed), "hang" (no answer until the wire is healed), "cut"
    (half an answer), or the status of an answer. With `after`, the request reaches the server
    first. With `echo`, the answer repeats everything that was sent.
    """

    kind: str | int
    method: str
    match: str = ""
    after: bool = False
    times: int = 1
    skip: int = 0
    echo: bool = False

    def takes(self, method, path):
        """Whether the fault meets this request; counts it if so."""
        if method != self.method or self.match not in path or self.times == 0:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


@dataclass(frozen=True, slots=True)
class Read:
    """A GET that the server answered: its path, its range of bytes if it has one, its body."""

    path: str
    range: str | None
    size: int


@dataclass(slots=True)
class Meeting:
    """Holds the requests of a method whose address contains `match` until so many have arrived."""

    method: str
    match: str
    parties: int
    together: threading.Event = field(default_factory=threading.Event)
    arrived: int = 0

    def wait(self, method, path, lock):
        """Wait for the others; after a minute, `together` stays unset and nothing is held."""
        if method != self.method or self.match not in path:
            return
        with lock:
            self.arrived += 1
            if self.arrived == self.parties:
                self.together.set()
        if not self.together.wait(60):
            self.match = "\0"  # no address contains it


@dataclass(slots=True)
class Wire:
    """Pending faults, headers to strip, and the requests that were seen and that were applied.

    `reads` are the GETs that were answered. `meeting`, if set, holds requests back.
    """

    url: str = ""
    faults: list = field(default_factory=list)
    strip: set = field(default_factory=set)
    applied: list = field(default_factory=list)
    asked: list = field(default_factory=list)
    reads: list = field(default_factory=list)
    meeting: Meeting | None = None
    closed: threading.Event = field(default_factory=threading.Event)
    healed: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def heal(self):
        """Remove all faults and close the connections that hang."""
        with self.lock:
            self.faults, self.strip = [], set()
            self.healed.set()
            self.healed = threading.Event()

    def fault_of(self, method, path):
        """Return the fault that meets this request, or None."""
        with self.lock:
            self.asked.append((method, path))
            return next((fault for fault in self.faults if fault.takes(method, path)), None)


@contextlib.contextmanager
def before(server):
    """Yield a wire to a server, without faults at first."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    wire = Wire(f"http://127.0.0.1:{listener.getsockname()[1]}")
    threading.Thread(target=_listen, args=(wire, listener, server), daemon=True).start()
    try:
        yield wire
    finally:
        wire.closed.set()
        wire.heal()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
        listener.close()


def _listen(wire, listener, server):
    while not wire.closed.is_set():
        try:
            found, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_talk, args=(wire, found, server), daemon=True).start()


def _talk(wire, client, server):
    """Serve the requests of one connection in order."""
    with client, client.makefile("rb") as asked:
        with contextlib.suppress(OSError, http.client.HTTPException):
            while not wire.closed.is_set() and _pass_on(wire, client, asked, server):
                pass
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


def _pass_on(wire, client, asked, server):
    """Serve one request; return whether the connection can be used again."""
    first = asked.readline().decode("latin-1").split()
    if len(first) != 3:
        return False
    method, target, _ = first
    headers = http.client.parse_headers(asked)
    if headers.get("Expect", "").lower() == "100-continue":
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = asked.read(int(headers.get("Content-Length", 0)))
    path = unquote(target)
    fault = wire.fault_of(method, path)
    if wire.meeting is not None:
        wire.meeting.wait(method, path, wire.lock)
    if fault is None:
        client.sendall(_answer(*_ask(wire, server, method, target, headers, body), method))
        return True
    found = None
    if fault.after or fault.kind == "cut":
        found = _ask(wire, server, method, target, headers, body)
    if isinstance(fault.kind, int):
        said = (
            f"{method} {target} {headers.values()} {dict(headers)}"
            if fault.echo
            else "so says the wire"
        )
        client.sendall(_answer(fault.kind, [], _error(fault.kind, said), method))
        return True
    if fault.kind == "hang":
        wire.healed.wait()
    elif fault.kind == "cut":
        whole = _answer(*found, method)
        client.sendall(whole[: len(whole) - max(len(found[2]) // 2, 10)])
    return False


def _ask(wire, server, method, target, headers, body):
    """Let the server do it: status, headers and body of its answer."""
    place = urlsplit(server.url)
    there = http.client.HTTPConnection(place.hostname, place.port, timeout=300)
    try:
        there.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            if name.lower() not in (*wire.strip, "expect", "connection"):
                there.putheader(name, value)
        there.putheader("Connection", "close")
        there.endheaders(body)
        answer = there.getresponse()
        data = answer.read()
    finally:
        there.close()
    with wire.lock:
        wire.applied.append((method, unquote(target), answer.status))
        if method == "GET":
            wire.reads.append(Read(unquote(target), headers.get("Range"), len(data)))
    length = answer.getheader("Content-Length", "0") if method == "HEAD" else str(len(data))
    kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP]
    return answer.status, [*kept, ("Content-Length", length)], data


def _answer(status, headers, body, method):
    if not any(name == "Content-Length" for name, _ in headers):
        headers = [*headers, ("Content-Length", str(len(body)))]
    lines = [f"HTTP/1.1 {status} {http.client.responses[status]}"]
    lines += [f"{name}: {value}" for name, value in headers]
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    return head if method == "HEAD" else head + body


def _error(status, said):
    code = _CODES.get(status, "Refused")
    return f"<Error><Code>{code}</Code><Message>{escape(said)}</Message></Error>".encode()
