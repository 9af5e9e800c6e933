"""Reads many small objects of a bucket at once, over connections that one thread drives.

A client library spends 150 to 300 µs of processor time on a request, and the commits of a log
without a checkpoint are thousands: that is more than everything else that opening a table takes.
Here a request takes about 25 µs. Only a complete response counts, with an object or the statement
that there is none. Whatever else happens is left to the client library, which knows how to report
it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import selectors
import socket
import ssl
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit
from weakref import finalize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Connections to begin with. Each complete response permits one more, so that their number doubles
# with every round trip: a burst of hundreds would overflow the queue of many servers.
_FIRST_CONNECTIONS = 32
_MAX_CONNECTIONS = 512
_MIN_CONNECTIONS = 8
# Connections may take one in so many of the files that the process may open.
_FILES_PER_CONNECTION = 4
_IDLE_CONNECTIONS = 8  # that are kept for the next reads
_ADDRESS_SECONDS = 60.0  # how long the address of a server is reused
_READ_BYTES = 1 << 16
_MAX_HEAD_BYTES = 1 << 16
# The server asks for fewer requests: they are sent again, over half as many connections.
_BUSY_STATUS = (b"429", b"500", b"502", b"503", b"504")
_SIGNATURE_SECONDS = 60.0  # how long the time in a signature is reused; S3 accepts 15 minutes
_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy")


@dataclass(frozen=True, slots=True)
class Bucket:
    """Where objects are, and how requests for them are signed: not at all without a key."""

    host: str
    port: int
    tls: bool
    path: str  # of all keys, encoded, ends with a slash
    region: str
    key: str | None = field(default=None, repr=False)
    secret: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    @property
    def authority(self) -> str:
        """The value of the `Host` header."""
        usual = self.port == (443 if self.tls else 80)
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if usual else f"{host}:{self.port}"


def find_bucket(endpoint: str | None, bucket: str, prefix: str, region: str) -> Bucket | None:
    """Return the place of a table, without credentials; None if it is not reached directly.

    That is behind a proxy, and at an endpoint with a path of its own.
    """
    if any(os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXY_VARIABLES):
        return None
    parts = urlsplit(endpoint or f"https://s3.{region}.amazonaws.com")
    if parts.path not in ("", "/") or parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    tls = parts.scheme == "https"
    path = "/".join(filter(None, ("", bucket, prefix.strip("/"))))
    port = parts.port or (443 if tls else 80)
    return Bucket(parts.hostname, port, tls, f"/{_encoded(path)}/", region)


def _encoded(path: str) -> str:
    """Encode a path as signatures require it."""
    return quote(path.lstrip("/"), safe="/-_.~")


class _Requests:
    """Makes signed requests (AWS Signature Version 4) with one time."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.made_at = time.monotonic()
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        headers = {"host": bucket.authority}
        if bucket.key is not None:
            headers |= {"x-amz-content-sha256": _EMPTY_SHA256, "x-amz-date": moment}
            if bucket.token is not None:
                headers["x-amz-security-token"] = bucket.token
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._end = f" HTTP/1.1\r\n{lines}"
        if bucket.key is None or bucket.secret is None:
            return
        scope = f"{moment[:8]}/{bucket.region}/s3/aws4_request"
        names = ";".join(headers)
        canonical = "".join(f"{name}:{value}\n" for name, value in headers.items())
        self._canonical_end = f"\n\n{canonical}\n{names}\n{_EMPTY_SHA256}"
        self._to_sign = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n"
        self._end += (
            f"authorization: AWS4-HMAC-SHA256 Credential={bucket.key}/{scope},"
            f" SignedHeaders={names}, Signature="
        )
        key = f"AWS4{bucket.secret}".encode()
        for text in scope.split("/"):
            key = hmac.digest(key, text.encode(), "sha256")
        self._signature = hmac.new(key, digestmod="sha256")

    def get(self, key: str) -> bytes:
        """Return the request for an object."""
        path = self._bucket.path + _encoded(key)
        if self._bucket.key is None:
            return f"GET {path}{self._end}\r\n".encode()
        canonical = f"GET\n{path}{self._canonical_end}"
        signature = self._signature.copy()
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        signature.update((self._to_sign + digest).encode())
        return f"GET {path}{self._end}{signature.hexdigest()}\r\n\r\n".encode()


@dataclass(slots=True, eq=False)
class _Connection:
    """A connection, and the response that it is receiving."""

    socket: Any  # a socket, or an `SSLSocket`
    ready: bool = False
    number: int = -1  # of the object that was requested
    head: bytes = b""  # what arrived of the response's head
    body: list[bytes] = field(default_factory=list)
    missing: int = -1  # bytes of the body that are still to come; -1 before the head is complete
    absent: bool = False  # the response says that the object does not exist
    last: bool = False  # the server closes the connection after this response


class Connections:
    """What reads of one bucket share: connections that are kept, and what makes new ones."""

    def __init__(self, bucket: Bucket) -> None:
        """Connect to nothing yet."""
        self.bucket = bucket
        self.idle: deque[_Connection] = deque()
        self.tls: ssl.SSLContext | None = None
        self._addresses: list[Any] = []
        self._found_at = float("-inf")
        self._requests = _Requests(bucket)
        finalize(self, _close_all, self.idle)

    @property
    def requests(self) -> _Requests:
        """What makes requests."""
        if time.monotonic() - self._requests.made_at > _SIGNATURE_SECONDS:
            self._requests = _Requests(self.bucket)
        return self._requests

    def prepare(self) -> bool:
        """Look the server up, unless that was done recently; return False if it fails."""
        if time.monotonic() - self._found_at < _ADDRESS_SECONDS:
            return True
        where = self.bucket.host, self.bucket.port
        try:
            self._addresses = socket.getaddrinfo(*where, type=socket.SOCK_STREAM)
            if self.bucket.tls and self.tls is None:
                self.tls = ssl.create_default_context()
        except OSError:
            return False
        self._found_at = time.monotonic()
        return True

    def connect(self) -> _Connection | None:
        """Begin to connect; None if that fails at once."""
        family, kind, protocol, _, address = self._addresses[0]
        try:
            plain = socket.socket(family, kind, protocol)
        except OSError:  # too many open files
            return None
        try:
            plain.setblocking(False)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.connect_ex(address)
            if self.tls is None:
                return _Connection(plain)
            return _Connection(
                self.tls.wrap_socket(
                    plain, server_hostname=self.bucket.host, do_handshake_on_connect=False
                )
            )
        except (OSError, ValueError):
            plain.close()
            return None


class _Refused(Exception):
    """A response that does not give the object; `busy` if it asks for fewer requests."""

    def __init__(self, *, busy: bool = False) -> None:
        super().__init__()
        self.busy = busy


class ManyReads:
    """Reads objects in order, ahead of what is asked for by one request per connection."""

    def __init__(self, connections: Connections, keys: Sequence[str]) -> None:
        """Send nothing yet."""
        self._shared = connections
        self._keys = keys
        # Objects that were read and not returned; None for those that do not exist.
        self._found: dict[int, bytes | None] = {}
        self._returned = 0
        self._complete = 0  # objects that were read, up to the first that was not
        self._size = 0  # of those that are complete and were not returned
        self._waiting = deque(range(len(keys)))
        self._selector = selectors.DefaultSelector()
        self._connections: set[_Connection] = set()
        self._unready = 0  # connections that are being made
        self._most = min(_MAX_CONNECTIONS, max(_open_files_limit() // _FILES_PER_CONNECTION, 1))
        self._wanted = min(_FIRST_CONNECTIONS, self._most)
        # Requests that may still be refused because there are too many, and that may still fail.
        self._repeats = len(keys) // 4 + _FIRST_CONNECTIONS
        self._failures = len(keys) // 64 + _FIRST_CONNECTIONS
        self.close = finalize(self, _close_all, self._connections, self._selector)

    def start(self) -> None:
        """Send requests, as far as there are connections that were kept."""
        if self._shared.prepare():
            self._open_connections()

    def take(self, enough: float, seconds: float, silent_seconds: float) -> list[bytes | None]:
        """Return the next objects: at least `enough` bytes of them, or all of the rest.

        None stands for an object that does not exist.

        Fewer, or none, if an object could not be read: it and the rest are left to the caller.
        Waits at most `seconds`, and at most `silent_seconds` for any answer of the server.
        """
        if not self.close.alive:
            return []
        try:
            self._run(enough, time.monotonic() + seconds, silent_seconds)
        except BaseException:
            self.close()
            raise
        found = [self._found.pop(number) for number in range(self._returned, self._complete)]
        if self._size < enough:
            self.close()
        self._returned, self._size = self._complete, 0
        return found

    def _run(self, enough: float, deadline: float, silent_seconds: float) -> None:
        """Read until there is enough, or reason to leave the rest to others."""
        if not self._shared.prepare():
            return
        while self._size < enough and self._open_connections():
            left = min(deadline - time.monotonic(), silent_seconds)
            events = self._selector.select(max(left, 0.0))
            if not events:
                return
            for key, _ in events:
                self._step(key.data)

    def _open_connections(self) -> bool:
        """Open as many connections as are of use; return whether anything is left to do."""
        while len(self._connections) < self._wanted and self._unready < len(self._waiting):
            if not self._reuse() and not self._connect():
                self._give_up()
        return bool(self._connections)

    def _give_up(self) -> None:
        """Request nothing more."""
        self._waiting.clear()
        for connection in [each for each in self._connections if each.number < 0]:
            self._drop(connection)

    def _reuse(self) -> bool:
        """Send a request over a connection that was kept; return False if there is none."""
        try:
            connection = self._shared.idle.pop()
        except IndexError:
            return False
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        self._connections.add(connection)
        self._do(self._send, connection)
        return True

    def _connect(self) -> bool:
        connection = self._shared.connect()
        if connection is None:
            return False
        self._selector.register(connection.socket, selectors.EVENT_WRITE, connection)
        self._connections.add(connection)
        self._unready += 1
        return True

    def _drop(self, connection: _Connection) -> None:
        self._unready -= not connection.ready
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self._connections.discard(connection)

    def _step(self, connection: _Connection) -> None:
        """Do what a connection is ready for."""
        if connection in self._connections:  # not dropped since
            self._do(self._receive if connection.ready else self._finish_connecting, connection)

    def _do(self, action: Callable[[_Connection], None], connection: _Connection) -> None:
        """Do something with a connection, and what follows if it fails."""
        try:
            action(connection)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError, InterruptedError):
            return  # the rest has not arrived yet
        except _Refused as refused:
            self._repeats -= 1
            if refused.busy and self._repeats > 0:
                self._most = self._wanted = max(self._wanted // 2, _MIN_CONNECTIONS)
                self._repeat(connection)
            else:
                self._drop(connection)
                self._give_up()
        except OSError as error:
            self._failures -= 1
            self._repeat(connection)
            if self._failures <= 0 or isinstance(error, ssl.SSLCertVerificationError):
                self._give_up()

    def _repeat(self, connection: _Connection) -> None:
        """Close a connection; what was requested over it is requested again, before all others."""
        if connection.number >= 0:
            self._waiting.appendleft(connection.number)
        self._drop(connection)

    def _finish_connecting(self, connection: _Connection) -> None:
        opened = connection.socket
        code = opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        if self._shared.tls is not None:
            try:
                opened.do_handshake()
            except ssl.SSLWantReadError:
                self._selector.modify(opened, selectors.EVENT_READ, connection)
                return
            except ssl.SSLWantWriteError:
                self._selector.modify(opened, selectors.EVENT_WRITE, connection)
                return
        connection.ready = True
        self._unready -= 1
        self._selector.modify(opened, selectors.EVENT_READ, connection)
        self._send(connection)

    def _send(self, connection: _Connection) -> None:
        """Request the next object over an idle connection; keep or close it if there is none."""
        if not self._waiting or len(self._connections) > self._wanted:
            if len(self._shared.idle) < _IDLE_CONNECTIONS:
                self._selector.unregister(connection.socket)
                self._connections.discard(connection)
                self._shared.idle.append(connection)
            else:
                self._drop(connection)
            return
        connection.number = self._waiting.popleft()
        request = self._shared.requests.get(self._keys[connection.number])
        try:
            sent = connection.socket.send(request)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            sent = 0
        if sent < len(request):  # an idle connection takes it at once
            raise ConnectionError

    def _receive(self, connection: _Connection) -> None:
        """Take what has arrived of a response; at its end, request the next object."""
        while True:
            data = connection.socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionError
            if connection.missing < 0:
                data = _take_head(connection, data)
                if connection.missing < 0:
                    continue
            if len(data) > connection.missing:  # more than was announced
                raise _Refused
            connection.missing -= len(data)
            connection.body.append(data)
            if connection.missing == 0:
                break
        number, content = connection.number, b"".join(connection.body)
        if connection.absent and b"<Code>NoSuchKey</Code>" not in content:
            raise _Refused  # it may be the bucket that does not exist
        self._found[number] = None if connection.absent else content
        while self._complete in self._found:
            self._size += len(self._found[self._complete] or b"")
            self._complete += 1
        self._wanted = min(self._wanted + 1, self._most)
        connection.number, connection.missing = -1, -1
        connection.head, connection.body = b"", []
        if connection.last:
            self._drop(connection)
        else:
            self._send(connection)


def _close_all(
    connections: set[_Connection] | deque[_Connection],
    selector: selectors.BaseSelector | None = None,
) -> None:
    for connection in connections:
        connection.socket.close()
    connections.clear()
    if selector is not None:
        selector.close()


def _take_head(connection: _Connection, data: bytes) -> bytes:
    """Take the head of a response; return what follows it, which is nothing before its end.

    Raises `_Refused` unless the object follows, with its length.
    """
    connection.head += data
    head, end, rest = connection.head.partition(b"\r\n\r\n")
    if not end:
        if len(head) > _MAX_HEAD_BYTES:
            raise _Refused
        return b""
    status, *lines = head.split(b"\r\n")
    version, _, code = status.partition(b" ")
    if version != b"HTTP/1.1" or code[:3] not in (b"200", b"404"):
        raise _Refused(busy=code[:3] in _BUSY_STATUS)
    connection.absent = code[:3] == b"404"
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, _, value = line.partition(b":")
        name = name.lower()
        if name in headers and name == b"content-length":
            raise _Refused
        headers[name] = value.strip()
    length = headers.get(b"content-length", b"")
    if not length.isdigit() or b"transfer-encoding" in headers:
        raise _Refused
    connection.missing = int(length)
    connection.last = headers.get(b"connection", b"").lower() == b"close"
    return rest


def _open_files_limit() -> int:
    """Return how many files the process may have open."""
    try:
        import resource
    except ImportError:  # Windows, whose `select` takes 512 sockets
        return _MAX_CONNECTIONS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_CONNECTIONS * _FILES_PER_CONNECTION if soft < 0 else int(soft)
