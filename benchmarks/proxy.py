"""A wire with a length: a TCP proxy that delays, and counts the HTTP requests that pass.

Every byte arrives half a round trip after it was sent, in either direction, however many are on
their way. It runs in a thread of the benchmark, which has nothing else to do meanwhile.
"""

import asyncio
import threading
import weakref
from collections import Counter

_CHUNK = 1 << 16


class Requests:
    """Finds where requests begin in what a client sends, and counts them by method.

    >>> seen = Counter()
    >>> sent = Requests(seen)
    >>> sent.feed(b"PUT /a HTTP/1.1\\r\\nContent-Length: 3\\r\\n\\r\\nGET")
    >>> sent.feed(b"GET /a HTT"); sent.feed(b"P/1.1\\r\\n\\r\\n")
    >>> dict(seen)
    {'PUT': 1, 'GET': 1}
    """

    def __init__(self, counts):
        self._counts = counts
        self._head = b""
        self._body = 0

    def feed(self, data):
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
    """Between clients and a server on this machine. `round_trip` may be changed at any time."""

    def __init__(self, port):
        self.round_trip = 0.0  # seconds
        self.counts = Counter()
        self._server = port
        self._ends = weakref.WeakSet()  # of connections
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def url(self):
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
        await asyncio.sleep(0)  # what was closed is let go of in the loop's next turn

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
            pass  # asyncio's streams complain of a task that ends as cancelled
        finally:
            for end in (writer, back):  # what is on its way arrives first
                self._loop.call_later(self.round_trip / 2, end.close)

    async def _carry(self, reader, writer, feed):
        """One direction, until it ends; then the other end hears of it, as late as of the rest."""
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
