"""Run a process with a memory cap, and measure the memory and CPU time of it and its children.

The kernel enforces the cap if a control group can be created. Otherwise a polling loop kills the
process when it exceeds the cap, up to 10 ms late. In both cases the process is killed, as in a
container that runs out of memory. Memory of
libraries, which are loaded before the cap is set, does not count.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid

_POLL = 0.01  # seconds
_V1 = "/sys/fs/cgroup/memory"
_V2 = "/sys/fs/cgroup"


class Group:
    """A control group with a memory limit, for one process without its children."""

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
        """Move a process into the group. Returns False, and removes the group, if that fails."""
        try:
            self._write("cgroup.procs", process)
        except OSError:
            self.close()
            return False
        return True

    def close(self):
        """Remove the group, after its last process has ended."""
        for _ in range(100):  # the kernel needs a moment after the process has ended
            with contextlib.suppress(OSError):
                os.rmdir(self.path)
                return
            time.sleep(_POLL)


def group(megabytes):
    """A control group, or None if it cannot be created."""
    try:
        return Group(megabytes)
    except OSError:
        return None


def resident(process):
    """Resident megabytes of a process, and their peak; zeros if it has ended."""
    sizes = {"VmRSS": 0, "VmHWM": 0}
    with contextlib.suppress(OSError), open(f"/proc/{process}/status") as lines:
        for line in lines:
            name, _, rest = line.partition(":")
            if name in sizes:
                sizes[name] = int(rest.split()[0]) / 1024
    return sizes["VmRSS"], sizes["VmHWM"]


def descendants(process):
    """The descendants of a process: {pid: whether it is Java}."""
    parents, kinds = {}, {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
            head, _, tail = file.read().rpartition(")")
            parents[int(name)] = int(tail.split()[1])
            kinds[int(name)] = head.partition("(")[2] == "java"
    found, generation = {}, {process}
    while generation:
        generation = {one for one, parent in parents.items() if parent in generation} - set(found)
        found |= {one: kinds[one] for one in generation}
    return found


def cpu_seconds(process):
    """CPU seconds of a process and of its children that have ended."""
    with contextlib.suppress(OSError), open(f"/proc/{process}/stat") as file:
        ticks = file.read().rpartition(")")[2].split()[11:15]
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return 0.0


def run(arguments, cap=None):
    """Run Python with these arguments. It prints `ready`, and continues after the cap is set.

    Returns its last line ("output"), its stderr ("errors"), how it ended ("outcome"), "seconds",
    CPU seconds of it and its children ("cpu"), what enforced the cap, and peak megabytes of the
    process ("driver"), of "java" and of all "workers" together.
    """
    limits = None if cap is None else group(cap)
    command = [sys.executable, *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    try:
        with subprocess.Popen(command, text=True, **pipes) as process:
            line = process.stdout.readline()
            if line.strip() != "ready":
                raise SystemExit(f"{arguments} failed:\n{process.stderr.read()}")
            if limits is not None and not limits.join(process.pid):
                limits = None
            started = time.perf_counter()
            process.stdin.write("go\n")
            process.stdin.flush()
            peaks = _watch(process, cap if limits is None else None)
            seconds = time.perf_counter() - started
            out, errors = process.stdout.read(), process.stderr.read()
    finally:
        if limits is not None:
            limits.close()
    code = process.returncode
    outcome = "killed" if code == -signal.SIGKILL else "done" if code == 0 else f"exit code {code}"
    last = (out.strip().splitlines() or [""])[-1]
    result = {"output": last, "errors": errors, "outcome": outcome, "seconds": seconds}
    return result | {"enforced_by": "kernel" if limits is not None else "polling"} | peaks


def _watch(process, cap):
    """Poll until the process ends: peak MB, and CPU seconds. Kills it if it exceeds `cap`."""
    peaks = {"driver": 0.0, "java": 0.0, "workers": 0.0}
    before = {one: cpu_seconds(one) for one in (process.pid, *descendants(process.pid))}
    spent = dict(before)
    first = resident(process.pid)[0]
    for turn in range(10**7):
        if process.poll() is not None:
            break
        now, peak = resident(process.pid)
        peaks["driver"] = max(peaks["driver"], peak)
        if cap is not None and now - first > cap:
            process.kill()
        if turn % 10 == 0:
            java = workers = 0.0
            spent[process.pid] = max(spent[process.pid], cpu_seconds(process.pid))
            for one, is_java in descendants(process.pid).items():
                spent[one] = max(spent.get(one, 0.0), cpu_seconds(one))
                size = resident(one)[0]
                java, workers = (java + size, workers) if is_java else (java, workers + size)
            peaks["java"] = max(peaks["java"], java)
            peaks["workers"] = max(peaks["workers"], workers)
        time.sleep(_POLL)
    return peaks | {"cpu": sum(spent.values()) - sum(before.values())}
