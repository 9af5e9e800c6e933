"""A process that may have so much memory and no more, and what it and its children have.

The kernel keeps the cap where it lets us make a control group; elsewhere a watcher ends a process
that is over it, a hundredth of a second late. Either way it ends as in a container that is full,
and what it had before the cap was set, its libraries, does not count.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid

_POLL = 0.01
_V1 = "/sys/fs/cgroup/memory"
_V2 = "/sys/fs/cgroup"


class Group:
    """A control group with a limit of memory; the process that is named joins, its children no."""

    def __init__(self, megabytes):
        own = f"arrowlog-{uuid.uuid4().hex[:12]}"
        old = os.path.exists(f"{_V1}/memory.limit_in_bytes")
        self.path = f"{_V1 if old else _V2}/{own}"
        os.mkdir(self.path)
        try:
            limit = "memory.limit_in_bytes" if old else "memory.max"
            self._write(limit, megabytes << 20)
        except OSError:
            os.rmdir(self.path)
            raise

    def _write(self, name, value):
        with open(f"{self.path}/{name}", "w") as out:
            out.write(str(value))

    def join(self, process):
        """Whether the process is in it now; the group is gone if not."""
        try:
            self._write("cgroup.procs", process)
        except OSError:
            self.close()
            return False
        return True

    def close(self):
        for _ in range(100):  # the kernel needs a moment after the last process has gone
            with contextlib.suppress(OSError):
                os.rmdir(self.path)
                return
            time.sleep(_POLL)


def group(megabytes):
    """A control group, or None where we may not have one."""
    try:
        return Group(megabytes)
    except OSError:
        return None


def resident(process):
    """Megabytes of a process now, and the most it ever had; zeros if it is gone."""
    found = {"VmRSS": 0, "VmHWM": 0}
    with contextlib.suppress(OSError), open(f"/proc/{process}/status") as lines:
        for line in lines:
            name, _, rest = line.partition(":")
            if name in found:
                found[name] = int(rest.split()[0]) / 1024
    return found["VmRSS"], found["VmHWM"]


def family(process):
    """The process's descendants, by number: whether they are Java's."""
    parents, kinds = {}, {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
            head, _, tail = file.read().rpartition(")")
            parents[int(name)] = int(tail.split()[1])
            kinds[int(name)] = head.partition("(")[2] == "java"
    found, fresh = {}, {process}
    while fresh:
        fresh = {one for one, parent in parents.items() if parent in fresh} - set(found)
        found |= {one: kinds[one] for one in fresh}
    return found


def busy(process):
    """Seconds of the processor that a process has had, and those of its children that ended."""
    with contextlib.suppress(OSError), open(f"/proc/{process}/stat") as file:
        ticks = file.read().rpartition(")")[2].split()[11:15]
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return 0.0


def run(arguments, cap=None):
    """Run Python with these arguments; it says `ready`, is capped, goes on, and says what it found.

    Returns its last line, how it ended, seconds, those of the processor that it and its children
    had, and peak megabytes: its own, Java's and all workers' together.
    """
    limits = None if cap is None else group(cap)
    command = [sys.executable, *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    try:
        with subprocess.Popen(command, text=True, **pipes) as process:
            said = process.stdout.readline()
            if said.strip() != "ready":
                raise SystemExit(f"{arguments} failed:\n{process.stderr.read()}")
            if limits is not None and not limits.join(process.pid):
                limits = None
            started = time.perf_counter()
            process.stdin.write("go\n")
            process.stdin.flush()
            peaks = _watch(process, cap if limits is None else None)
            spent = time.perf_counter() - started
            out, wrong = process.stdout.read(), process.stderr.read()
    finally:
        if limits is not None:
            limits.close()
    code = process.returncode
    how = "killed" if code == -signal.SIGKILL else "done" if code == 0 else f"exit code {code}"
    last = (out.strip().splitlines() or [""])[-1]
    keeper = "kernel" if limits is not None else "watcher"
    found = {"said": last, "errors": wrong, "outcome": how, "seconds": spent, "keeper": keeper}
    return found | peaks


def _watch(process, cap):
    """Until it ends: the most it had, Java had, and workers had together."""
    peaks = {"driver": 0.0, "java": 0.0, "workers": 0.0}
    before = {one: busy(one) for one in (process.pid, *family(process.pid))}
    spent = dict(before)
    first = resident(process.pid)[0]
    for turn in range(10**7):
        if process.poll() is not None:
            break
        now, most = resident(process.pid)
        peaks["driver"] = max(peaks["driver"], most)
        if cap is not None and now - first > cap:
            process.kill()
        if turn % 10 == 0:
            java = workers = 0.0
            spent[process.pid] = max(spent[process.pid], busy(process.pid))
            for one, is_java in family(process.pid).items():
                spent[one] = max(spent.get(one, 0.0), busy(one))
                size = resident(one)[0]
                java, workers = (java + size, workers) if is_java else (java, workers + size)
            peaks["java"] = max(peaks["java"], java)
            peaks["workers"] = max(peaks["workers"], workers)
        time.sleep(_POLL)
    return peaks | {"cpu": sum(spent.values()) - sum(before.values())}
