"""An S3 server in memory with simulated latency, for measuring clients.

A request takes it about 50 µs. A real server and a proxy take fifteen times as long, which with few
cores would be most of what is measured. Every request is executed half a round trip after it
arrived, and the response is sent another half later. Conditional puts are atomic, since one thread
executes all requests. Dates and multipart uploads are not supported.
"""

import bisect
import heapq
import re
import selectors
import socket
import threading
import time
from collections import Counter
from itertools import count
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape, unescape

PAGE = 1000
_TIME = "2026-01-01T00:00:00.000Z"
_DATE = "Thu, 01 Jan 2026 00:00:00 GMT"
_XML = ("Content-Type: application/xml",)
_WHY = {200: "OK", 204: "No Content", 206: "Partial Content", 404: "Not Found", 412: "No"}


class Objects:
    """A bucket: keys, contents and entity tags, and the responses to requests.

    >>> objects = Objects()
    >>> objects.answer("PUT", "a/1", {}, {"if-none-match": "*"}, b"x")[:15]
    b'HTTP/1.1 200 OK'
    >>> objects.answer("PUT", "a/1", {}, {"if-none-match": "*"}, b"y")[:12]
    b'HTTP/1.1 412'
    >>> objects.answer("GET", "a/1", {}, {}, b"")[-1:]
    b'x'
    """

    def __init__(self):
        self._contents = {}  # key -> (content, tag)
        self._keys = []
        self._tags = count(1)

    def answer(self, method, key, query, headers, body):
        """Execute a request; returns the whole response."""
        if not key:
            return self._of_bucket(method, query, body)
        if method == "PUT":
            return self._put(key, headers, body)
        if method == "DELETE":
            self._delete(key)
            return b"HTTP/1.1 204 No Content\r\n\r\n"
        found = self._contents.get(key)
        if found is None:
            return _error(404, "NoSuchKey", method)
        content, tag = found
        fields = (f"ETag: {tag}", f"Last-Modified: {_DATE}", "Accept-Ranges: bytes")
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", headers.get("range", ""))
        if wanted is None:
            return _response(200, content, fields, method)
        first, last = wanted.groups()
        start = int(first) if first else max(len(content) - int(last), 0)
        stop = min(int(last) + 1, len(content)) if first and last else len(content)
        fields += (f"Content-Range: bytes {start}-{stop - 1}/{len(content)}",)
        return _response(206, content[start:stop], fields, method)

    def _put(self, key, headers, body):
        if key in self._contents and headers.get("if-none-match") == "*":
            return _error(412, "PreconditionFailed", "PUT")
        if key not in self._contents:
            bisect.insort(self._keys, key)
        tag = f'"{next(self._tags):032x}"'
        self._contents[key] = (body, tag)
        return _response(200, b"", (f"ETag: {tag}",), "PUT")

    def _delete(self, key):
        if self._contents.pop(key, None) is not None:
            del self._keys[bisect.bisect_left(self._keys, key)]

    def _of_bucket(self, method, query, body):
        if method == "POST":
            keys = re.findall(r"<Key>(.*?)</Key>", body.decode())
            for key in keys:
                self._delete(unescape(key, {"&quot;": '"', "&apos;": "'"}))
            done = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            return _response(200, f"<DeleteResult>{done}</DeleteResult>".encode(), _XML, method)
        return _response(200, self._page(query) if method == "GET" else b"", _XML, method)

    def _page(self, query):
        """A page of a listing, with common prefixes if the request has a delimiter."""
        prefix, delimiter = (query.get(name, [""])[0] for name in ("prefix", "delimiter"))
        after = query.get("continuation-token", query.get("start-after", [""]))[0]
        position = bisect.bisect_left(self._keys, prefix)
        if after:
            position = max(position, bisect.bisect_right(self._keys, after))
        items, seen, last, more = [], set(), "", False
        for key in self._keys[position : position + (len(self._keys) if delimiter else PAGE + 1)]:
            if not key.startswith(prefix):
                break
            if len(items) == PAGE:
                more = True
                break
            folder = key[: key.find(delimiter, len(prefix)) + 1] if delimiter else ""
            last = key
            if len(folder) > len(prefix):
                if folder not in seen:
                    text = f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
                    items.append(text)
                    seen.add(folder)
                continue
            content, tag = self._contents[key]
            items.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{_TIME}</LastModified>"
                f"<ETag>{escape(tag)}</ETag><Size>{len(content)}</Size></Contents>"
            )
        token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if more else ""
        return (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult'
            ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bucket</Name>'
            f"<Prefix>{escape(prefix)}</Prefix><KeyCount>{len(items)}</KeyCount>"
            f"<MaxKeys>{PAGE}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>"
            f"{token}{''.join(items)}</ListBucketResult>"
        ).encode()


def _response(status, body, fields, method):
    lines = (f"HTTP/1.1 {status} {_WHY[status]}", f"Content-Length: {len(body)}", *fields)
    head = "\r\n".join((*lines, "", "")).encode()
    return head if method == "HEAD" else head + body


def _error(status, code, method):
    return _response(status, f"<Error><Code>{code}</Code></Error>".encode(), _XML, method)


class _Client:
    """A connection; `received` are the bytes of the next request so far."""

    def __init__(self, connection):
        self.connection, self.received, self.to_send, self.busy = connection, b"", b"", False


class MemoryS3:
    """The server, in a thread. `round_trip` (seconds) may be changed at any time.

    `counts` has the number of requests by method. All bucket names refer to the same bucket.
    """

    def __init__(self):
        self.round_trip = 0.0
        self.counts = Counter()
        self._objects = Objects()
        self._selector = selectors.DefaultSelector()
        self._later, self._numbers = [], count()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self):
        """The address of the server."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self):
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._listener.setblocking(False)
        self._port = self._listener.getsockname()[1]
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._wake.send(b".")
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()
        self._wake.close()
        self._selector.close()

    def _run(self):
        while True:
            wait = max(self._later[0][0] - time.monotonic(), 0) if self._later else None
            for key, mask in self._selector.select(wait):
                if key.fileobj is self._woken:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._serve(key.data, mask)
            while self._later and self._later[0][0] <= time.monotonic():
                _, _, job, client, argument = heapq.heappop(self._later)
                job(client, argument)

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(connection, selectors.EVENT_READ, _Client(connection))

    def _serve(self, client, mask):
        if mask & selectors.EVENT_WRITE:
            self._send(client, b"")
        if not mask & selectors.EVENT_READ:
            return
        try:
            data = client.connection.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(client)
            return
        client.received += data
        self._next(client)

    def _close(self, client):
        self._selector.unregister(client.connection)
        client.connection.close()
        client.connection = None

    def _next(self, client):
        """Start the next request if it has arrived completely and no other is in progress."""
        head, end, rest = client.received.partition(b"\r\n\r\n")
        if client.busy or not end:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        size = int(headers.get("content-length", 0))
        if len(rest) < size:
            return
        client.received, client.busy = rest[size:], True
        method, target, _ = first.split(" ")
        self.counts[method] += 1
        path, _, query = target.partition("?")
        key = unquote(path).lstrip("/").partition("/")[2]
        request = (method, key, parse_qs(query, keep_blank_values=True), headers, rest[:size])
        self._after(self._execute, client, request)

    def _after(self, job, client, argument):
        """Schedule a job for half a round trip later."""
        if self.round_trip:
            at = time.monotonic() + self.round_trip / 2
            heapq.heappush(self._later, (at, next(self._numbers), job, client, argument))
        else:
            job(client, argument)

    def _execute(self, client, request):
        self._after(self._answer, client, self._objects.answer(*request))

    def _answer(self, client, response):
        client.busy = False
        if client.connection is not None:
            self._send(client, response)
        if client.connection is not None:
            self._next(client)

    def _send(self, client, data):
        """Send as much as the connection accepts now, the rest when it accepts more."""
        client.to_send += data
        try:
            sent = client.connection.send(client.to_send)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._close(client)
            return
        client.to_send = client.to_send[sent:]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.to_send else 0)
        if self._selector.get_key(client.connection).events != events:
            self._selector.modify(client.connection, events, client)
