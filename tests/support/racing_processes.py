"""Run the same function in several processes at once and collect what each returns."""

import multiprocessing
import traceback

from support.core_modules import core_modules

# obstore does not work in a forked child, so its processes are started anew.
SPAWN = multiprocessing.get_context("spawn")
# Children of a server process that has imported arrowlog and started no engine: quick to start.
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload([*core_modules(), "pytest"])

_BARRIER_SECONDS_MAX = 300  # against hanging
_EXIT_SECONDS_MAX = 60


def race(context, count, function, *arguments):
    """Return what `function(racer, wait, *arguments)` returns in each of `count` processes.

    `wait()` returns when all racers have called it. An error in one of them is raised here.
    """
    barrier = context.Barrier(count)
    pipes = [context.Pipe(duplex=False) for _ in range(count)]
    racers = [
        context.Process(target=_run, args=(end, barrier, function, racer, arguments))
        for racer, (_, end) in enumerate(pipes)
    ]
    for racer in racers:
        racer.start()
    try:
        answers = [_receive(begin, racer) for (begin, _), racer in zip(pipes, racers, strict=True)]
    finally:
        for racer in racers:
            racer.join(_EXIT_SECONDS_MAX)
            racer.kill()
            racer.join()
    for answer in answers:
        if isinstance(answer, str):
            raise RuntimeError(answer)
    return answers


def _receive(pipe, racer):
    while not pipe.poll(1):
        if not racer.is_alive() and not pipe.poll():
            raise RuntimeError(f"a racer ended with {racer.exitcode}")
    return pipe.recv()


def _run(pipe, barrier, function, racer, arguments):
    try:
        pipe.send(function(racer, lambda: barrier.wait(_BARRIER_SECONDS_MAX), *arguments))
    except BaseException:  # noqa: BLE001 -- raised again by the parent
        barrier.abort()
        pipe.send(traceback.format_exc())
