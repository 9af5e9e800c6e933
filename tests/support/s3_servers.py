"""S3 servers for tests: moto (in memory) and SeaweedFS (a real server, from its wheel).

Each runs in its own process, which ends when the test process ends, however that happens.
"""

import contextlib
import glob
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

BUCKET = "bucket"
KEY, SECRET = "AKIATESTS", "a/secret+of=tests"
_START_SECONDS_MAX = 180


@dataclass(frozen=True, slots=True)
class Server:
    """The address of a server; its credentials are the same for all."""

    name: str
    url: str

    @property
    def options(self):
        """Options for a store on this server, as s3fs spells them."""
        return {"key": KEY, "secret": SECRET, "endpoint_url": self.url, "region": "us-east-1"}

    def client(self):
        """Return a boto3 client, independent of arrowlog's stores."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
            config=Config(max_pool_connections=32),
        )


@contextlib.contextmanager
def moto():
    """Run moto with one request at a time: otherwise two conditional puts can both succeed."""
    process = subprocess.Popen(
        [sys.executable, __file__, "moto"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        port = process.stdout.readline().strip()
        if not port:
            raise RuntimeError("moto did not start; its message is above")
        server = Server("moto", f"http://127.0.0.1:{port}")
        server.client().create_bucket(Bucket=BUCKET)
        yield server
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@contextlib.contextmanager
def seaweedfs():
    """Run a SeaweedFS server on free ports, with credentials."""
    for last in (False, False, True):  # another program may take a port before it does
        folder = tempfile.mkdtemp(prefix="arrowlog-weed-")
        process, ports = _start_weed(folder)
        server = Server("seaweedfs", f"http://127.0.0.1:{ports['s3']}")
        try:
            try:
                _wait_for(server, process, f"{folder}/output")
            except RuntimeError:
                if last:
                    raise
                continue
            yield server
            return
        finally:
            _end_weed(folder, process, ports)


def _start_weed(folder):
    names = ("master", "master.grpc", "volume", "volume.grpc", "filer", "filer.grpc", "s3")
    ports = dict(zip((*names, "s3.grpc"), _free_ports(8), strict=True))
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List"],
    }
    Path(folder, "s3.json").write_text(json.dumps({"identities": [identity]}), encoding="utf-8")
    options = [
        f"-{part.partition('.')[0]}.port{'.grpc' if part.endswith('grpc') else ''}={port}"
        for part, port in ports.items()
    ]
    command = [
        os.path.join(sysconfig.get_path("scripts"), "weed"),
        "server",
        "-s3",
        f"-s3.config={folder}/s3.json",
        "-s3.autoCreateBucket=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-volume.max=0",
        "-master.volumeSizeLimitMB=64",
        "-master.telemetry=false",
        *options,
    ]
    watched = [sys.executable, __file__, "watch", *command]
    with open(f"{folder}/output", "wb") as output:
        process = subprocess.Popen(
            watched, cwd=folder, stdin=subprocess.PIPE, stdout=output, stderr=output
        )
    return process, ports


def _end_weed(folder, process, ports):
    process.stdin.close()  # the watcher ends it and itself
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)
    for port in ports.values():
        for name in glob.glob(f"/tmp/seaweedfs-*-{port}.sock"):
            os.unlink(name)


def _wait_for(server, process, output):
    """Wait until a bucket can be created and written to."""
    stop = time.monotonic() + _START_SECONDS_MAX
    client, error = None, None
    while time.monotonic() < stop and process.poll() is None:
        try:
            if client is None:
                with urllib.request.urlopen(f"{server.url}/status", timeout=10):
                    client = server.client()
            with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou):
                client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="ready", Body=b"1")
        except Exception as caught:  # noqa: BLE001 -- it says no in many ways before it says yes
            error = caught
            time.sleep(0.05)
        else:
            return
    tail = Path(output).read_text(encoding="utf-8", errors="replace")[-2000:]
    raise RuntimeError(f"SeaweedFS did not start: {error}\n{tail}")


def _free_ports(count):
    """Return free ports below the range of outgoing connections."""
    found = []
    for port in random.SystemRandom().sample(range(20_000, 32_000), 1_000):
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError("no free ports")


def _serve_moto():
    """Serve until the test process has ended."""
    import logging

    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    WSGIRequestHandler.protocol_version = "HTTP/1.1"  # keep connections, as S3 does
    whole = DomainDispatcherApplication(create_backend_app)
    lock = threading.Lock()

    def one_at_a_time(environ, start_response):
        with lock:
            return whole(environ, start_response)

    server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()
    os._exit(0)


def _watch(command):
    """Run a program until the test process has ended."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def end(*_):
        process.kill()  # asked politely, SeaweedFS takes half a minute
        process.wait()
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    threading.Thread(target=lambda: (process.wait(), os._exit(1)), daemon=True).start()
    sys.stdin.read()
    end()


if __name__ == "__main__":
    if sys.argv[1] == "moto":
        _serve_moto()
    else:
        _watch(sys.argv[2:])
