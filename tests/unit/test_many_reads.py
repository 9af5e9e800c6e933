"""Concurrent reads of many objects: results, fallback to the client library, signatures."""

import contextlib
import socket
import ssl
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest

from arrowlog.errors import StoreUnavailable
from arrowlog.storage import PutOutcome, open_store
from arrowlog.storage.many_reads import Bucket, Connections, ManyReads, find_bucket

pytest.importorskip("obstore")
KEYS = [f"folder/{number:05d}" for number in range(300)]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s"
MISSING = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
BUSY = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n"


def content(key):
    return f"content of {key}".encode() * (1 + int(key[-1]))


def answer(key):
    return OK % (len(content(key)), content(key))


class Server:
    """Answers each GET with the bytes that a function of the key and its attempt returns.

    None closes the connection. Each connection is served by a thread.
    """

    class Broken(bytes):
        """What is sent before the connection is closed."""

    def __init__(self, respond, context=None):
        self.respond, self.context = respond, context
        self.asked, self.heads, self.connections, self.open, self.most = {}, [], 0, 0, 0
        self.lock, self.method = threading.Lock(), threading.local()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self.listener.getsockname()[1]

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.close()

    @property
    def bucket(self):
        return Bucket("127.0.0.1", self.port, self.context is not None, "/bucket/", "us-east-1")

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with self.lock:
            self.connections += 1
            self.open += 1
            self.most = max(self.most, self.open)
        try:
            with contextlib.suppress(OSError), connection:
                if self.context is not None:
                    connection = self.context.wrap_socket(connection, server_side=True)
                while head := self._read_head(connection):
                    self.method.value = head.split(b" ")[0]
                    key = head.split(b" ")[1].decode().removeprefix("/bucket/")
                    with self.lock:
                        self.heads.append(head)
                        self.asked[key] = attempt = self.asked.get(key, 0) + 1
                    data = self.respond(key, attempt)
                    if data is None:
                        return
                    connection.sendall(data)
                    if isinstance(data, Server.Broken):
                        return
        finally:
            connection.close()
            with self.lock:
                self.open -= 1

    def _read_head(self, connection):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            data = connection.recv(4096)
            if not data:
                return b""
            head += data
        return head


def read_all(bucket, keys=KEYS, enough=float("inf")):
    reads, found = ManyReads(Connections(bucket), keys), []
    while taken := reads.take(enough, 20, 5):
        found += taken
    assert not reads.close.alive
    return found


@pytest.mark.parametrize("enough", [1, 1000, float("inf")])
def test_objects_are_returned_in_order(enough):
    with Server(lambda key, _: answer(key)) as server:
        assert read_all(server.bucket, enough=enough) == [content(key) for key in KEYS]
        assert set(server.asked.values()) == {1}


def test_connections_are_closed():
    with Server(lambda key, _: answer(key)) as server:
        reads = ManyReads(Connections(server.bucket), KEYS)
        assert reads.take(1, 20, 5)
        del reads  # abandoned halfway
        read_all(server.bucket)
        for _ in range(500):
            if not server.open:
                break
            threading.Event().wait(0.01)
        assert server.open == 0


def test_responses_of_any_size_are_read():
    sizes = {"empty": 0, "one": 1, "large": 3_000_000, "page": 1 << 16}
    bodies = {key: b"x" * size for key, size in sizes.items()}
    with Server(lambda key, _: OK % (len(bodies[key]), bodies[key])) as server:
        assert read_all(server.bucket, list(bodies)) == list(bodies.values())


@pytest.mark.parametrize(
    "bad",
    [
        MISSING,
        b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 301 Moved\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxy",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nmore than announced",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\nx",
        b"not HTTP at all\r\n\r\n",
        b"x" * 100_000,
    ],
)
def test_incomplete_response_is_left_to_the_caller(bad):
    def respond(key, _):
        return bad if key == KEYS[100] else answer(key)

    with Server(respond) as server:
        assert read_all(server.bucket) == [content(key) for key in KEYS[:100]]


@pytest.mark.parametrize("cut", [0, 10, 60])
def test_broken_connection_is_retried(cut):
    def respond(key, attempt):
        if key.endswith("07") and attempt == 1:
            return Server.Broken(answer(key)[:cut])
        if key.endswith("3"):  # closes, as announced
            return answer(key).replace(b"OK\r\n", b"OK\r\nConnection: close\r\n")
        return answer(key)

    with Server(respond) as server:
        assert read_all(server.bucket) == [content(key) for key in KEYS]


def test_permanently_broken_connections_are_abandoned():
    with Server(lambda _key, _: None) as server:
        assert read_all(server.bucket) == []
        assert sum(server.asked.values()) < 200


def test_busy_server_gets_fewer_connections():
    with Server(lambda key, _: BUSY if server.open > 12 else answer(key)) as server:
        assert read_all(server.bucket) == [content(key) for key in KEYS]
    with Server(lambda _key, _: BUSY) as server:  # forever
        assert read_all(server.bucket) == []
        assert sum(server.asked.values()) < 3 * len(KEYS)


def test_unresponsive_server_times_out():
    stop = threading.Event()
    with Server(lambda key, _: stop.wait(20) and None if key == KEYS[9] else answer(key)) as server:
        reads = ManyReads(Connections(server.bucket), KEYS)
        assert reads.take(float("inf"), 20, 0.3) == [content(key) for key in KEYS[:9]]
        assert reads.take(float("inf"), 20, 0.3) == []
        stop.set()


def test_refused_connection_returns_nothing():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert read_all(Bucket("127.0.0.1", port, False, "/bucket/", "us-east-1")) == []
    assert read_all(Bucket("no-such-host.invalid", 80, False, "/b/", "us-east-1")) == []


def test_open_file_limit_limits_connections(monkeypatch):
    monkeypatch.setattr("arrowlog.storage.many_reads._open_files_limit", lambda: 20)
    with Server(lambda key, _: answer(key)) as server:
        assert read_all(server.bucket) == [content(key) for key in KEYS]
        assert server.most <= 5


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A server's TLS context, and the file with its certificate."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tests")])
    now = datetime.now(UTC)
    host = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(1)).not_valid_after(now + timedelta(1))
    signed = builder.add_extension(host, critical=False).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    folder = tmp_path_factory.mktemp("tls")
    (folder / "cert.pem").write_bytes(signed.public_bytes(pem))
    (folder / "key.pem").write_bytes(key.private_bytes(pem, *plain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context, str(folder / "cert.pem")


def test_tls_verifies_the_certificate_and_host_name(certificate, monkeypatch):
    context, authority = certificate
    with Server(lambda key, _: answer(key), context) as server:
        assert read_all(server.bucket) == []  # the certificate is not trusted
        assert server.connections <= 32
        assert not server.asked
        monkeypatch.setenv("SSL_CERT_FILE", authority)
        assert read_all(server.bucket) == [content(key) for key in KEYS]
        assert read_all(replace(server.bucket, host="localhost")) == []  # another name


@pytest.mark.parametrize("token", [None, "a+token/with="])
@pytest.mark.parametrize("key", ["plain", "folder/a b+c%d,é~(1)=$.json"])
def test_signatures_equal_botocore(monkeypatch, token, key):
    botocore = pytest.importorskip("botocore.auth")
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    secret = "a/secret+of=tests"
    with Server(lambda _key, _: OK % (1, b"x")) as server:
        bucket = replace(server.bucket, key="AKIATESTS", secret=secret, token=token)
        assert read_all(bucket, [key]) == [b"x"]
    first, *lines = server.heads[0].decode().strip().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    ours = headers.pop("authorization")
    path = first.split(" ")[1]
    signer = botocore.S3SigV4Auth(Credentials("AKIATESTS", secret, token), "s3", "us-east-1")
    request = AWSRequest("GET", f"http://127.0.0.1:{server.port}{path}", headers)
    request.context["timestamp"] = headers["x-amz-date"]
    # As `S3SigV4Auth.add_auth`, with the time of the request.
    canonical = signer.canonical_request(request)
    signature = signer.signature(signer.string_to_sign(request, canonical), request)
    assert ours.endswith(f"Signature={signature}")
    assert ("x-amz-security-token" in headers) == (token is not None)


def test_bucket_address_from_endpoint_and_environment(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    aws = find_bucket(None, "b", "a table", "eu-west-1")
    assert (aws.authority, aws.tls, aws.path) == (
        "s3.eu-west-1.amazonaws.com",
        True,
        "/b/a%20table/",
    )
    assert find_bucket("http://host:9000/", "b", "", "r").authority == "host:9000"
    assert find_bucket("http://host:9000/", "b", "", "r").path == "/b/"
    assert find_bucket("http://[::1]:9000", "b", "", "r").authority == "[::1]:9000"
    assert find_bucket("http://host/below", "b", "", "r") is None
    assert "secret" not in repr(replace(aws, key="secret-key", secret="secret", token="secret"))
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert find_bucket(None, "b", "", "eu-west-1") is None


def store_of(server, **options):
    options = {"key": "k", "secret": "s", "endpoint_url": f"http://127.0.0.1:{server.port}"}
    return open_store("s3://bucket", {**options, "region": "us-east-1"}, timeout_seconds=5)


class Buffer:
    """What `read_into` fills."""

    def __init__(self):
        self.size, self.raws = 0, []

    def fill(self, names, versions, raws):
        assert len(names) == len(versions) == len(raws)
        self.raws += raws
        self.size += sum(map(len, raws))


def read_into(store):
    buffer, done = Buffer(), 0
    while done < len(KEYS):
        count, _ = store.read_into(buffer, KEYS[done:], range(done, len(KEYS)), 1000)
        done += count
    return buffer.raws


def test_store_falls_back_to_obstore_for_failed_reads():
    def respond(key, attempt):
        obstore = b"user-agent" in server.heads[-1].lower()
        return MISSING if key == KEYS[77] and attempt == 1 and not obstore else answer(key)

    with Server(respond) as server:
        assert store_of(server).get_many(KEYS) == [content(key) for key in KEYS]
        assert store_of(server).find_many(KEYS) == [content(key) for key in KEYS]
        server.asked.clear()
        assert read_into(store_of(server)) == [content(key) for key in KEYS]
        assert sum(server.asked.values()) < 2 * len(KEYS)


def test_store_raises_for_missing_or_refused_objects():
    with Server(lambda key, _: MISSING if key == KEYS[77] else answer(key)) as server:
        assert store_of(server).find_many(KEYS)[77] is None
        with pytest.raises(FileNotFoundError, match=KEYS[77]):
            store_of(server).get_many(KEYS)
        with pytest.raises(FileNotFoundError, match=KEYS[77]):
            read_into(store_of(server))
    refused = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
    with Server(lambda _key, _: refused) as server, pytest.raises(StoreUnavailable):
        store_of(server).get_many(KEYS)


NO_SUCH_KEY = b"<Error><Code>NoSuchKey</Code></Error>"
ABSENT = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%s" % (len(NO_SUCH_KEY), NO_SUCH_KEY)
NO_BUCKET = ABSENT.replace(b"NoSuchKey", b"NoSuchBkt")


def test_objects_that_do_not_exist_are_none():
    with Server(lambda key, _: ABSENT if key.endswith("5") else answer(key)) as server:
        expected = [None if key.endswith("5") else content(key) for key in KEYS]
        assert read_all(server.bucket) == expected
        assert store_of(server).find_many(KEYS) == expected
        with pytest.raises(FileNotFoundError, match=KEYS[5]):
            store_of(server).get_many(KEYS)
    with Server(lambda _key, _: NO_BUCKET) as server:  # that says nothing about the objects
        assert read_all(server.bucket) == []


def test_connections_are_kept_and_replaced_when_they_are_closed():
    with Server(lambda key, attempt: None if attempt == 9 else answer(key)) as server:
        connections = Connections(server.bucket)

        def read():
            return ManyReads(connections, KEYS[:3]).take(float("inf"), 20, 5)

        for _ in range(8):
            assert read() == [content(key) for key in KEYS[:3]]
        assert server.connections == 3
        assert read() == [content(key) for key in KEYS[:3]]  # the server closes all of them
        assert server.connections > 3
        assert 1 <= len(connections.idle) <= 3


def test_a_put_and_a_read_at_the_same_time():
    """Whatever becomes of the read, the outcome is that of the put."""
    taken = b"HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n"
    for get, found in ((answer(KEYS[0]), content(KEYS[0])), (ABSENT, None)):
        with Server(lambda _key, _, get=get: taken if puts(server) else get) as server:
            store = store_of(server)
            for _ in range(3):
                assert store.put_or_find(KEYS[0], b"") == (PutOutcome.EXISTS, found)
    done = b'HTTP/1.1 200 OK\r\nETag: "x"\r\nContent-Length: 0\r\n\r\n'
    with Server(lambda _key, _: done if puts(server) else ABSENT) as server:
        assert store_of(server).put_or_find(KEYS[0], b"") == (PutOutcome.DONE, None)


def puts(server):
    """Whether the thread that calls this answers a put."""
    return server.method.value == b"PUT"
