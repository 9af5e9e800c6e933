"""The error hierarchy, and that no message shows a credential."""

import pickle
import traceback

import pytest

import arrowlog
from arrowlog import errors
from arrowlog.errors import ArrowlogError, CommitConflict, InvalidRequest, LogCorrupt, redact
from arrowlog.storage import store_error
from arrowlog.storage.fsspec_store import FsspecStore

DIRECT = ["TableNotFound", "TableExists", "LogCorrupt", "UnsupportedProtocol", "CommitConflict"]
DIRECT += ["LogTooLarge", "CommitStateUnknown", "StoreUnavailable", "InvalidRequest"]
CONFLICTS = ["ConcurrentRemove", "ConcurrentAppend", "MetadataChanged", "ProtocolChanged"]
SECRETS = ("user", "hunter2", "t0ken", "s1g")
ADDRESSES = [
    "s3://user:hunter2@bucket/t",
    "https://user:hunter2@host/t?token=t0ken",
    "https://host/t?token=t0ken&sig=s1g",
    "https://host/t?X-Amz-Signature=s1g#part",
    "simplecache::s3://user:hunter2@bucket/t",
    "https://user@host/t",
    "https://user:hunter2@host:8080/t?sig=s1g",
    "https://user:hunt@hunter2@host/t",
]


def clean(text):
    return not [secret for secret in SECRETS if secret in text]


@pytest.mark.parametrize("name", DIRECT)
def test_every_error_derives_from_the_base(name):
    found = getattr(arrowlog, name)
    assert found is getattr(errors, name)
    assert found.__bases__[0] is ArrowlogError


@pytest.mark.parametrize("name", CONFLICTS)
def test_every_conflict_derives_from_commit_conflict(name):
    assert getattr(arrowlog, name).__bases__ == (CommitConflict,)


def test_only_invalid_request_is_a_value_error():
    kinds = [getattr(arrowlog, name) for name in (*DIRECT, *CONFLICTS)]
    assert [kind for kind in kinds if issubclass(kind, ValueError)] == [InvalidRequest]


def test_arrowlog_warning_is_a_user_warning():
    assert issubclass(arrowlog.ArrowlogWarning, UserWarning)
    assert not issubclass(arrowlog.ArrowlogWarning, ArrowlogError)


def test_error_parts_are_attributes_and_in_the_message():
    error = LogCorrupt(
        "it broke.", next="Mend it.", file="_transaction_log/1.json", line=3, version=1
    )
    assert str(error) == "_transaction_log/1.json, line 3: it broke. Mend it."
    assert (error.what, error.next, error.file) == (
        "it broke.",
        "Mend it.",
        "_transaction_log/1.json",
    )
    assert (error.line, error.version) == (3, 1)


def test_missing_error_parts_are_none():
    error = LogCorrupt("it broke.")
    assert str(error) == "it broke."
    assert (error.next, error.file, error.line, error.version) == ("", None, None, None)


def test_message_starts_with_the_file():
    assert str(LogCorrupt("it broke.", file="f")) == "f: it broke."


@pytest.mark.promise("errors.survive_pickling")
@pytest.mark.parametrize("kind", [LogCorrupt, InvalidRequest, arrowlog.ConcurrentRemove])
def test_errors_survive_pickling(kind):
    error = kind("it broke.", next="Mend it.", file="f", line=3, version=1)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert vars(again) == vars(error)


@pytest.mark.parametrize("address", ADDRESSES)
def test_redact_removes_secrets_from_uris(address):
    assert clean(redact(address))
    assert redact(address).partition("://")[0] == address.partition("://")[0]
    assert redact(address).endswith(("/t", "/t#part"))


@pytest.mark.promise("security.no_credentials")
@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("shape", ["{}", "Could not read '{}': gone.", "a {} b {} c"])
def test_no_part_of_an_error_shows_a_credential(address, shape):
    text = shape.format(address, address)
    error = LogCorrupt(text, next=text, file=text)
    assert clean(str(error))
    assert clean(repr(error))
    assert clean(repr(vars(error)))


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/a@b/c",
        "/home/me@work/t",
        "is it 5 @ 3?",
        "col = '?'",
        "s3://b/t",
        "C:\\t@x",
        "",
    ],
)
def test_redact_keeps_text_without_credentials(text):
    assert redact(text) == text


@pytest.mark.parametrize("scheme", ["nosuchprotocol", "memory"])
def test_failed_open_shows_no_credential(scheme):
    with pytest.raises(ArrowlogError) as caught:
        arrowlog.Table(f"{scheme}://user:hunter2@host/t?token=t0ken")
    assert clean(str(caught.value))
    assert clean("".join(traceback.format_exception_only(caught.value)))


def test_store_error_shows_no_credential():
    error = store_error("read", ADDRESSES[1], OSError(f"GET {ADDRESSES[2]} failed"))
    assert clean(str(error))
    assert "https://host/t" in str(error)


@pytest.mark.parametrize("raised", [FileNotFoundError, OSError])
def test_failed_read_shows_no_credential(raised):
    def call():
        raise raised(ADDRESSES[1])

    store = FsspecStore("memory://redaction", {}, 1, 0.1)
    with pytest.raises((ArrowlogError, FileNotFoundError)) as caught:
        store.with_retries("read", ADDRESSES[1], call)
    assert clean(str(caught.value))
