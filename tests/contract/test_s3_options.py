"""S3 options in every spelling and from the environment configure the same client."""

import sys

import pytest

from arrowlog.errors import InvalidRequest
from arrowlog.storage import PutOutcome, open_store
from arrowlog.storage.obstore_s3 import ObstoreS3, _config, is_obstore_usable
from arrowlog.storage.s3 import (
    S3Options,
    S3Store,
    parse_s3_options,
    predecessor_name,
    to_s3fs_options,
)

WANTED = S3Options("AKIAKEY", "se/cr+et=", "to/ken", "eu-north-1", "http://127.0.0.1:1")
S3FS = {
    "key": WANTED.key,
    "secret": WANTED.secret,
    "token": WANTED.token,
    "endpoint_url": WANTED.endpoint,
    "client_kwargs": {"region_name": WANTED.region},
}
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": WANTED.key,
    "AWS_SECRET_ACCESS_KEY": WANTED.secret,
    "AWS_SESSION_TOKEN": WANTED.token,
    "AWS_REGION": WANTED.region,
    "AWS_ENDPOINT_URL": WANTED.endpoint,
}
SPELLINGS = {
    "s3fs": S3FS,
    "s3fs, all in client_kwargs": {
        "client_kwargs": {
            "aws_access_key_id": WANTED.key,
            "aws_secret_access_key": WANTED.secret,
            "aws_session_token": WANTED.token,
            "endpoint_url": WANTED.endpoint,
            "region_name": WANTED.region,
        }
    },
    "environment": ENVIRONMENT,
    "lower case": {name.lower(): value for name, value in ENVIRONMENT.items()},
    "short": {
        "access_key_id": WANTED.key,
        "secret_access_key": WANTED.secret,
        "session_token": WANTED.token,
        "region": WANTED.region,
        "endpoint": WANTED.endpoint,
    },
    "user and password": {
        "username": WANTED.key,
        "password": WANTED.secret,
        "token": WANTED.token,
        "default_region": WANTED.region,
        "AWS_ENDPOINT_URL_S3": WANTED.endpoint,
    },
    "with options of other tools": {
        **ENVIRONMENT,
        "AWS_S3_ALLOW_UNSAFE_RENAME": "true",
        "AWS_ALLOW_HTTP": "true",
        "conditional_put": "etag",
        "use_ssl": False,
        "anon": False,
    },
}


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """No credentials but those of the test."""
    for name in (*ENVIRONMENT, "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))


@pytest.mark.parametrize("options", SPELLINGS.values(), ids=SPELLINGS)
def test_every_spelling_parses_to_the_same_options(options):
    assert parse_s3_options(options) == WANTED
    assert is_obstore_usable(options)


@pytest.mark.parametrize("options", SPELLINGS.values(), ids=SPELLINGS)
def test_every_spelling_gives_the_same_s3fs_options(options):
    assert to_s3fs_options(parse_s3_options(options)) == to_s3fs_options(WANTED)


@pytest.mark.parametrize("options", SPELLINGS.values(), ids=SPELLINGS)
def test_every_spelling_gives_the_same_obstore_config(options):
    assert _config(parse_s3_options(options)) == _config(WANTED)


def test_obstore_config_falls_back_to_the_environment(monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    assert _config(parse_s3_options({})) == _config(WANTED)


def test_environment_token_is_not_combined_with_a_given_key(monkeypatch):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-another-key")
    found = _config(parse_s3_options({"key": "AKIAKEY", "secret": "secret"}))
    assert "aws_session_token" not in found


def test_options_of_none_are_ignored(monkeypatch):
    assert parse_s3_options({"key": None, "secret": None, "token": None}) == S3Options()
    assert parse_s3_options({**S3FS, "client_kwargs": None}).region is None


@pytest.mark.parametrize("value", [True, "true", "True", 1, "1"])
def test_anonymous_in_every_spelling(value):
    for name in ("anon", "skip_signature", "AWS_SKIP_SIGNATURE"):
        found = parse_s3_options({name: value})
        assert found.anon
        assert to_s3fs_options(found)["anon"] is True
        assert _config(found)["aws_skip_signature"] is True
        assert is_obstore_usable({name: value})


def test_anonymous_client_ignores_environment_credentials(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAKEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert not {"aws_access_key_id", "aws_secret_access_key"} & set(_config(S3Options(anon=True)))


@pytest.mark.parametrize(
    "other",
    [
        {"profile": "mine"},
        {"session": object()},
        {"config_kwargs": {"s3": {"addressing_style": "path"}}},
        {"client_kwargs": {"verify": False}},
        {"requester_pays": True},
        {"verify": True, "client_kwargs": {"verify": False}},
        {"s3_additional_kwargs": {"ServerSideEncryption": "AES256"}},
    ],
)
def test_options_unknown_to_obstore_fall_back_to_s3fs(other):
    options = {**S3FS, **other}
    assert not is_obstore_usable(options)
    given = to_s3fs_options(parse_s3_options(options))
    for name, value in other.items():
        if isinstance(value, dict):
            assert value.items() <= given[name].items()
        else:
            assert given[name] == value
    assert type(open_store("s3://bucket/t", {**S3FS, "requester_pays": True})) is S3Store


def test_missing_static_credentials_fall_back_to_s3fs(monkeypatch):
    assert not is_obstore_usable({})
    assert not is_obstore_usable({"key": "AKIAKEY"})
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert is_obstore_usable({})


def test_s3fs_retries_are_disabled_and_timeouts_set():
    given = to_s3fs_options(WANTED)["config_kwargs"]
    assert given["retries"] == {"total_max_attempts": 1}
    assert to_s3fs_options(WANTED, 2.0)["config_kwargs"]["read_timeout"] == 2.0
    assert (
        to_s3fs_options(WANTED, 60.0)["config_kwargs"]["read_timeout"]
        == given["read_timeout"]
        == 10
    )
    store = open_store("s3://bucket/t", S3FS, accelerate=False)
    assert store.fs.retries == 1


def test_virtual_hosted_style_in_both_clients():
    found = parse_s3_options({**S3FS, "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"})
    assert to_s3fs_options(found)["config_kwargs"]["s3"] == {"addressing_style": "virtual"}
    assert _config(found)["aws_virtual_hosted_style_request"] is True


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_accelerate_false_selects_s3fs(scheme):
    assert type(open_store(f"{scheme}://bucket/t", S3FS)) is ObstoreS3
    assert type(open_store(f"{scheme}://bucket/t", S3FS, accelerate=True)) is ObstoreS3
    assert type(open_store(f"{scheme}://bucket/t", S3FS, accelerate=False)) is S3Store
    assert open_store(f"{scheme}://bucket/t", S3FS).root == "s3://bucket/t"


def test_s3fs_is_used_when_obstore_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    assert not is_obstore_usable(S3FS)
    assert type(open_store("s3://bucket/t", S3FS)) is S3Store


@pytest.mark.parametrize("uri", ["s3://k:s@bucket/t", "s3://k@bucket/t", "s3a://bucket/t?x=1"])
def test_uri_with_query_or_credentials_is_refused(uri):
    with pytest.raises(InvalidRequest, match="storage_options"):
        open_store(uri, S3FS)


def test_predecessor_name_sorts_before_the_name():
    for name in (
        "0",
        "00",
        "10",
        "19",
        "a",
        "z",
        "~",
        "\x7f",
        "ü",
        "\ue000",
        "\U0010ffff",
        "a/",
        "",
    ):
        before = predecessor_name(name)
        assert before < name or before == name == ""
        before.encode()


@pytest.mark.parametrize("accelerate", [False, True], ids=["s3fs", "obstore"])
@pytest.mark.parametrize("how", ["s3fs", "environment spelling", "environment"])
def test_every_spelling_reaches_the_same_object(seaweedfs, monkeypatch, accelerate, how, request):
    """SeaweedFS verifies signatures, so a wrong key or region would be refused."""
    server, _ = seaweedfs
    said = {
        "AWS_ACCESS_KEY_ID": server.options["key"],
        "AWS_SECRET_ACCESS_KEY": server.options["secret"],
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": server.url,
    }
    options = {"s3fs": server.options, "environment spelling": said, "environment": {}}[how]
    if how == "environment":
        for name, value in said.items():
            monkeypatch.setenv(name, value)
    uri = f"s3://bucket/options/{request.node.name}"
    store = open_store(uri, options, accelerate=accelerate)
    assert type(store) is (ObstoreS3 if accelerate else S3Store)
    assert store.put_if_absent("k", how.encode()) is PutOutcome.DONE
    other = open_store(uri, server.options, accelerate=not accelerate)
    assert other.get("k") == how.encode()
    assert other.put_if_absent("k", b"late") is PutOutcome.EXISTS
