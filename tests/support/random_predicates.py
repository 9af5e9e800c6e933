"""Random predicates over a random table, as SQL that DuckDB takes as it stands."""

from __future__ import annotations

import datetime as dt
import math

import pyarrow as pa

from support.random_rows import KINDS, PLACES, World, letter_of

SIGNS = ["=", "<>", "!=", "<", "<=", ">", ">="]


def predicate(world: World, depth: int = 3) -> str:
    rng = world.rng
    draw = rng.random()
    if depth == 0 or draw < 0.4:
        return atom(world)
    if draw < 0.5:
        return f"NOT ({predicate(world, depth - 1)})"
    if draw < 0.56:
        ending = rng.choice(["IS TRUE", "IS NOT TRUE", "IS FALSE", "IS NOT FALSE", "IS NULL"])
        return f"(({predicate(world, depth - 1)}) {ending})"
    word = rng.choice([" AND ", " AND ", " OR "])
    parts = [f"({predicate(world, depth - 1)})" for _ in range(rng.choice([2, 2, 3]))]
    return word.join(parts)


def atom(world: World) -> str:
    rng = world.rng
    item = rng.choice(list(world.schema))
    name, letter = item.name, letter_of(item.name)
    kind = rng.random()
    if kind < 0.5:
        sign, value = rng.choice(SIGNS), literal(world, item)
        return f"{name} {sign} {value}" if rng.random() < 0.8 else f"{value} {sign} {name}"
    if kind < 0.6:
        values = [literal(world, item) for _ in range(rng.choice([1, 2, 3, 20]))]
        values += ["NULL"] if rng.random() < 0.15 else []
        return f"{name} {rng.choice(['', 'NOT '])}IN ({', '.join(values)})"
    if kind < 0.7:
        low, high = literal(world, item), literal(world, item)
        return f"{name} {rng.choice(['', 'NOT '])}BETWEEN {low} AND {high}"
    if kind < 0.8:
        return f"{name} IS {rng.choice(['', 'NOT '])}NULL"
    if kind < 0.85:
        value = rng.choice([literal(world, item), "NULL"])
        return f"{name} IS {rng.choice(['', 'NOT '])}DISTINCT FROM {value}"
    if kind < 0.88:
        return rng.choice(["TRUE", "FALSE", "NULL", "1 = 1", f"{name} = NULL"])
    if kind < 0.93:
        return several(world, item)
    return special(world, name, letter)


def several(world: World, item) -> str:
    """Comparisons of one column that mean one together, and casts that change nothing."""
    rng = world.rng
    name, letter = item.name, letter_of(item.name)
    if letter in "tw" and rng.random() < 0.5:
        days = [f"{rng.choice(['', 'DATE '])}'2024-01-0{rng.randrange(1, 5)}'" for _ in range(2)]
        cast = rng.choice([f"CAST({name} AS DATE)", f"{name}::DATE"])
        return rng.choice(
            [
                f"{cast} {rng.choice(SIGNS)} {days[0]}",
                f"{cast} {rng.choice(['', 'NOT '])}IN ({', '.join(days)})",
                f"{cast} BETWEEN {' AND '.join(days)}",
            ]
        )
    if letter == "d" and rng.random() < 0.5:
        return f"{name}::TIMESTAMP {rng.choice(SIGNS)} {literal(world, item)}"
    if pa.types.is_integer(item.type) and rng.random() < 0.5:
        cast = f"CAST({name} AS {rng.choice(['BIGINT', 'HUGEINT'])})"
        return f"{cast} {rng.choice(SIGNS)} {literal(world, item)}"
    if (letter in "rf" or pa.types.is_integer(item.type)) and rng.random() < 0.4:
        return f"{name} IS {rng.choice(['', 'NOT '])}{rng.choice(['TRUE', 'FALSE'])}"
    sign, word = rng.choice([("=", " OR "), ("<>", " AND ")])
    return word.join(f"{name} {sign} {literal(world, item)}" for _ in range(rng.choice([2, 5])))


def special(world: World, name: str, letter: str) -> str:
    """What only columns of a type have, and what nobody can prune by."""
    rng = world.rng
    if letter == "b":
        return rng.choice([name, f"NOT {name}"])
    if letter == "s":
        text = quoted(rng.choice(KINDS["s"][1] + PLACES)[: rng.choice([1, 2, 33])])
        like = f"{name} {rng.choice(['', 'NOT '])}LIKE"
        return rng.choice(
            [
                f"{like} {text} || '%'" if rng.random() < 0.1 else f"{like} {text[:-1]}%'",
                f"{like} {text[:-1]}_%'",
                f"{like} {text}",
                f"{like} '%a%'",
                f"starts_with({name}, {text})",
                f"NOT starts_with({name}, {text})",
                f"lower({name}) = {text}",
                f"length({name}) > 2",
            ]
        )
    if letter in "rf":
        return rng.choice([f"isnan({name})", f"NOT isnan({name})", f"abs({name}) > 1"])
    if letter in "dtw":
        return rng.choice([f"year({name}) = 2024", f"month({name}) < 3"])
    return rng.choice([f"{name} + 0 = 1", f"{name} % 3 = 1", f"{name} % 7 > {name}"])


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def literal(world: World, item) -> str:
    """A literal near the values of a column, of its type or of another."""
    rng = world.rng
    letter = letter_of(item.name)
    value = rng.choice(PLACES if item.name == "ps" else KINDS[letter][1])
    odd = rng.random() < 0.25
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int):
        near = value + rng.choice([0, 0, 0, 1, -1])
        return (
            rng.choice([f"{near}.5", f"{near}.0", f"{near}e0", f"'{near}'"]) if odd else str(near)
        )
    if isinstance(value, float):
        if not math.isfinite(value):
            return f"CAST('{value}' AS DOUBLE)"
        if letter == "r":  # DuckDB rounds decimals beside 32-bit floats; see docs/predicates.md
            return f"CAST({value:.2f} AS DOUBLE)" if odd else f"CAST('{value!r}' AS DOUBLE)"
        return rng.choice([repr(value), f"{value:.2f}"]) if odd else f"CAST('{value!r}' AS DOUBLE)"
    if isinstance(value, str):
        return quoted(value + rng.choice(["", "", "", "a", "😀"]))
    if isinstance(value, dt.datetime):
        plain = value.replace(tzinfo=None)
        plain += dt.timedelta(microseconds=rng.choice([0, 0, 0, 1, -1]))
        text = plain.isoformat(" ")
        forms = [f"'{text}'", f"DATE '{plain.date()}'"]
        forms.append(f"TIMESTAMPTZ '{text}+00'")
        return rng.choice(forms) if odd else f"TIMESTAMP '{text}'"
    if isinstance(value, dt.date):
        forms = [f"'{value}'", f"TIMESTAMP '{value} 12:00:00'", f"'{value} 12:00:00'"]
        forms.append(f"TIMESTAMPTZ '{value} 12:00:00+00'")
        return rng.choice(forms) if odd else f"DATE '{value}'"
    return rng.choice([f"{value}5", f"{float(value)!r}", f"{int(value)}"]) if odd else str(value)
