"""The predicates of the planning cases, the same for every engine. Pure."""

import datetime as dt

DAY = "2024-03-05"


def bounds(number):
    """The least id, the greatest id and the least ts of a query."""
    return 1_000_000 + number * 1000, 9_000_000, f"{DAY} 12:00:00"


def moment(number):
    """The bound of ts as a datetime."""
    return dt.datetime.fromisoformat(bounds(number)[2]).replace(tzinfo=dt.UTC)


def day():
    """The partition as a date."""
    return dt.date.fromisoformat(DAY)


def sql(number):
    """One day and two ranges, as an SQL predicate."""
    low, high, since = bounds(number)
    return f"date = '{DAY}' AND id BETWEEN {low} AND {high} AND ts >= TIMESTAMP '{since}'"


def ids():
    """A range of ids that matches few files, without a partition."""
    return 1_000_000, 1_000_500


def clauses(count, number):
    """Conjuncts on numeric columns: [(column, whether the bound is a lower one, bound)]."""
    low, high, _ = bounds(number)
    conjuncts = []
    for i in range(count):
        step = i // 4
        conjuncts.append(
            (
                ("id", True, low + step),
                ("id", False, high - step),
                ("value", True, -1.0 - step),
                ("value", False, 3.0 + step),
            )[i % 4]
        )
    return conjuncts
