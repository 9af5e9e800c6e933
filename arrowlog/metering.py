"""Metrics: counters and histograms of what arrowlog does, for the process and for each table.

`arrowlog.metrics` counts for the whole process, `Table.metrics()` for one handle. Both are
`Metrics`: a live view that prints well and converts to a dict and to Arrow. All instruments are
declared in `INSTRUMENTS`, from which `docs/reference/metrics.md` is generated.

Counting appends to a queue, which is added up when metrics are read, or when it is long. A forked
child starts at zero: otherwise what happened before the fork would be exported twice.

The export to OpenTelemetry uses its API alone; which SDK and exporter receive the metrics is up to
the application.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

from arrowlog.display import format_html_table, format_text_table
from arrowlog.errors import InvalidRequest
from arrowlog.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    Observer = Callable[[str, float, dict[str, str]], None]

# Upper bounds of the buckets of a histogram, by unit; the last bucket has no bound.
_BOUNDS: dict[str, tuple[float, ...]] = {
    "ms": tuple(m * 10.0**e for e in range(-1, 6) for m in (1, 2, 5)),
    "By": tuple(float(1 << e) for e in range(8, 41, 2)),
    "1": (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 50.0, 100.0),
}


@dataclass(frozen=True, slots=True)
class Instrument:
    """A counter or histogram: its unit in UCUM notation, its meaning, and its labels."""

    kind: str
    unit: str
    doc: str
    labels: tuple[str, ...] = ()


_STORE = ("store", "operation")
INSTRUMENTS: dict[str, Instrument] = {
    "opens": Instrument("counter", "1", "tables opened"),
    "loads": Instrument("counter", "1", "snapshots loaded from the log", ("source",)),
    "load_ms": Instrument("histogram", "ms", "time to load a snapshot", ("source",)),
    "refreshes": Instrument("counter", "1", "requests for the newest version"),
    "refresh_ms": Instrument("histogram", "ms", "time of a request for the newest version"),
    "commits_read": Instrument("counter", "1", "commits read by loads and refreshes"),
    "commits": Instrument("counter", "1", "commits that landed"),
    "commit_ms": Instrument("histogram", "ms", "time of a commit including retries"),
    "commit_bytes": Instrument("histogram", "By", "size of a commit as stored"),
    "commit_ratio": Instrument("histogram", "1", "compression ratio of a commit"),
    "commit_attempts": Instrument("counter", "1", "puts sent for commits"),
    "commit_retries": Instrument("counter", "1", "puts of commits beyond the first one"),
    "conflicts": Instrument("counter", "1", "commits refused by a conflict", ("error",)),
    "commits_unknown": Instrument("counter", "1", "commits of which the outcome stayed unknown"),
    "duplicates": Instrument("counter", "1", "application transactions that were there before"),
    "checkpoints": Instrument("counter", "1", "checkpoints written", ("trigger",)),
    "checkpoint_ms": Instrument("histogram", "ms", "time to write a checkpoint", ("trigger",)),
    "checkpoint_bytes": Instrument("histogram", "By", "size of a checkpoint as stored"),
    "checkpoint_ratio": Instrument("histogram", "1", "compression ratio of a checkpoint"),
    "checkpoint_failures": Instrument("counter", "1", "checkpoints that could not be written"),
    "checkpoints_bypassed": Instrument("counter", "1", "checkpoints that could not be used"),
    "checkpoints_mended": Instrument("counter", "1", "damaged checkpoints made anew"),
    "cleanups": Instrument("counter", "1", "cleanups of the log"),
    "cleanup_ms": Instrument("histogram", "ms", "time of a cleanup"),
    "cleanup_files": Instrument("counter", "1", "files of the log deleted"),
    "cleanup_bytes": Instrument("counter", "By", "bytes of the log deleted"),
    "cleanup_failures": Instrument("counter", "1", "deletions of log files that failed"),
    "vacuums": Instrument("counter", "1", "vacuum runs"),
    "vacuum_files": Instrument("counter", "1", "data files deleted by vacuum"),
    "vacuum_bytes": Instrument("counter", "By", "bytes of data files deleted by vacuum"),
    "compactions": Instrument("counter", "1", "compaction runs"),
    "compacted_files": Instrument("counter", "1", "small files replaced by compaction"),
    "skips_recorded": Instrument("counter", "1", "files recorded as skipped by merges"),
    "cache_requests": Instrument("counter", "1", "requests to a handle's caches", ("cache",)),
    "cache_hits": Instrument("counter", "1", "those answered by the cache", ("cache",)),
    "store_requests": Instrument("counter", "1", "requests to a store", _STORE),
    "store_bytes_read": Instrument("counter", "By", "bytes received from a store", ("store",)),
    "store_bytes_written": Instrument("counter", "By", "bytes sent to a store", ("store",)),
    "store_retries": Instrument("counter", "1", "requests repeated after a failure", _STORE),
}

# The name of a counter or histogram, and the values of its labels.
CounterKey = tuple[str, tuple[str, ...]]


# The columns of a printed registry; those with numbers are right-aligned.
_HEADS = ("metric", "count", "mean", "p95", "max", "unit")
_RIGHT = (1, 2, 3, 4)


class _Shared:
    """What all registries share: the lock, and how often this process was forked."""

    lock = Lock()
    generation = 0


# What was counted and not added up yet: a registry's values, a key, an amount, and whether it is a
# value of a histogram. Appending to a deque is atomic and takes a fraction of what a lock takes.
_PENDING: deque[tuple[_Values, CounterKey, float, bool]] = deque()
_PENDING_MAX = 4096


def _in_child() -> None:
    _Shared.lock = Lock()  # another thread may have held the old one
    _Shared.generation += 1
    _PENDING.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def _add_up() -> None:
    """Add what is pending to the registries. Needs the lock."""
    sums: dict[tuple[_Values, CounterKey], int] = {}
    for _ in range(len(_PENDING)):
        values, key, amount, is_observed = _PENDING.popleft()
        if is_observed:
            values.observe(key, amount)
        else:
            both = (values, key)
            sums[both] = sums.get(both, 0) + int(amount)
    for (values, key), amount in sums.items():
        values.add(key, amount)


class Histogram:
    """The distribution of a value: count, sum, extremes, and counts by bucket."""

    __slots__ = ("bounds", "buckets", "count", "high", "low", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """Start empty."""
        self.bounds = bounds
        self.count = 0
        self.sum = 0.0
        self.low = float("inf")
        self.high = float("-inf")
        self.buckets = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        """Add a value."""
        self.count += 1
        self.sum += value
        self.low = min(self.low, value)
        self.high = max(self.high, value)
        self.buckets[bisect_left(self.bounds, value)] += 1

    def copy(self) -> Histogram:
        """Return a copy that does not change."""
        twin = Histogram(self.bounds)
        twin.count, twin.sum, twin.low, twin.high = self.count, self.sum, self.low, self.high
        twin.buckets = list(self.buckets)
        return twin

    def quantile(self, share: float) -> float:
        """Return an upper bound of a quantile: that of the bucket it is in, at most the maximum."""
        rank, seen = share * self.count, 0
        for bound, count in zip((*self.bounds, self.high), self.buckets, strict=True):
            seen += count
            if seen >= rank and count:
                return min(bound, self.high)
        return self.high

    def to_dict(self) -> dict[str, Any]:
        """Return count, sum, extremes, mean, quantiles, and the buckets that are not empty."""
        return {
            "count": self.count,
            "sum": round(self.sum, 3),
            "min": round(self.low, 3),
            "max": round(self.high, 3),
            "mean": round(self.sum / self.count, 3),
            "p50": round(self.quantile(0.5), 3),
            "p95": round(self.quantile(0.95), 3),
            "buckets": [
                {"le": bound, "count": count}
                for bound, count in zip((*self.bounds, None), self.buckets, strict=True)
                if count
            ],
        }


class _Values:
    """What one registry has counted. Read and changed under the lock.

    What is counted also counts in `above`, the registry of the process.
    """

    __slots__ = (
        *("above", "before_reset", "counters", "generation", "histograms"),
        *("observers", "started"),
    )

    def __init__(self, above: _Values | None) -> None:
        self.above = above
        self.observers: list[Observer] = []
        self._clear()

    def _clear(self) -> None:
        self.generation = _Shared.generation
        self.counters: dict[CounterKey, int] = {}
        self.before_reset: dict[CounterKey, int] = {}
        self.histograms: dict[CounterKey, Histogram] = {}
        self.started = time.monotonic()

    def renew(self) -> _Values:
        """Start at zero if what was counted was counted before a fork; return self."""
        if self.generation != _Shared.generation:
            self._clear()
        return self

    def add(self, key: CounterKey, amount: int) -> None:
        """Add to a counter here and above."""
        counters = self.renew().counters
        counters[key] = counters.get(key, 0) + amount
        if self.above is not None:
            self.above.add(key, amount)

    def observe(self, key: CounterKey, value: float) -> None:
        """Add to a histogram here and above."""
        histograms = self.renew().histograms
        if key not in histograms:
            histograms[key] = Histogram(_BOUNDS[INSTRUMENTS[key[0]].unit])
        histograms[key].add(value)
        if self.above is not None:
            self.above.observe(key, value)


class Metrics:
    """Counters and histograms since a process started, a table was opened, or `reset`.

    A live view: it shows what was counted when it is printed or converted. It can be shared by
    threads. It pickles as an empty one, and a forked child starts at zero.

    Examples:
        >>> import tempfile
        >>> import arrowlog, pyarrow as pa
        >>> table = arrowlog.Table.create(tempfile.mkdtemp(), pa.schema([("id", pa.int64())]))
        >>> table.write(pa.table({"id": [1]})).version
        1
        >>> table.metrics()["commits"], table.metrics()["conflicts"]
        (1, {})
    """

    def __init__(self, parent: Metrics | None = None) -> None:
        """Start at zero. What is counted here also counts in `parent`."""
        self._values: _Values = _Values(
            None if parent is None else parent._values  # noqa: SLF001 -- of the same class
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as an empty registry, which counts for the process that unpickles it."""
        return (_process_metrics if self._values.above is None else child_metrics), ()

    def add(self, name: str, amount: int = 1, *labels: str) -> None:
        """Add to a counter. `labels` are the values of its labels, in their order."""
        self.raise_counter((name, labels), amount)

    def raise_counter(self, key: CounterKey, amount: int = 1) -> None:
        """Add to a counter by its key, which is made once where it is used often."""
        _PENDING.append((self._values, key, amount, False))
        if len(_PENDING) > _PENDING_MAX:
            with _Shared.lock:
                _add_up()

    def observe(self, name: str, value: float, *labels: str) -> None:
        """Add a value to a histogram."""
        values, above = self._values, self._values.above
        _PENDING.append((values, (name, labels), value, True))
        for observer in (*values.observers, *(() if above is None else above.observers)):
            observer(name, value, dict(zip(INSTRUMENTS[name].labels, labels, strict=True)))

    def count_request(
        self, store: str, operation: str, requests: int = 1, received: int = 0, sent: int = 0
    ) -> None:
        """Count requests to a store, and the bytes of their bodies."""
        self.raise_counter(("store_requests", (store, operation)), requests)
        if received:
            self.raise_counter(("store_bytes_read", (store,)), received)
        if sent:
            self.raise_counter(("store_bytes_written", (store,)), sent)

    def reset(self) -> None:
        """Start again at zero. What is exported to OpenTelemetry is not affected."""
        with _Shared.lock:
            _add_up()
            values = self._values.renew()
            values.before_reset = dict(values.counters)
            values.histograms = {}
            values.started = time.monotonic()

    def totals(self, name: str) -> dict[tuple[str, ...], int]:
        """Return a counter by the values of its labels, from before a reset included."""
        with _Shared.lock:
            _add_up()
            found = self._values.renew().counters.items()
            return {labels: count for (each, labels), count in found if each == name}

    def _items(self) -> list[tuple[str, tuple[str, ...], int | Histogram]]:
        """Return all values at one moment, in the order of `INSTRUMENTS`."""
        with _Shared.lock:
            _add_up()
            values = self._values.renew()
            before = values.before_reset
            found: list[tuple[str, tuple[str, ...], int | Histogram]] = [
                (name, labels, count - before.get((name, labels), 0))
                for (name, labels), count in values.counters.items()
            ]
            found += [(name, k, h.copy()) for (name, k), h in values.histograms.items()]
        order = {name: number for number, name in enumerate(INSTRUMENTS)}
        counted = [
            item for item in found if item[2] != 0
        ]  # not what was last counted before a reset
        return sorted(counted, key=lambda item: (order[item[0]], item[1]))

    @property
    def seconds(self) -> float:
        """The seconds since the start, or since the last `reset`."""
        with _Shared.lock:
            return time.monotonic() - self._values.renew().started

    def per_hour(self, name: str) -> float:
        """Return how often a counter was raised per hour, over all of its labels."""
        values = [value for each, _, value in self._items() if each == name]
        count = sum(v.count if isinstance(v, Histogram) else v for v in values)
        return count * 3600 / max(self.seconds, 1e-9)

    def __getitem__(self, name: str) -> Any:
        """Return one value of `to_dict`; raises KeyError if there is no such instrument."""
        return self.to_dict()[name]

    def __contains__(self, name: object) -> bool:
        """Whether there is an instrument of that name."""
        return name in INSTRUMENTS

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the instruments, as over the keys of `to_dict`."""
        return iter(INSTRUMENTS)

    def to_dict(self) -> dict[str, Any]:
        """Return all instruments by name, ready for JSON.

        A counter is a number and a histogram a dict. One with labels is a dict by their values, for
        two labels one in another; what was never counted is not in it.
        """
        result: dict[str, Any] = {
            name: {} if item.labels or item.kind == "histogram" else 0
            for name, item in INSTRUMENTS.items()
        }
        for name, labels, value in self._items():
            shown = value.to_dict() if isinstance(value, Histogram) else value
            if not labels:
                result[name] = shown
                continue
            inner = result[name]
            for label in labels[:-1]:
                inner = inner.setdefault(label, {})
            inner[labels[-1]] = shown
        return result

    def to_arrow(self) -> pa.Table:
        """Return one row per instrument and label values that were counted.

        Columns: `metric`, `kind`, `unit`, `labels`, `count`, and for histograms `sum`, `min`,
        `max`, `mean`, `p50`, `p95` and `buckets`.
        """
        import pyarrow as pa

        number, text = pa.float64(), pa.string()
        buckets = pa.list_(pa.struct([("le", number), ("count", pa.int64())]))
        columns = [("metric", text), ("kind", text), ("unit", text)]
        columns += [("labels", pa.map_(text, text)), ("count", pa.int64())]
        columns += [(name, number) for name in ("sum", "min", "max", "mean", "p50", "p95")]
        rows = []
        for name, labels, value in self._items():
            item = INSTRUMENTS[name]
            row = value.to_dict() if isinstance(value, Histogram) else {"count": value}
            rows.append(
                {"metric": name, "kind": item.kind, "unit": item.unit}
                | {"labels": list(zip(item.labels, labels, strict=True))}
                | row
            )
        return pa.Table.from_pylist(rows, schema=pa.schema([*columns, ("buckets", buckets)]))

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for name, labels, value in self._items():
            unit = INSTRUMENTS[name].unit.replace("By", "bytes").replace("1", "")
            if isinstance(value, Histogram):
                shown = [value.sum / value.count, value.quantile(0.95), value.high]
                mean, p95, high = (f"{n:,.1f}" if n < 1000 else f"{n:,.0f}" for n in shown)
                yield " ".join((name, *labels)), f"{value.count:,}", mean, p95, high, unit
            else:
                yield " ".join((name, *labels)), f"{value:,}", "", "", "", unit

    def __repr__(self) -> str:
        """Show what was counted as a table, one line per instrument and label."""
        scope = "this process" if self._values.above is None else "this table"
        lines = format_text_table(_HEADS, self._rows(), right=_RIGHT)
        head = f"Metrics of {scope} in the last {self.seconds:,.0f} s"
        return "\n".join([head, *(lines if len(lines) > 1 else ["nothing was counted"])])

    def _repr_html_(self) -> str:
        return format_html_table(_HEADS, self._rows(), right=_RIGHT)

    def export_to_opentelemetry(self, meter_provider: Any = None) -> Callable[[], None]:
        """Export to OpenTelemetry, which needs the `[otel]` extra.

        Counters become observable counters, read when OpenTelemetry collects; histograms are
        recorded as they happen. Names begin with `arrowlog.`. Call it once, after the application
        has set up its meter provider.

        Args:
            meter_provider: the provider; the global one by default.

        Returns:
            A function that ends the export of histograms.

        Raises:
            InvalidRequest: opentelemetry-api is not installed.
        """
        record = _export(self.totals, meter_provider)
        with _Shared.lock:
            self._values.observers = [*self._values.observers, record]

        def end() -> None:
            with _Shared.lock:
                self._values.observers = [o for o in self._values.observers if o is not record]

        return end


metrics = Metrics()
"""The metrics of this process: all tables, and stores that belong to none."""


def _process_metrics() -> Metrics:
    return metrics


def child_metrics() -> Metrics:
    """Return an empty registry whose counts also count for the process."""
    return Metrics(metrics)


def metrics_of(store: Any) -> Metrics:
    """Return the registry that the work on a store counts in; that of the process by default."""
    found = getattr(store, "metrics", metrics)
    return found if isinstance(found, Metrics) else metrics


def _export(read: Callable[[str], Mapping[tuple[str, ...], int]], meter_provider: Any) -> Observer:
    """Create all instruments with a meter provider, by default the global one.

    `read` returns a counter by the values of its labels; it is called when metrics are collected.
    Returns the function that records a value of a histogram.
    """
    try:
        from opentelemetry.metrics import Observation, get_meter_provider
    except ImportError:
        raise InvalidRequest(
            "Exporting metrics needs opentelemetry-api, which is not installed.",
            next="Run pip install 'arrowlog[otel]'.",
        ) from None
    meter = (meter_provider or get_meter_provider()).get_meter("arrowlog", __version__)

    def observer(name: str) -> Callable[[Any], Iterable[Any]]:
        labels = INSTRUMENTS[name].labels

        def observe(options: Any) -> Iterable[Any]:
            del options  # a time limit that reading a dict does not need
            counts = read(name).items()
            return [Observation(n, dict(zip(labels, each, strict=True))) for each, n in counts]

        return observe

    histograms: dict[str, Any] = {}
    for name, item in INSTRUMENTS.items():
        if item.kind == "histogram":
            histograms[name] = meter.create_histogram(f"arrowlog.{name}", item.unit, item.doc)
        else:
            meter.create_observable_counter(
                f"arrowlog.{name}", [observer(name)], unit=item.unit, description=item.doc
            )

    def record(name: str, value: float, labels: dict[str, str]) -> None:
        histograms[name].record(value, labels)

    return record
