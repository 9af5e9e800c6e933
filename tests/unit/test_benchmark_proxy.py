"""The benchmark proxy: request counts and delays."""

import http.client
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(scope="module", autouse=True)
def _repository():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2]))
        yield


class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_bytes_arrive_complete_delayed_and_counted(caplog):
    from benchmarks.proxy import Proxy

    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    body = bytes(range(256)) * 2000
    with Proxy(server.server_port) as proxy:
        client = http.client.HTTPConnection(proxy.url.removeprefix("http://"))
        for trip in (0.0, 0.2):
            proxy.round_trip = trip
            started = time.monotonic()
            client.request("PUT", "/x", body=body)
            assert client.getresponse().read() == body
            assert time.monotonic() - started >= trip
        assert proxy.counts == {"PUT": 2}
    client.close()  # after the proxy: it still ends silently
    assert caplog.records == []
    server.shutdown()
    server.server_close()


METHODS = ("GET", "PUT", "POST", "DELETE", "HEAD")


@given(
    st.lists(st.tuples(st.sampled_from(METHODS), st.binary(max_size=40)), max_size=6),
    st.lists(st.integers(1, 30), min_size=1, max_size=20),
)
def test_requests_are_found_in_any_chunking(requests, cuts):
    from benchmarks.proxy import Requests

    stream = b"".join(
        f"{method} /k HTTP/1.1\r\nHost: a\r\ncontent-LENGTH: {len(body)}\r\n\r\n".encode() + body
        for method, body in requests
    )
    counts = Counter()
    seen = Requests(counts)
    at = number = 0
    while at < len(stream):
        size = cuts[number % len(cuts)]
        seen.feed(stream[at : at + size])
        at, number = at + size, number + 1
    assert counts == Counter(method for method, _ in requests)
