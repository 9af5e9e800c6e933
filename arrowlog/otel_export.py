"""The export of metrics to OpenTelemetry. Requires the `[otel]` extra.

Only OpenTelemetry's API is used; which SDK and exporter receive the metrics is up to the
application.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from arrowlog.errors import InvalidRequest
from arrowlog.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


class Described(Protocol):
    """What is known of an instrument."""

    @property
    def kind(self) -> str:
        """`counter` or `histogram`."""

    @property
    def unit(self) -> str:
        """The unit in UCUM notation."""

    @property
    def doc(self) -> str:
        """What it counts."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of its labels."""


def export(
    instruments: Mapping[str, Described],
    read: Callable[[str], Mapping[tuple[str, ...], int]],
    meter_provider: Any = None,
) -> Callable[[str, float, dict[str, str]], None]:
    """Create instruments with a meter provider, by default the global one.

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
        labels = instruments[name].labels

        def observe(options: Any) -> Iterable[Any]:
            del options  # a time limit that reading a dict does not need
            counts = read(name).items()
            return [Observation(n, dict(zip(labels, each, strict=True))) for each, n in counts]

        return observe

    histograms: dict[str, Any] = {}
    for name, item in instruments.items():
        if item.kind == "histogram":
            histograms[name] = meter.create_histogram(f"arrowlog.{name}", item.unit, item.doc)
        else:
            meter.create_observable_counter(
                f"arrowlog.{name}", [observer(name)], unit=item.unit, description=item.doc
            )

    def record(name: str, value: float, labels: dict[str, str]) -> None:
        histograms[name].record(value, labels)

    return record
