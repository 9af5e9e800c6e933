"""A place for a table in every kind of store, with access that is independent of arrowlog."""

import asyncio
import os
import uuid

import fsspec

from arrowlog.storage import LocalStore, open_store
from support.s3_servers import BUCKET

KINDS = ["local", "memory", "s3fs-moto", "obstore-moto", "s3fs-seaweedfs", "obstore-seaweedfs"]
_SESSIONS = {}


class Local:
    """A local folder."""

    def __init__(self, root):
        """`root` need not exist."""
        self.uri, self.options = str(root), {}
        self.store = LocalStore(self.uri)

    def put(self, key, data):
        """Write a file."""
        path = f"{self.store.root}/{key}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as out:
            out.write(data)

    def put_many(self, found):
        """Write many objects."""
        for key, data in found.items():
            self.put(key, data)

    def read(self, key):
        """Return an object, or None."""
        try:
            with open(f"{self.store.root}/{key}", "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def again(self, **how):
        """Open another store on the same place."""
        return open_store(self.uri, self.options, **how)


class Memory(Local):
    """A folder in memory, accessed with fsspec."""

    def __init__(self):
        """Create a place with a unique name."""
        self.uri, self.options = f"memory://contract-{uuid.uuid4()}/table", {}
        self.store = open_store(self.uri)

    def put(self, key, data):
        """Write an object."""
        fsspec.filesystem("memory").pipe_file(f"{self.uri}/{key}", data)

    def read(self, key):
        """Return an object, or None."""
        try:
            return fsspec.filesystem("memory").cat_file(f"{self.uri}/{key}")
        except FileNotFoundError:
            return None


class S3(Local):
    """A folder of a bucket, accessed with boto3."""

    def __init__(self, server, *, accelerate, writer=None):
        """`accelerate` selects obstore, otherwise s3fs."""
        self.accelerate = accelerate
        self.prefix = f"t-{uuid.uuid4()}/table"
        self.uri, self.options = f"s3://{BUCKET}/{self.prefix}", server.options
        self.writer = writer or server.client()
        self.store = self.shared()

    def put(self, key, data):
        """Write an object."""
        self.writer.put_object(Bucket=BUCKET, Key=f"{self.prefix}/{key}", Body=data)

    def put_many(self, found):
        """Write many objects concurrently."""
        asyncio.run(_put_many(self.options, self.prefix, found))

    def read(self, key):
        """Return an object from the server, or None."""
        try:
            return self.writer.get_object(Bucket=BUCKET, Key=f"{self.prefix}/{key}")["Body"].read()
        except self.writer.exceptions.NoSuchKey:
            return None

    def again(self, **how):
        """Open another store on the same place."""
        return open_store(self.uri, self.options, **{"accelerate": self.accelerate, **how})

    def shared(self, name="", **how):
        """Open a store that shares one s3fs session with all tests: creating one is slow."""
        store = self.again(**how)
        if not self.accelerate:
            session = _SESSIONS.setdefault((self.options["endpoint_url"], name), store.fs)
            store._connection = (os.getpid(), session, store.path("").rstrip("/"))
        return store


async def _put_many(options, prefix, found):
    import obstore
    from obstore.store import S3Store

    client = S3Store(
        BUCKET,
        prefix=prefix,
        config={
            "aws_access_key_id": options["key"],
            "aws_secret_access_key": options["secret"],
            "aws_endpoint": options["endpoint_url"],
            "aws_region": options["region"],
        },
        client_options={"allow_http": True},
    )
    room = asyncio.Semaphore(16)

    async def put(key, data):
        async with room:
            await obstore.put_async(client, key, data)

    await asyncio.gather(*(put(key, data) for key, data in found.items()))


def make(kind, request):
    """Create an empty place of a kind."""
    if kind == "local":
        return Local(request.getfixturevalue("tmp_path") / "table")
    if kind == "memory":
        return Memory()
    client, _, server = kind.partition("-")
    found, writer = request.getfixturevalue(server)
    return S3(found, accelerate=client == "obstore", writer=writer)
