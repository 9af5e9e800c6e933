"""What every engine is asked, so that all are asked the same."""

import datetime as dt

DAY = "2024-03-05"


def bounds(number):
    """Of a question; another number asks another one of the same kind."""
    return 1_000_000 + number * 1000, 9_000_000, f"{DAY} 12:00:00"


def moment(number):
    return dt.datetime.fromisoformat(bounds(number)[2]).replace(tzinfo=dt.UTC)


def day():
    return dt.date.fromisoformat(DAY)


def sql(number):
    """One day and two ranges."""
    low, high, since = bounds(number)
    return f"date = '{DAY}' AND id BETWEEN {low} AND {high} AND ts >= TIMESTAMP '{since}'"


def ids():
    """A range that few files have, and no partition."""
    return 1_000_000, 1_000_500


def clauses(count, number):
    """Many predicates on numbers: (column, whether at least, bound), all to hold."""
    low, high, _ = bounds(number)
    found = []
    for i in range(count):
        step = i // 4
        found.append(
            (
                ("id", True, low + step),
                ("id", False, high - step),
                ("value", True, -1.0 - step),
                ("value", False, 3.0 + step),
            )[i % 4]
        )
    return found
