"""Each cause of a store failure has its own error class, message and next step on every backend."""

import errno
import http.server
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading

import fsspec
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from support import faulty_wire, small_table
from support.faulty_wire import ALWAYS, Fault
from support.s3_servers import KEY, SECRET

import arrowlog
from arrowlog import errors
from arrowlog.storage import fsspec_store, open_store, store_error
from arrowlog.storage.failures import find_cause
from arrowlog.storage.s3 import PROBED_BUCKETS, check_option_names

CALLS = {
    "get": lambda store: store.get("k"),
    "get_range": lambda store: store.get_range("k", 0, 1),
    "list_from": lambda store: store.list_from("folder", "1"),
    "walk": lambda store: store.walk(),
    "put_if_absent": lambda store: store.put_if_absent("k", b"1"),
    "replace": lambda store: store.replace("k", b"1"),
    "delete": lambda store: store.delete(["k", "l"]),
}
READS = ("get", "get_range", "list_from", "walk")


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """Only the credentials of the test."""
    PROBED_BUCKETS.clear()
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE", "ENDPOINT_URL"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def one_attempt(monkeypatch):
    """Give up after one attempt: a pause before the second would exceed every limit."""
    monkeypatch.setattr(fsspec_store, "_BACKOFF_SECONDS", 3600.0)


@pytest.fixture(params=["s3fs", "obstore"])
def opened(request):
    """Open a bucket through one of the two libraries."""

    def make(url, uri="s3://bucket/t", seconds=60.0, **options):
        given = {"key": KEY, "secret": SECRET, "endpoint_url": url, "region": "us-east-1"}
        given = {name: value for name, value in {**given, **options}.items() if value is not None}
        accelerate = request.param == "obstore"
        return open_store(uri, given, timeout_seconds=seconds, accelerate=accelerate)

    return make


def error_of(call, store):
    with pytest.raises(arrowlog.ArrowlogError) as caught:
        call(store)
    return caught.value


def check_message(error, kind, *words):
    assert type(error) is kind, repr(error)
    text = str(error)
    assert all(word in text for word in words), text
    assert error.next
    for noise in ("<?xml", "Generic S3", "Debug source", "Check access", "\n", KEY, SECRET):
        assert noise not in text
    assert ".." not in text.replace("…", "")


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"secret": "hunter2/of+the=secret"}, "SignatureDoesNotMatch"),
        ({"key": "AKIAUNKNOWN"}, "InvalidAccessKeyId"),
    ],
)
@pytest.mark.parametrize("name", CALLS)
def test_wrong_credentials(opened, seaweedfs, given, code, name):
    error = error_of(CALLS[name], opened(seaweedfs[0].url, **given))
    check_message(error, errors.CredentialsRefused, "refused the credentials", code, "AWS_SECRET")
    assert not [secret for secret in given.values() if secret in str(error)]


def test_wrong_credentials_and_a_response_without_a_body(opened, seaweedfs):
    store = opened(seaweedfs[0].url, secret="hunter2")
    error = error_of(lambda store: store.stat("k"), store)
    check_message(error, errors.CredentialsRefused, "or they do not permit this (403)")


@pytest.mark.parametrize("name", CALLS)
def test_missing_bucket(opened, seaweedfs, name):
    error = error_of(CALLS[name], opened(seaweedfs[0].url, "s3://no-such-bucket/t"))
    check_message(error, errors.BucketNotFound, "s3://no-such-bucket", "bucket does not exist")


@pytest.mark.parametrize("server", ["seaweedfs", "moto"])
def test_opening_and_creating_a_table_in_a_missing_bucket(request, server):
    options = request.getfixturevalue(server)[0].options
    for call in (
        lambda: arrowlog.Table("s3://no-such-bucket/t", options),
        lambda: arrowlog.Table.create(
            "s3://no-such-bucket/t", pa.schema([("id", pa.int64())]), storage_options=options
        ),
        lambda: arrowlog.doctor("s3://no-such-bucket/t", options),
    ):
        with pytest.raises(errors.BucketNotFound):
            call()


@pytest.mark.parametrize("name", CALLS)
def test_missing_credentials(seaweedfs, name):
    store = open_store("s3://bucket/t", {"endpoint_url": seaweedfs[0].url})
    error = error_of(CALLS[name], store)
    check_message(error, errors.CredentialsMissing, "no credentials were found", "anon=true")


@pytest.fixture(scope="module")
def wire(moto):
    with faulty_wire.before(moto[0]) as found:
        yield found


METHODS = ("GET", "PUT", "POST", "DELETE", "HEAD")


@pytest.mark.parametrize(
    ("status", "code", "kind", "words"),
    [
        (403, "AccessDenied", errors.AccessDenied, ["do not permit", "permission"]),
        (400, "ExpiredToken", errors.CredentialsRefused, ["expired", "new credentials"]),
        (403, "RequestTimeTooSkewed", errors.CredentialsRefused, ["clock"]),
        (400, "AuthorizationHeaderMalformed", errors.StoreUnavailable, ["region"]),
        (503, "SlowDown", errors.StoreThrottled, ["rate of requests", "503 SlowDown"]),
        (429, "TooManyRequests", errors.StoreThrottled, ["rate of requests"]),
        (500, "InternalError", errors.StoreUnavailable, ["the server answered 500 InternalError"]),
    ],
)
@pytest.mark.parametrize("name", READS)
@pytest.mark.usefixtures("one_attempt")
def test_server_error_codes(opened, wire, monkeypatch, status, code, kind, words, name):
    monkeypatch.setitem(faulty_wire._CODES, status, code)
    wire.faults = [Fault(status, method, times=ALWAYS) for method in METHODS]
    error = error_of(CALLS[name], opened(wire.url))
    check_message(error, kind, code, *words)


@pytest.mark.usefixtures("one_attempt")
def test_refused_connection(opened):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    error = error_of(CALLS["get"], opened(f"http://127.0.0.1:{port}"))
    check_message(error, errors.StoreUnreachable, "refused the connection", "endpoint_url")


@pytest.mark.usefixtures("one_attempt")
def test_unknown_host(opened):
    error = error_of(CALLS["get"], opened("http://no-such-host.invalid"))
    check_message(error, errors.StoreUnreachable, "name of the server was not found")


def test_unresponsive_server(opened):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        error = error_of(CALLS["get"], opened(url, seconds=0.2))
    check_message(error, errors.StoreTimeout, "did not respond in time", "timeoutSeconds")


def test_server_without_tls_fails_without_retries(opened, seaweedfs):
    # An hour: a test that waits for the limit would not end.
    store = opened(seaweedfs[0].url.replace("http:", "https:"), seconds=3600.0)
    error = error_of(CALLS["get"], store)
    check_message(error, errors.TlsFailed, "encrypted connection", "http://")


def test_untrusted_certificate(opened, tmp_path):
    openssl = shutil.which("openssl")
    assert openssl, "the test makes a certificate with openssl"
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    request = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    request += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run(request, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), http.server.BaseHTTPRequestHandler
    ) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None
        threading.Thread(target=server.serve_forever, daemon=True).start()
        store = opened(f"https://127.0.0.1:{server.server_port}", seconds=3600.0)
        error = error_of(CALLS["get"], store)
        server.shutdown()
    check_message(error, errors.TlsFailed, "certificate of the server is not trusted")


@pytest.mark.parametrize(
    ("given", "name", "similar"),
    [
        ({"endpiont_url": "http://x"}, "endpiont_url", "endpoint_url"),
        ({"secrte": "hunter2"}, "secrte", "secret"),
        ({"AWS_REGOIN": "eu"}, "AWS_REGOIN", "aws_region"),
        ({"client_kwargs": {"regoin_name": "eu"}}, "regoin_name", "region_name"),
        ({"config_kwargs": {"read_timout": 1}}, "read_timout", "read_timeout"),
    ],
)
def test_misspelled_storage_option_suggests_the_right_one(given, name, similar):
    with pytest.raises(errors.UnknownStorageOption) as caught:
        arrowlog.Table("s3://bucket/t", {"key": KEY, "secret": SECRET, **given})
    assert str(caught.value) == f"There is no storage option {name!r}. Did you mean {similar!r}?"
    assert isinstance(caught.value, errors.InvalidRequest)


def test_unknown_storage_option_lists_the_known_ones():
    with pytest.raises(errors.UnknownStorageOption, match=r"The options are access_key_id, .* …\."):
        check_option_names({"zzzz": 1})


def test_options_of_s3fs_are_accepted():
    check_option_names(
        {
            "profile": "p",
            "requester_pays": True,
            "use_listings_cache": False,
            "client_kwargs": {"verify": False, "region_name": "eu"},
            "config_kwargs": {"max_pool_connections": 5},
        }
    )


def test_misspelled_storage_option_is_reported_without_s3fs(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(errors.UnknownStorageOption, match="'endpoint_url'"):
        open_store("s3://bucket/t", {"key": KEY, "secret": SECRET, "endpiont_url": "http://x"})


class StrictFileSystem(MemoryFileSystem):
    """A file system that accepts only its own options."""

    def __init__(self, account=None, *, use_listings_cache=True):
        super().__init__(account=account, use_listings_cache=use_listings_cache)


def test_misspelled_storage_option_of_another_file_system():
    fsspec.register_implementation("strict", StrictFileSystem, clobber=True)
    open_store("strict://x", {"account": "a"})
    with pytest.raises(errors.UnknownStorageOption, match=r"'acount'.*Did you mean 'account'"):
        open_store("strict://x", {"acount": "a"})


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.EACCES, errors.AccessDenied, ["permission denied", "owner"]),
        (errno.EPERM, errors.AccessDenied, ["permission denied"]),
        (errno.EROFS, errors.ReadOnlyStore, ["read-only"]),
        (errno.ENOSPC, errors.StoreFull, ["the disk is full", "Free space"]),
        (errno.EDQUOT, errors.StoreFull, ["quota", "Free space"]),
        (errno.EIO, errors.StoreUnavailable, ["I/O error"]),
        (errno.ETIMEDOUT, errors.StoreTimeout, ["in time"]),
        (errno.EMFILE, errors.StoreUnavailable, ["ulimit -n"]),
    ],
)
def test_operating_system_errors(number, kind, words):
    error = store_error("write", "/data/t/f", OSError(number, os.strerror(number), "/data/t/f"))
    check_message(error, kind, "/data/t/f", *words)


def test_unknown_cause_keeps_its_text():
    error = store_error("read", "x", RuntimeError("something odd.\nand more"))
    assert type(error) is errors.StoreUnavailable
    assert error.what == "Could not read x: something odd."
    assert find_cause(RuntimeError("permission denied, says a file name")) is None


def full_device(monkeypatch):
    """Send every write of this process to the device that is always full."""
    real = os.write

    def write(descriptor, data):
        device = os.open("/dev/full", os.O_WRONLY)
        try:
            return real(device, data)
        finally:
            os.close(device)

    monkeypatch.setattr(os, "write", write)


def test_full_disk(root, monkeypatch):
    small_table.write(root)
    store = open_store(root)
    full_device(monkeypatch)
    for name in ("put_if_absent", "replace"):
        check_message(error_of(CALLS[name], store), errors.StoreFull, "the disk is full")


FILL = """
import sys, pyarrow as pa, arrowlog
table = arrowlog.Table.create(sys.argv[1], pa.schema([("id", pa.int64())]))
try:
    for number in range(1000):
        table.write(pa.table({"id": range(number * 5000, number * 5000 + 5000)}))
except arrowlog.StoreFull as error:
    print(error)
    assert arrowlog.doctor(sys.argv[1]).worst != "error"
    assert arrowlog.Table(sys.argv[1]).version == number
"""


def test_file_system_that_fills_up(tmp_path):
    """A real 1 MB file system where the kernel permits mounts. `test_full_disk` runs everywhere."""
    script = (
        f'mount -t tmpfs -o size=1m tmpfs {tmp_path} && exec {sys.executable} -c "$1" {tmp_path}/t'
    )
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", FILL]
    if (
        shutil.which("unshare") is None
        or subprocess.run(
            [*command[:4], "mount", "-t", "tmpfs", "tmpfs", tmp_path],
            capture_output=True,
            check=False,
        ).returncode
    ):
        pytest.skip("this system does not let users mount a file system")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "the disk is full" in done.stdout


LIMITED = """
import resource, signal, sys, arrowlog
from arrowlog.storage import open_store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
try:
    open_store(sys.argv[1]).put_if_absent("k", b"1" * 100)
except arrowlog.StoreFull as error:
    print(error)
"""


def test_file_size_limit_of_the_process(tmp_path):
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "ulimit -f" in done.stdout
