"""How long and how deep a predicate may be, so that one that is too large is refused in words.

Trees are walked by recursive functions here, and by the engines they are given to. The depth is
therefore limited well below what Python's stack holds. Long chains of AND and OR are no deep trees:
they are kept as one node with many parts.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from arrowlog.errors import InvalidRequest
from arrowlog.scan.tree import Call

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrowlog.scan.tree import Node

DEPTH_MAX = 150
CONDITIONS_MAX = 100_000  # calls in a tree; values in a list are none
_SHORTER = "Write a list of values as IN (…), and long chains as one AND or OR without parentheses."
_STACK_BYTES = 1 << 28  # engines take up to 300 bytes a level to write an expression down
_Answer = TypeVar("_Answer")


def check_size(tree: Node) -> None:
    """Refuse a tree that is too deep or has too many parts."""
    level: list[Node] = [tree]
    depth = conditions = 0
    while level:
        calls = [node for node in level if isinstance(node, Call)]
        conditions += len(calls)
        depth += 1
        if depth > DEPTH_MAX:
            raise too_deep()
        if conditions > CONDITIONS_MAX:
            raise too_long()
        level = [arg for call in calls for arg in call.args]


def too_deep() -> InvalidRequest:
    """The error for a predicate that is nested too deeply."""
    return InvalidRequest(
        f"The predicate is nested too deeply: more than {DEPTH_MAX} levels.", next=_SHORTER
    )


def too_long() -> InvalidRequest:
    """The error for a predicate that has too many conditions."""
    return InvalidRequest(
        f"The predicate is too long: more than {CONDITIONS_MAX:,} conditions.", next=_SHORTER
    )


def on_deep_stack(call: Callable[[], _Answer]) -> _Answer:
    """Make a call that an engine answers by recursion, one level for each of an expression's.

    On a usual stack some ten thousand levels end the process, and engines do not tell the depth of
    an expression beforehand.
    """
    answers: list[_Answer] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:  # noqa: BLE001 -- raised again where it belongs
            errors.append(error)

    thread = threading.Thread(target=run, name="arrowlog-predicate")
    before = threading.stack_size(_STACK_BYTES)
    try:
        thread.start()
    except RuntimeError:  # not so much memory to be had: the usual stack has to do
        return call()
    finally:
        threading.stack_size(before)
    thread.join()
    if errors:
        raise errors[0]
    return answers[0]
