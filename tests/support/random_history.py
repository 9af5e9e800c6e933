"""Random histories of tables that arrowlog wrote, with checkpoints."""

import pyarrow as pa

import arrowlog

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64())])


def history(root, rng):
    """Append, remove, overwrite and checkpoint; return the live files of every version."""
    quiet = {"checkpoint.enabled": False, "checkpoint.format": rng.choice(["both", "json"])}
    table = arrowlog.Table.create(root, SCHEMA, ["p"], options=quiet)
    states = [set()]
    for version in range(1, rng.randrange(4, 9)):
        live = set(states[-1])
        adds = [f"p={rng.randrange(3)}/{version}-{n}" for n in range(rng.randrange(1, 5))]
        fields = [arrowlog.add_file(path, {"p": path[2]}, size=1) for path in adds]
        kind = rng.choice(["append", "append", "remove", "overwrite"])
        if kind == "remove" and live:
            gone = rng.sample(sorted(live), 1)
            table.commit(fields, gone)
            live -= set(gone)
        elif kind == "overwrite":
            table.overwrite(fields)
            live = set()
        else:
            table.append(fields)
        states.append(live | set(adds))
        if rng.random() < 0.3:
            table.checkpoint()
    return states
