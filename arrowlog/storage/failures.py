"""Failures of stores: their cause, told from what the store's library raised.

Operating systems say it by `errno`, S3 by a code in the response, libraries by types of their own
and by text. `store_error` finds the evidence in an exception and in the exceptions below it, and
returns the error of arrowlog for the cause: its own type, sentence and next step. The text of the
exception is used only if the cause stays unknown.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrowlog.errors import (
    AccessDenied,
    BucketNotFound,
    CredentialsMissing,
    CredentialsRefused,
    ReadOnlyStore,
    StoreFull,
    StoreThrottled,
    StoreTimeout,
    StoreUnavailable,
    StoreUnreachable,
    TlsFailed,
    UnknownStorageOption,
    redact,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_MAX_CHAIN = 8  # exceptions below an exception that are searched for evidence
_MAX_OPTIONS_NAMED = 12  # in the message about an unknown option without a similar known one
_SERVER_ERROR = 500  # HTTP statuses from here on
_HTTP_STATUS = re.compile(r"status code: (\d{3})\b")
_XML_CODE = re.compile(r"<Code>([A-Za-z0-9._-]{1,64})</Code>")
_XML_MESSAGE = re.compile(r"<Message>([^<]{1,300})</Message>")
# obstore appends the structure of the error, in which the causes of failed connections are named.
_DEBUG_MARK = "\n\nDebug source:"
# What libraries put before the failure itself: obstore the request and its duration, s3fs a number.
_PREAMBLE = re.compile(r"^(?:.*? in [0-9.]+[^ ]*s - |Generic \w+ error: |\[Errno \d+\] )+")
_UNEXPECTED_OPTION = re.compile(r"unexpected keyword argument '([^']+)'")


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause of failures: the error to raise, its sentence and its next step.

    `reason` completes "Could not read X: …".
    """

    error: type[StoreUnavailable]
    reason: str
    next: str


_CHECK_CREDENTIALS = (
    "Check the storage options key, secret and token, or the environment variables"
    " AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN."
)
_CHECK_PERMISSIONS = (
    "Ask the owner of the bucket for permission to list, read and, for changes, write and delete"
    " below this address."
)
_CHECK_SERVER = "Check the network, the storage option endpoint_url and that the server runs."
_CHECK_REGION = "Set the storage option region to the region of the bucket."
_REFUSED = Cause(CredentialsRefused, "the store refused the credentials", _CHECK_CREDENTIALS)
_EXPIRED = Cause(
    CredentialsRefused,
    "the credentials have expired",
    "Get new credentials, and give the key, the secret and the token that belong together.",
)
_NO_CREDENTIALS = Cause(
    CredentialsMissing,
    "no credentials were found",
    "Give the storage options key and secret, set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or"
    " set the storage option anon=true for a public bucket.",
)
_CLOCK_SKEW = Cause(
    CredentialsRefused,
    "the store refused the signature because the clock of this machine is wrong",
    "Set the clock of this machine and try again.",
)
# A response without a body, as every response to a HEAD request, does not tell which one it is.
_FORBIDDEN = Cause(
    CredentialsRefused,
    "the store refused the credentials, or they do not permit this",
    _CHECK_CREDENTIALS,
)
_DENIED = Cause(AccessDenied, "the credentials do not permit this", _CHECK_PERMISSIONS)
_NO_BUCKET = Cause(
    BucketNotFound,
    "the bucket does not exist",
    "Check the address and the storage option endpoint_url, or create the bucket.",
)
_BAD_BUCKET = Cause(BucketNotFound, "this is not the name of a bucket", "Correct the address.")
_WRONG_REGION = Cause(
    StoreUnavailable, "the bucket is in another region than the request says", _CHECK_REGION
)
_THROTTLED = Cause(
    StoreThrottled,
    "the store limits the rate of requests",
    "Wait and try again, or lower checkpoint.parallelism.",
)
_TIMED_OUT = Cause(
    StoreTimeout,
    "the store did not respond in time",
    "Try again, or raise checkpoint.read.timeoutSeconds.",
)
_UNKNOWN_HOST = Cause(StoreUnreachable, "the name of the server was not found", _CHECK_SERVER)
_CONNECTION_REFUSED = Cause(StoreUnreachable, "the server refused the connection", _CHECK_SERVER)
_NO_CONNECTION = Cause(StoreUnreachable, "no connection to the server", _CHECK_SERVER)
_CONNECTION_LOST = Cause(StoreUnreachable, "the connection to the server was lost", "Try again.")
_BAD_CERTIFICATE = Cause(
    TlsFailed,
    "the certificate of the server is not trusted",
    "Check the storage option endpoint_url, or add the server's certificate authority to those that"
    " this machine trusts.",
)
_TLS = Cause(
    TlsFailed,
    "the encrypted connection to the server failed",
    "Check the storage option endpoint_url: a server without TLS has an address with http://.",
)
_FREE_SPACE = "Free space there, for example with `arrowlog vacuum`, and try again."
_BY_ERRNO = {
    errno.EACCES: Cause(
        AccessDenied,
        "permission denied",
        "Check the owner and the mode of this path and of the folders above it.",
    ),
    errno.EROFS: Cause(
        ReadOnlyStore,
        "the file system is read-only",
        "Mount it with write access, or copy the table to another place.",
    ),
    errno.ENOSPC: Cause(StoreFull, "the disk is full", _FREE_SPACE),
    errno.EDQUOT: Cause(StoreFull, "the disk quota is used up", _FREE_SPACE),
    errno.EFBIG: Cause(
        StoreFull,
        "the file would be larger than the file system or the limit of the process allows",
        "Check `ulimit -f` and the largest file size of the file system.",
    ),
    errno.EIO: Cause(
        StoreUnavailable,
        "the device reported an I/O error",
        "Check the disk and the messages of the operating system.",
    ),
    errno.EMFILE: Cause(
        StoreUnavailable, "the process has too many open files", "Raise `ulimit -n` and try again."
    ),
    errno.ENFILE: Cause(
        StoreUnavailable, "the system has too many open files", "Close programs and try again."
    ),
    errno.ESTALE: Cause(
        StoreUnavailable,
        "the network file system no longer knows this file",
        "Mount the file system again and try again.",
    ),
    errno.ETIMEDOUT: _TIMED_OUT,
    errno.ECONNREFUSED: _CONNECTION_REFUSED,
    errno.ECONNRESET: _CONNECTION_LOST,
    errno.EPIPE: _CONNECTION_LOST,
    errno.EHOSTUNREACH: _NO_CONNECTION,
    errno.ENETUNREACH: _NO_CONNECTION,
}
_BY_ERRNO[errno.EPERM] = _BY_ERRNO[errno.EACCES]
# Codes in the responses of S3, Google Cloud Storage and Azure.
_BY_CODE = {
    "InvalidAccessKeyId": _REFUSED,
    "SignatureDoesNotMatch": _REFUSED,
    "InvalidToken": _REFUSED,
    "InvalidSecurity": _REFUSED,
    "InvalidClientTokenId": _REFUSED,
    "UnrecognizedClientException": _REFUSED,
    "AuthenticationFailed": _REFUSED,
    "InvalidAuthenticationInfo": _REFUSED,
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "RequestExpired": _EXPIRED,
    "RequestTimeTooSkewed": _CLOCK_SKEW,
    "AccessDenied": _DENIED,
    "AllAccessDisabled": _DENIED,
    "AccountProblem": _DENIED,
    "AuthorizationFailure": _DENIED,
    "AuthorizationPermissionMismatch": _DENIED,
    "NoSuchBucket": _NO_BUCKET,
    "ContainerNotFound": _NO_BUCKET,
    "InvalidBucketName": _BAD_BUCKET,
    "AuthorizationHeaderMalformed": _WRONG_REGION,
    "PermanentRedirect": _WRONG_REGION,
    "IllegalLocationConstraintException": _WRONG_REGION,
    "SlowDown": _THROTTLED,
    "Throttling": _THROTTLED,
    "ThrottlingException": _THROTTLED,
    "RequestLimitExceeded": _THROTTLED,
    "TooManyRequests": _THROTTLED,
    "ServerBusy": _THROTTLED,
    "RequestTimeout": _TIMED_OUT,
}
_BY_STATUS = {401: _REFUSED, 403: _FORBIDDEN, 408: _TIMED_OUT, 429: _THROTTLED, 504: _TIMED_OUT}
# Names of exception types of botocore, aiohttp, fsspec, google-auth and azure.
_BY_TYPE = {
    "NoCredentialsError": _NO_CREDENTIALS,
    "PartialCredentialsError": _NO_CREDENTIALS,
    "CredentialRetrievalError": _NO_CREDENTIALS,
    "DefaultCredentialsError": _NO_CREDENTIALS,
    "ProfileNotFound": Cause(
        CredentialsMissing,
        "the profile with the credentials was not found",
        "Check the storage option profile, AWS_PROFILE and the file ~/.aws/credentials.",
    ),
    "gaierror": _UNKNOWN_HOST,
    "SSLCertVerificationError": _BAD_CERTIFICATE,
    "ClientConnectorCertificateError": _BAD_CERTIFICATE,
    "SSLError": _TLS,
    "ClientConnectorSSLError": _TLS,
    "FSTimeoutError": _TIMED_OUT,
    "TimeoutError": _TIMED_OUT,
    "ConnectTimeoutError": _TIMED_OUT,
    "ReadTimeoutError": _TIMED_OUT,
    "ConnectionRefusedError": _CONNECTION_REFUSED,
    "ConnectionClosedError": _CONNECTION_LOST,
    "ServerDisconnectedError": _CONNECTION_LOST,
    "ClientPayloadError": _CONNECTION_LOST,
    "ConnectionResetError": _CONNECTION_LOST,
    "EndpointConnectionError": _NO_CONNECTION,
}
# What obstore's description of a failed connection contains, the most specific first.
_BY_DEBUG_TEXT = (
    ("dns error", _UNKNOWN_HOST),
    ("ConnectionRefused", _CONNECTION_REFUSED),
    ("InvalidCertificate", _BAD_CERTIFICATE),
    ("UnknownIssuer", _BAD_CERTIFICATE),
    ("InvalidMessage", _TLS),
    ("AlertReceived", _TLS),
    ("kind: Timeout", _TIMED_OUT),
    ("TimedOut", _TIMED_OUT),
    ("ConnectionReset", _CONNECTION_LOST),
    ("IncompleteMessage", _CONNECTION_LOST),
    ("kind: Interrupted", _CONNECTION_LOST),
    ("kind: Connect", _NO_CONNECTION),
)


def find_cause(error: BaseException) -> Cause | None:
    """Return the cause of a failure; None if nothing tells it.

    What the server answered outweighs everything else: its code, then its status. Then come the
    types of the exceptions, `errno`, and the description that obstore gives.
    """
    chain = list(_chain(error))
    if (code := response_code(error)) in _BY_CODE:
        return _BY_CODE[code]
    status = response_status(error)
    if status is not None:
        return _BY_STATUS.get(status)
    # The most specific type is often at the end: a refused connection below a general one.
    found = [cause for each in chain if (cause := _cause_of_type(each)) is not None]
    specific = [cause for cause in found if cause is not _NO_CONNECTION and cause is not _TLS]
    if found:
        return (specific or found)[0]
    debug = "".join(str(each).partition(_DEBUG_MARK)[2] for each in chain)
    cause = next((cause for mark, cause in _BY_DEBUG_TEXT if mark in debug), None)
    if cause is None and isinstance(error, PermissionError):
        return _DENIED
    return cause


def _cause_of_type(error: BaseException) -> Cause | None:
    """Return the cause that the type of one exception tells, or its `errno`.

    `errno` is not that of the operating system in errors of TLS and of name resolution; the types
    of those come first.
    """
    cause = _BY_TYPE.get(type(error).__name__)
    if cause is None and isinstance(error, OSError) and error.errno is not None:
        return _BY_ERRNO.get(error.errno)
    return cause


def response_code(error: BaseException) -> str | None:
    """Return the code in the response of a store, such as `NoSuchBucket`; None if there is none."""
    for each in _chain(error):
        response = getattr(each, "response", None)
        if isinstance(response, dict):
            code = response.get("Error", {}).get("Code")
            if isinstance(code, str) and not code.isdigit():
                return code
        match = _XML_CODE.search(str(each))
        if match is not None:
            return match[1]
    return None


def response_status(error: BaseException) -> int | None:
    """Return the HTTP status of the response of a store; None if there was no response."""
    for each in _chain(error):
        response = getattr(each, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if status:
                return int(status)
        match = _HTTP_STATUS.search(str(each).partition(_DEBUG_MARK)[0])
        if match is not None:
            return int(match[1])
    return None


def is_bucket_missing(error: BaseException) -> bool:
    """Return whether the store says that there is no such bucket."""
    return find_cause(error) in (_NO_BUCKET, _BAD_BUCKET)


def is_tls_failure(error: BaseException) -> bool:
    """Return whether no encrypted connection could be made, which a retry does not change."""
    return find_cause(error) in (_TLS, _BAD_CERTIFICATE)


def bucket_missing_error(verb: str, where: str) -> StoreUnavailable:
    """Return the error for an operation on a bucket that does not exist."""
    return BucketNotFound(_sentence(verb, where, _NO_BUCKET.reason), next=_NO_BUCKET.next)


def store_error(
    verb: str, where: str, error: BaseException, clean: Callable[[str], str] = redact
) -> StoreUnavailable:
    """Return the error for a failed operation, with its cause and what to do about it.

    `clean` removes secrets from text that the store or its library has written.
    """
    cause = find_cause(error)
    status, code = response_status(error), response_code(error)
    answer = " ".join(str(part) for part in (status, code) if part is not None)
    if cause is not None:
        details = f" ({clean(answer)})" if answer else ""
        return cause.error(_sentence(verb, where, f"{cause.reason}{details}"), next=cause.next)
    reason = clean(_describe(error, answer)) or type(error).__name__
    # A status from 500 on is a failure of the server, which may pass.
    advice = "Check the address and the store, and try again."
    advice = advice if status is None or status < _SERVER_ERROR else "Try again later."
    return StoreUnavailable(_sentence(verb, where, reason), next=advice)


def unknown_option_error(name: str, known: Iterable[str]) -> UnknownStorageOption:
    """Return the error for a storage option that does not exist, with the most similar one.

    >>> str(unknown_option_error("endpiont_url", ["key", "endpoint_url"]))
    "There is no storage option 'endpiont_url'. Did you mean 'endpoint_url'?"
    """
    names = sorted(set(known))
    from difflib import get_close_matches  # slow to import, and only for errors

    similar = get_close_matches(name.lower(), names, n=1)
    listed = ", ".join(names[:_MAX_OPTIONS_NAMED]) + (", …" * (len(names) > _MAX_OPTIONS_NAMED))
    advice = f"Did you mean {similar[0]!r}?" if similar else f"The options are {listed}."
    return UnknownStorageOption(
        f"There is no storage option {name!r}.", next=advice if names else "Leave it out."
    )


def find_unexpected_option(error: BaseException) -> str | None:
    """Return the option that a library refused as an unexpected argument; None if it did not."""
    match = _UNEXPECTED_OPTION.search(str(error)) if isinstance(error, TypeError) else None
    return None if match is None else match[1]


def _sentence(verb: str, where: str, reason: str) -> str:
    return f"Could not {verb} {where}: {reason.rstrip('.')}."


def _describe(error: BaseException, answer: str) -> str:
    """Describe an error whose cause is unknown on one line, without XML."""
    text = str(error).partition(_DEBUG_MARK)[0]
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror  # without the path, which the message names already
    message = _XML_MESSAGE.search(text)
    if answer:
        said = message[1] if message is not None else "" if "<?xml" in text else _last_part(text)
        return f"the server answered {answer}" + (f": {said.strip()}" if said.strip() else "")
    return _PREAMBLE.sub("", redact(text).split("\n", 1)[0]).strip()


def _last_part(text: str) -> str:
    """Return what a message says after the status, on one line.

    >>> _last_part("Generic S3 error: … status code: 500 Internal Server Error: out of order")
    'out of order'
    """
    match = _HTTP_STATUS.search(text)
    rest = _PREAMBLE.sub("", text) if match is None else text[match.end() :].partition(": ")[2]
    return rest.strip().split("\n", 1)[0]


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those that caused it or were being handled, outermost first."""
    current: BaseException | None = error
    for _ in range(_MAX_CHAIN):
        if current is None:
            return
        yield current
        # aiohttp keeps the failure of the operating system in an attribute.
        inner = getattr(current, "os_error", None)
        if isinstance(inner, BaseException):
            yield inner
        current = current.__cause__ or current.__context__
