"""No error message shows a credential, whatever fails and wherever the credential came from."""

import gc
import socket
import traceback
from urllib.parse import quote
from xml.sax.saxutils import escape

import pytest
from support import faulty_wire
from support.faulty_wire import ALWAYS, Fault
from support.s3_servers import KEY, SECRET

import arrowlog
from arrowlog.errors import ArrowlogError, InvalidRequest
from arrowlog.formats.indextables import LOG_FOLDER
from arrowlog.storage import open_store
from arrowlog.storage.fsspec_store import FsspecStore, find_secrets
from arrowlog.storage.s3 import PROBED_BUCKETS

USER = "AKIAID+=ZZ"
ID, HIDDEN, TOKEN = "AKIA/ID+=ZZ", "hunter2/of+the=secret", "tok/en+of=session&<a>"
CALLS = {
    "get": lambda store: store.get("k"),
    "get_many": lambda store: store.get_many(["k", "l", "m"]),
    "find_many": lambda store: store.find_many(["k", "l"]),
    "list_from": lambda store: store.list_from("folder", "1"),
    "stat": lambda store: store.stat("k"),
    "put_if_absent": lambda store: store.put_if_absent("k", b"1"),
    "put_if_absent, large": lambda store: store.put_if_absent("k", b"1" * 2_000_000),
    "replace": lambda store: store.replace("k", b"1"),
    "delete": lambda store: store.delete(["k", "l"]),
    "check_writable": lambda store: store.check_writable(LOG_FOLDER),
}
WAYS = ["options", "environment", "environment spelling", "client_kwargs"]
SOME = WAYS[:2]


def spelled(secrets):
    """Secrets verbatim, URL-encoded and XML-escaped."""
    forms = (str, quote, lambda text: quote(text, safe=""), escape)
    return {form(text) for text in secrets for form in forms}


def leaks(error, secrets=(ID, HIDDEN, TOKEN)):
    """Secrets in any printed form of an error, or in its attributes."""
    told = [*traceback.format_exception(error), repr(error), repr(error.args), repr(vars(error))]
    return [secret for secret in spelled(secrets) if any(secret in text for text in told)]


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """Only the credentials of the test, and no bucket that another test has probed."""
    PROBED_BUCKETS.clear()
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE", "ENDPOINT_URL"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(params=["s3fs", "obstore"])
def accelerate(request):
    return request.param == "obstore"


@pytest.fixture
def opened(accelerate, monkeypatch):
    """A store that gets its credentials in one of several ways."""

    def make(way, url, key=ID, secret=HIDDEN, token=TOKEN, uri="s3://bucket/t", seconds=60):
        env = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
        env |= {"AWS_SESSION_TOKEN": token} if token else {}
        options = {"endpoint_url": url, "region": "us-east-1"}
        if way == "options":
            options |= {"key": key, "secret": secret} | ({"token": token} if token else {})
        elif way == "environment spelling":
            options |= env
        elif way == "client_kwargs":
            options |= {"client_kwargs": {name.lower(): value for name, value in env.items()}}
        else:
            for name, value in env.items():
                monkeypatch.setenv(name, value)
        return open_store(uri, options, timeout_seconds=seconds, accelerate=accelerate)

    return make


def said(call, *args, **kwargs):
    """The error of a call, or None."""
    try:
        call(*args, **kwargs)
    except (ArrowlogError, FileNotFoundError) as error:
        return error
    return None


def provoke(store, capfd, secrets=(ID, HIDDEN, TOKEN)):
    """Run every call and return the names of those that failed."""
    errors = {name: error for name, call in CALLS.items() if (error := said(call, store))}
    for name, error in errors.items():
        assert not leaks(error, secrets), name
    gc.collect()  # exceptions that were never retrieved are logged on collection
    printed = "".join(capfd.readouterr())
    assert not [secret for secret in spelled(secrets) if secret in printed]
    return set(errors)


@pytest.fixture(scope="module")
def echoing(moto):
    """A proxy that echoes every request in its response."""
    with faulty_wire.before(moto[0]) as found:
        yield found


@pytest.mark.promise("security.no_credentials")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("status", [400, 403, 404])
def test_server_that_echoes_the_request(opened, echoing, way, status, capfd):
    methods = ("GET", "PUT", "POST", "DELETE", "HEAD")
    echoing.faults = [Fault(status, method, times=ALWAYS, echo=True) for method in methods]
    errors = provoke(opened(way, echoing.url), capfd)
    assert {"list_from", "replace", "delete", "check_writable"} <= errors


def test_server_that_echoes_the_request_in_retryable_errors(opened, echoing, capfd):
    methods = ("GET", "PUT", "POST", "DELETE", "HEAD")
    echoing.faults = [Fault(500, method, times=ALWAYS, echo=True) for method in methods]
    errors = provoke(opened("options", echoing.url, seconds=0.1), capfd)
    assert errors == set(CALLS) - {"put_if_absent", "put_if_absent, large"}


@pytest.mark.parametrize("way", SOME)
def test_unknown_access_key(opened, seaweedfs, way, capfd):
    for key in (ID, "AKIAUNKNOWN+="):
        store = opened(way, seaweedfs[0].url, key=key)
        assert provoke(store, capfd, (key, HIDDEN, TOKEN)) == set(CALLS)


@pytest.mark.parametrize("way", SOME)
def test_wrong_secret_key(opened, seaweedfs, way, capfd):
    store = opened(way, seaweedfs[0].url, key=KEY, token=None)
    assert provoke(store, capfd, (KEY, HIDDEN)) == set(CALLS)


@pytest.mark.parametrize("way", SOME)
def test_missing_bucket(opened, seaweedfs, way, capfd):
    store = opened(way, seaweedfs[0].url, KEY, SECRET, None, uri="s3://no-such-bucket/t")
    errors = provoke(store, capfd, (KEY, SECRET))
    assert {"list_from", "put_if_absent", "replace", "check_writable"} <= errors


@pytest.mark.parametrize("way", SOME)
def test_refused_connection(opened, way, capfd):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    errors = provoke(opened(way, f"http://127.0.0.1:{port}", seconds=0.1), capfd)
    assert errors == set(CALLS) - {"put_if_absent", "put_if_absent, large"}


@pytest.mark.parametrize("way", WAYS[:1])
def test_unresponsive_server(opened, way, capfd):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = opened(way, f"http://127.0.0.1:{silent.getsockname()[1]}", seconds=0.1)
        errors = provoke(store, capfd)
    assert errors == set(CALLS) - {"put_if_absent", "put_if_absent, large"}


@pytest.mark.parametrize("way", WAYS[:1])
@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "http://",
        "http://127.0.0.1:port",
        "http://no-such-host.invalid",
        f"http://{ID}:{HIDDEN}@127.0.0.1:1/",
        f"http://{quote(ID, safe='')}:{quote(HIDDEN, safe='')}@127.0.0.1:1/",
        f"http://127.0.0.1:1/?token={TOKEN}",
    ],
)
def test_invalid_endpoint(opened, way, url, capfd):
    if refused := said(opened, way, url):
        assert isinstance(refused, InvalidRequest)
        assert not leaks(refused)
        return
    assert {"get", "list_from", "replace", "delete"} <= provoke(
        opened(way, url, seconds=0.1), capfd
    )


@pytest.mark.parametrize("way", WAYS[:1])
@pytest.mark.parametrize("bucket", ["a", "Not A Bucket", "b%ucket", "..", "bucket\n"])
def test_invalid_bucket_name(opened, seaweedfs, way, bucket, capfd):
    store = opened(way, seaweedfs[0].url, uri=f"s3://{bucket}/t")
    assert {"list_from", "replace"} <= provoke(store, capfd)


@pytest.mark.promise("security.no_credentials")
@pytest.mark.parametrize(
    "uri",
    [
        f"s3://{USER}:{HIDDEN}@bucket/t",
        f"s3a://{quote(USER, safe='')}:{quote(HIDDEN, safe='')}@bucket/t",
        f"s3://{HIDDEN.replace('/', '')}@bucket/t",
        f"s3://bucket/t?token={TOKEN}",
        f"nosuchprotocol://{USER}:{HIDDEN}@host/t",
        f"memory://{USER}:{HIDDEN}@host/t?token={TOKEN}",
        f"http://{USER}:{HIDDEN}@127.0.0.1:1/t?token={TOKEN}",
        f"ftp://{USER}:{HIDDEN}@127.0.0.1:1/t",
        f"simplecache::s3://{USER}:{HIDDEN}@bucket/t",
    ],
)
@pytest.mark.parametrize("given", [{}, {"key": ID, "secret": HIDDEN, "token": TOKEN}])
def test_credentials_in_the_uri(uri, given):
    hidden = (USER, ID, HIDDEN, TOKEN, HIDDEN.replace("/", ""))
    with pytest.raises((ArrowlogError, FileNotFoundError)) as caught:
        arrowlog.Table(uri, given, options={"checkpoint.read.timeoutSeconds": 1})
    assert not leaks(caught.value, hidden)


@pytest.mark.parametrize(
    "option",
    [
        {"no_such_option": 1},
        {"client_kwargs": {"no_such_option": HIDDEN}},
        {"config_kwargs": {"no_such_option": HIDDEN}},
        {"config_kwargs": {"proxies": {"http": f"http://{ID}:{HIDDEN}@127.0.0.1:1"}}},
        {"profile": "no-such-profile"},
    ],
)
def test_invalid_storage_options(moto, option, capfd):
    given = {"key": ID, "secret": HIDDEN, "token": TOKEN, "endpoint_url": moto[0].url, **option}
    if refused := said(open_store, "s3://bucket/t", given):
        assert isinstance(refused, InvalidRequest)
        assert not leaks(refused)
        return
    provoke(open_store("s3://bucket/t", given, timeout_seconds=0.3), capfd)


def test_secrets_found_in_storage_options():
    options = {
        "key": "1",
        "client_kwargs": {"aws_session_token": "2", "verify": "no"},
        "account_key": "3",
        "sas_token": "4",
        "password": "5",
        "endpoint_url": "http://user:six@host/",
        "region": "eu",
        "anon": True,
    }
    assert {"1", "2", "3", "4", "5", "six"} <= set(find_secrets(options))
    assert not {"no", "eu"} & set(find_secrets(options))


def test_one_letter_secret_is_not_redacted():
    store = FsspecStore("memory://x", {"key": "a", "secret": "hunter2"}, 1, 0.1)
    error = store.failed("read", "s3://a/b", OSError("hunter2 is a secret"))
    assert error.what == "Could not read s3://a/b: *** is a secret."
