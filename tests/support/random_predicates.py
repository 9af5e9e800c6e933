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
    if kind < 0.92:
        return several(world, item)
    return special(world, name, letter) if kind < 0.94 else computed(world, item)


def several(world: World, item) -> str:
    """Comparisons of one column that combine to one, and casts without effect."""
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
    """Conditions that only some types have, and unprunable ones."""
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


NUMBERS = "inrfcm"
PARTS = ["year", "month", "week", "quarter", "day", "hour", "minute", "second", "millisecond"]
INTERVALS = ["1 DAY", "2 HOUR", "30 MINUTE", "1.5 SECOND", "3 MILLISECOND", "1 MONTH", "2 YEAR"]
INTERVALS += ["1 WEEK", "(-3) DAY", "7 MICROSECOND"]


def computed(world: World, item) -> str:
    """A condition on an expression of columns."""
    rng = world.rng
    sign = rng.choice(SIGNS)
    draw = rng.random()
    if draw < 0.15:
        other = rng.choice(list(world.schema))
        same = [each for each in world.schema if each.type == item.type]
        return f"{item.name} {sign} {rng.choice([*same, *same, other]).name}"
    if draw < 0.4:
        return conditional(world, item, sign)
    text, result = monotone(world, item, rng.choice([1, 1, 2, 3]))
    value = value_like(world, item, result)
    form = rng.random()
    if form < 0.1:
        return f"{text} IS {rng.choice(['', 'NOT '])}NULL"
    if form < 0.2:
        values = [value_like(world, item, result) for _ in range(rng.choice([1, 3]))]
        values += ["NULL"] if rng.random() < 0.2 else []
        return f"{text} {rng.choice(['', 'NOT '])}IN ({', '.join(values)})"
    if form < 0.3:
        end = value_like(world, item, result)
        return f"{text} {rng.choice(['', 'NOT '])}BETWEEN {value} AND {end}"
    return f"{text} {sign} {value}" if rng.random() < 0.8 else f"{value} {sign} {text}"


def value_like(world: World, item, result: str) -> str:
    """A literal that may be compared with the result of an expression."""
    rng = world.rng
    if result == "int":
        return rng.choice(["1970", "2024", "2023", "0", "19723", "-1", "1704067200000", "2024.5"])
    if result == "number":
        numbers = ["0", "1", "-1", "2.5", "0.1", "-7", "1e0", "3", "5", "1e300", "9007199254740993"]
        near = [literal(world, item)] if letter_of(item.name) in NUMBERS else []
        return rng.choice([*numbers, *near])
    if result == "date":
        return rng.choice(["DATE '2024-01-01'", "'2024-02-29'", "DATE '1970-01-01'"])
    if result == "time":
        moments = [
            "2024-01-01",
            "2024-01-01 12:00:00.123",
            "1970-01-01",
            "2024-02-01",
            "2023-12-31",
        ]
        forms = ["TIMESTAMP '{}'", "'{}'", "TIMESTAMPTZ '{}+00'"]
        return rng.choice(forms[: 2 if letter_of(item.name) != "t" else 3]).format(
            rng.choice(moments)
        )
    return literal(world, item)


def monotone(world: World, item, depth: int) -> tuple[str, str]:
    """An expression over a column, and the type of its value."""
    rng = world.rng
    letter = letter_of(item.name)
    if not depth or letter not in NUMBERS + "dtw":
        result = "number" if letter in NUMBERS else {"d": "date", "t": "time", "w": "time"}
        return item.name, result if isinstance(result, str) else result.get(letter, "")
    inner, result = monotone(world, item, depth - 1)
    if result in ("number", "int"):
        amount = rng.choice(["1", "2", "-3", "0.5", "5", "1e0", "2.5e-3", "100", "0"])
        forms = [f"({inner} + {amount})", f"({amount} + {inner})", f"({inner} - {amount})"]
        forms += [f"({amount} - {inner})", f"({inner} * {amount})", f"({inner} / {amount})"]
        forms += [f"({inner} // 3)", f"(-{inner})", f"abs({inner})", f"floor({inner})"]
        forms += [f"ceil({inner})", f"round({inner})", f"trunc({inner})"]
        forms += [f"CAST({inner} AS {kind})" for kind in ("BIGINT", "DOUBLE", "INTEGER")]
        forms += [f"CAST({inner} AS {kind})" for kind in ("FLOAT", "DECIMAL(18,1)")]
        forms += [f"TRY_CAST({inner} AS SMALLINT)"]
        return rng.choice(forms), "number"
    if result == "date" and rng.random() < 0.3:
        forms = [f"({inner} + 3)", f"({inner} - 1)", f"last_day({inner})", f"date({inner})"]
        return rng.choice(forms), "date"
    if result == "date" and rng.random() < 0.2:
        return rng.choice(
            [f"({inner} - DATE '2023-12-31')", f"(DATE '2024-01-01' - {inner})"]
        ), "int"
    draw = rng.random()
    if draw < 0.3:
        return f"date_trunc('{rng.choice(PARTS)}', {inner})", "time"
    if draw < 0.6:
        step = f"INTERVAL {rng.choice(INTERVALS)}"
        return f"({inner} {rng.choice('+-')} {step})", "time"
    if draw < 0.75:
        return rng.choice([f"CAST({inner} AS DATE)", f"last_day({inner})"]), "date"
    forms = [f"year({inner})", f"date_part('year', {inner})", f"epoch_ms({inner})"]
    forms += [f"epoch({inner})", f"month({inner})", f"extract(year FROM {inner})"]
    return rng.choice(forms), "int"


def conditional(world: World, item, sign: str) -> str:
    """COALESCE, CASE and the like, of a column and of constants; and texts in any case."""
    rng = world.rng
    name, letter = item.name, letter_of(item.name)
    value, other, last = (literal(world, item) for _ in range(3))
    if letter == "s" and rng.random() < 0.6:
        text = quoted(rng.choice(STRINGS_OF_ANY_CASE))
        fold = rng.choice(["lower", "upper"])
        return rng.choice(
            [
                f"{fold}({name}) = {text}",
                f"{fold}({name}) IN ({text}, {value})",
                f"{fold}({name}) LIKE {text[:-1]}%'",
                f"starts_with({fold}({name}), {text})",
                f"{name} {rng.choice(['', 'NOT '])}ILIKE {text[:-1]}%'",
                f"{name} ILIKE {text}",
                f"{name} GLOB {text[:-1]}*'",
                f"left({name}, {rng.choice([1, 2, -1])}) = {text}",
                f"substr({name}, {rng.choice([1, 2])}, 2) = {text}",
            ]
        )
    return rng.choice(
        [
            f"coalesce({name}, {value}) {sign} {other}",
            f"coalesce({name}, NULL, {value}) IN ({other}, {last})",
            f"coalesce({name} {sign} {value}, {rng.choice(['TRUE', 'FALSE'])})",
            f"nullif({name}, {value}) {sign} {other}",
            f"CASE WHEN {name} {sign} {value} THEN 1 WHEN {name} IS NULL THEN 2 END <> 1",
            f"CASE WHEN {name} {sign} {value} THEN 1 WHEN {name} IS NULL THEN 2 ELSE 3 END < 3",
            f"CASE WHEN {name} = {value} THEN 'a' WHEN {name} > {other} THEN 'b' END = 'b'",
            f"CASE WHEN {name} < {value} THEN {name} {sign} {other} ELSE {name} IS NULL END",
            f"CASE {name} WHEN {value} THEN TRUE WHEN {other} THEN FALSE END",
            f"({name} {sign} {value}) IS {rng.choice(['', 'NOT '])}NULL",
            f"CASE WHEN {name} < {value} THEN {name} ELSE {other} END {sign} {last}",
            f"ifnull({name}, {value}) {rng.choice(['', 'NOT '])}BETWEEN {other} AND {last}",
        ]
    )


STRINGS_OF_ANY_CASE = ["a", "A", "ab", "AB", "aB", "z", "k", "K", "i", "S", "it", "X", "x", "é", ""]


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
