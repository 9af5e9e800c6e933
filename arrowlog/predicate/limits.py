"""Limits on the size and depth of predicates; larger ones raise InvalidRequest.

Predicate trees are traversed recursively, here and in the engines that they are passed to. So the
depth is limited well below what Python's stack holds. Long chains of AND and OR do not count as
deep: they are one node with many operands.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from arrowlog.errors import InvalidRequest
from arrowlog.predicate.ast import Call

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrowlog.predicate.ast import Node

PREDICATE_DEPTH_MAX = 150  # levels
PREDICATE_CONDITIONS_MAX = 100_000  # calls in a tree; the values of an IN list do not count
_HINT = "Write a list of values as IN (…), and long chains as one AND or OR without parentheses."
# Engines need up to 300 bytes of stack per level to serialize an expression.
_STACK_BYTES = 1 << 28
_Result = TypeVar("_Result")


def check_predicate_size(tree: Node) -> None:
    """Raise InvalidRequest for a tree that is too deep or has too many calls."""
    level: list[Node] = [tree]
    depth = conditions = 0
    while level:
        calls = [node for node in level if isinstance(node, Call)]
        conditions += len(calls)
        depth += 1
        if depth > PREDICATE_DEPTH_MAX:
            raise predicate_too_deep_error()
        if conditions > PREDICATE_CONDITIONS_MAX:
            raise predicate_too_long_error()
        level = [arg for call in calls for arg in call.args]


def predicate_too_deep_error() -> InvalidRequest:
    """The error for a predicate with too many levels."""
    return InvalidRequest(
        f"The predicate is nested too deeply: more than {PREDICATE_DEPTH_MAX} levels.", next=_HINT
    )


def predicate_too_long_error() -> InvalidRequest:
    """The error for a predicate with too many conditions."""
    return InvalidRequest(
        f"The predicate is too long: more than {PREDICATE_CONDITIONS_MAX:,} conditions.", next=_HINT
    )


def run_on_deep_stack(call: Callable[[], _Result]) -> _Result:
    """Run a call in a thread with a large stack and return its result.

    For engine functions that recurse once per level of an expression. With the default stack, some
    ten thousand levels crash the process, and engines cannot report the depth in advance. Falls
    back to the caller's stack if the thread cannot be started.
    """
    results: list[_Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 -- raised again in the caller
            errors.append(error)

    thread = threading.Thread(target=run, name="arrowlog-predicate")
    before = threading.stack_size(_STACK_BYTES)
    try:
        thread.start()
    except RuntimeError:  # not enough memory for the stack
        return call()
    finally:
        threading.stack_size(before)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
