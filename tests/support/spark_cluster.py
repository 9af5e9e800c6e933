"""A standalone Spark cluster on loopback: a master and two workers, each a process with a Java.

The workers are on two addresses, as speculation runs a second attempt on another host only. All
end with the test process, however that ends.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pyspark

from arrowlog.spark.java import find_java_home
from support import s3_servers
from support.waiting import wait_until

HOSTS = ("127.0.0.1", "127.0.0.2")
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # starts faster
_DAEMON_MEMORY = "192m"


@dataclass(frozen=True)
class Cluster:
    """The address of a running cluster."""

    url: str
    java_home: str

    @property
    def settings(self):
        """Settings of a session on it: one executor on each worker."""
        return {
            "spark.master": self.url,
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": 1,
            "spark.executor.extraJavaOptions": JAVA_OPTIONS,
            "spark.scheduler.minRegisteredResourcesRatio": 1.0,
            "spark.sql.shuffle.partitions": 2,
        }


@contextlib.contextmanager
def start(folder):
    """Run a cluster that works below a folder."""
    home = find_java_home()
    (port, ui) = s3_servers._free_ports(2)
    url = f"spark://{HOSTS[0]}:{port}"
    master = ("master.Master", "--port", port, "--webui-port", ui)
    processes = [_start(folder, home, HOSTS[0], *master)]
    try:
        wait_until(lambda: _state(ui) is not None or _ended(processes), "the master")
        for host in HOSTS:
            worker = ("worker.Worker", "--port", 0, "--webui-port", 0)
            limits = ("--cores", 1, "--memory", "1g", "--work-dir", f"{folder}/{host}", url)
            processes.append(_start(folder, home, host, *worker, *limits))
        wait_until(lambda: _workers(ui) == len(HOSTS) or _ended(processes), "the workers")
        assert not _ended(processes), (Path(folder) / "daemons").read_text()[-3000:]
        yield Cluster(url, home)
    finally:
        for process in processes:
            process.stdin.close()  # the watcher ends the process and itself
        for process in processes:
            process.wait()


def _start(folder, home, host, what, *options):
    spark_home = os.path.dirname(pyspark.__file__)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {
        "JAVA_HOME": home,
        "JDK_JAVA_OPTIONS": JAVA_OPTIONS,
        "SPARK_HOME": spark_home,
        "SPARK_DAEMON_MEMORY": _DAEMON_MEMORY,
        "SPARK_LOCAL_IP": host,
    }
    command = [f"{spark_home}/bin/spark-class", f"org.apache.spark.deploy.{what}", "--host", host]
    with open(f"{folder}/daemons", "ab") as output:
        return subprocess.Popen(
            [sys.executable, s3_servers.__file__, "watch", *command, *map(str, options)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=environment,
        )


def _ended(processes):
    return any(process.poll() is not None for process in processes)


def _state(ui):
    try:
        with urllib.request.urlopen(f"http://{HOSTS[0]}:{ui}/json/", timeout=10) as answer:
            return json.load(answer)
    except (OSError, urllib.error.URLError):
        return None


def _workers(ui):
    return (_state(ui) or {}).get("aliveworkers", 0)


def kill_executor(app):
    """End one executor of an application with SIGKILL; return its process id."""
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{entry}/cmdline").read_bytes().decode().split("\0")
            named = "org.apache.spark.executor.CoarseGrainedExecutorBackend" in words
            if named and app in words:
                os.kill(int(entry), signal.SIGKILL)
                return int(entry)
    raise AssertionError(f"{app} has no executor")


def python_without_arrowlog(folder, *, dependencies):
    """Make a Python that cannot import arrowlog, with or without what arrowlog requires.

    Returns the path of the program.
    """
    packages = Path(folder) / "packages"
    packages.mkdir()
    if dependencies:
        for entry in Path(sysconfig.get_path("purelib")).iterdir():
            name = entry.name.lower()
            if (
                not name.startswith(("arrowlog", "__editable__", "pyspark"))
                and entry.suffix != ".pth"
            ):
                (packages / entry.name).symlink_to(entry)
    program = Path(folder) / "python"
    path = f'"{packages}:$PYTHONPATH"' if dependencies else '"$PYTHONPATH"'
    program.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec "{sys.executable}" -S "$@"\n')
    program.chmod(0o700)
    return program
