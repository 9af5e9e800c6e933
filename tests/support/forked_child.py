"""Run calls in forked children, and report children that hang or crash."""

import os
import select
import signal
import sys

SECONDS_MAX = 300  # against hanging


def in_child(call, *, orderly=False):
    """Return as text what a call returns or raises in a forked child, or how the child failed.

    The child exits at once, as those of multiprocessing do. With `orderly` it finalizes the
    interpreter, as a worker of a server does; only for programs of their own, since it would run
    pytest's exit hooks in the child.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = repr(call())
        except BaseException as error:  # noqa: BLE001 -- it is the parent that judges
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode()[:60_000])
        os.close(write)
        if orderly:
            sys.exit(0)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        ready, _, _ = select.select([answer], [], [], SECONDS_MAX)
        said = answer.read().decode() if ready else "nothing"
    ended = os.pidfd_open(child)
    try:
        if not select.select([ended], [], [], SECONDS_MAX if ready else 0)[0]:
            os.kill(child, signal.SIGKILL)
            said = f"hung after {said}"
    finally:
        os.close(ended)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return said if code == 0 else f"exit {code} after {said}"
