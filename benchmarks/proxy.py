"""A TCP proxy that adds latency and counts HTTP requests.

Every byte arrives half a round trip after it was sent, in both directions, without a limit on the
bytes in transit. The proxy runs in a thread of the benchmark, which is idle meanwhile.
"""

import asyncio
import threading
import weakref
from collections import Counter

_CHUNK = 1 << 16


class Requests:
    r"""Finds the starts of requests in the bytes that a client sends, and counts them by method.

    >>> counts = Counter()
    >>> requests = Requests(counts)
    >>> requests.feed(b"PUT /a HTTP/1.1\r\nContent-Length: 3\r\n\r\nGET")
    >>> requests.feed(b"GET /a HTT"); requests.feed(b"P/1.1\r\n\r\n")
    >>> dict(counts)
    {'PUT': 1, 'GET': 1}
    """

    def __init__(self, counts):
        self._counts = counts
        self._head = b""
        self._body = 0

    def feed(self, data):
        """Process the next bytes, split anywhere."""
        while data:
            if self._body:
                skipped = min(self._body, len(data))
                self._body -= skipped
                data = data[skipped:]
                continue
            head, end, rest = (self._head + data).partition(b"\r\n\r\n")
            if not end:
                self._head = head
                return
            self._head, data = b"", rest
            self._begin(head)

    def _begin(self, head):
        first, *fields = head.split(b"\r\n")
        self._counts[first.partition(b" ")[0].decode("latin-1")] += 1
        named = dict(field.lower().split(b":", 1) for field in fields)
        if b"transfer-encoding" in named:
            raise RuntimeError("a request without a length cannot be counted")
        self._body = int(named.get(b"content-length", 0))


class Proxy:
    """A proxy for a server on this machine. `round_trip` may be changed at any time."""

    def __init__(self, port):
        self.round_trip = 0.0  # seconds
        self.counts = Counter()
        self._server = port
        self._ends = weakref.WeakSet()  # of connections
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def url(self):
        """The address of the proxy."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self):
        self._thread.start()
        listening = asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=256)
        self._listener = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        self._port = self._listener.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_):
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _stop(self):
        self._listener.close()
        open_ones = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in open_ones:
            task.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)
        for end in self._ends:
            end.close()
        await asyncio.sleep(0)  # closed connections are released in the next iteration

    async def _serve(self, reader, writer):
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._server)
        except OSError:
            writer.close()
            return
        requests = Requests(self.counts)
        self._ends |= {writer, back}
        try:
            await asyncio.gather(
                self._carry(reader, back, requests.feed), self._carry(there, writer, None)
            )
        except asyncio.CancelledError:
            pass  # asyncio logs an error if the task of a connection ends as cancelled
        finally:
            for end in (writer, back):  # after the bytes in transit
                self._loop.call_later(self.round_trip / 2, end.close)

    async def _carry(self, reader, writer, feed):
        """Forward one direction until it ends; the end is forwarded with the same delay."""
        loop = asyncio.get_running_loop()
        data = b"."
        while data:
            try:
                data = await reader.read(_CHUNK)
            except OSError:
                data = b""
            if feed is not None:
                feed(data)
            do = (writer.write, data) if data else (writer.close,)
            if self.round_trip:
                loop.call_at(loop.time() + self.round_trip / 2, *do)
            else:
                do[0](*do[1:])
