"""The tree of errors, and that no message shows a credential."""

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
def test_every_error_is_right_below_the_base(name):
    found = getattr(arrowlog, name)
    assert found is getattr(errors, name)
    assert found.__bases__[0] is ArrowlogError


@pytest.mark.parametrize("name", CONFLICTS)
def test_every_conflict_is_below_commit_conflict(name):
    assert getattr(arrowlog, name).__bases__ == (CommitConflict,)


def test_an_invalid_request_is_a_value_error_and_the_others_are_not():
    kinds = [getattr(arrowlog, name) for name in (*DIRECT, *CONFLICTS)]
    assert [kind for kind in kinds if issubclass(kind, ValueError)] == [InvalidRequest]


def test_the_warning_is_a_user_warning_and_no_error():
    assert issubclass(arrowlog.ArrowlogWarning, UserWarning)
    assert not issubclass(arrowlog.ArrowlogWarning, ArrowlogError)


def test_the_parts_are_attributes_and_the_message_has_them():
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


def test_parts_that_are_not_given_are_none():
    error = LogCorrupt("it broke.")
    assert str(error) == "it broke."
    assert (error.next, error.file, error.line, error.version) == ("", None, None, None)


def test_a_file_without_a_line_stands_in_front():
    assert str(LogCorrupt("it broke.", file="f")) == "f: it broke."


@pytest.mark.promise("errors.survive_pickling")
@pytest.mark.parametrize("kind", [LogCorrupt, InvalidRequest, arrowlog.ConcurrentRemove])
def test_an_error_survives_the_way_between_processes(kind):
    error = kind("it broke.", next="Mend it.", file="f", line=3, version=1)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert vars(again) == vars(error)


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_loses_what_is_secret(address):
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
def test_what_holds_no_credential_stays(text):
    assert redact(text) == text


@pytest.mark.parametrize("scheme", ["nosuchprotocol", "memory"])
def test_a_table_that_cannot_be_opened_shows_no_credential(scheme):
    with pytest.raises(ArrowlogError) as caught:
        arrowlog.Table(f"{scheme}://user:hunter2@host/t?token=t0ken")
    assert clean(str(caught.value))
    assert clean("".join(traceback.format_exception_only(caught.value)))


def test_a_store_that_fails_shows_no_credential():
    error = store_error("read", ADDRESSES[1], OSError(f"GET {ADDRESSES[2]} failed"))
    assert clean(str(error))
    assert "https://host/t" in str(error)


@pytest.mark.parametrize("raised", [FileNotFoundError, OSError])
def test_a_read_that_fails_shows_no_credential(raised):
    def call():
        raise raised(ADDRESSES[1])

    store = FsspecStore("memory://redaction", {}, 1, 0.1)
    with pytest.raises((ArrowlogError, FileNotFoundError)) as caught:
        store.with_retries("read", ADDRESSES[1], call)
    assert clean(str(caught.value))
