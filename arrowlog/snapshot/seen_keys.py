"""The keys of files that later actions have decided on: a compact set for replay backward. Pure.

A key is represented by 128 bits: two hashes of 64 bits whose seeds are drawn at random for each
set. That two of n different keys have the same bits has a probability of about n² / 2^129: for
10,000,000 files 10^-25, less than that of an undetected error of memory. As the seeds are secret,
names cannot be chosen such that they collide.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import numpy as np

from arrowlog.fork_safety import pl

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

# Sorted pieces are merged until each is at least so many times as large as the next one: a key is
# merged a few times, and is looked for in few pieces.
_GROWTH = 3
# The set is divided by the leading bits of the first hash. A merge takes as much memory again as
# what it merges, which is a small part of the set then.
_DIVISION_BITS = 4

_Piece = tuple["NDArray[np.uint64]", "NDArray[np.uint64]"]


class KeyHashes:
    """The two hashes of some keys, in ascending order of the first one.

    `rows` are the numbers of the keys in that order.
    """

    __slots__ = ("first", "rows", "second")

    def __init__(
        self, first: NDArray[np.uint64], second: NDArray[np.uint64], rows: NDArray[np.intp]
    ) -> None:
        """Take hashes that are in order."""
        self.first = first
        self.second = second
        self.rows = rows

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self.first)

    @property
    def may_repeat(self) -> bool:
        """Whether two of the keys may be the same."""
        return bool((self.first[1:] == self.first[:-1]).any())


class SeenKeys:
    """A set of keys."""

    def __init__(self) -> None:
        """Begin with the empty set."""
        self._seeds = [secrets.randbits(63) for _ in range(2)]
        # Sorted hashes, the largest piece first, by division.
        self._divisions: list[list[_Piece]] = [[] for _ in range(1 << _DIVISION_BITS)]

    def hashes(self, keys: pa.ChunkedArray) -> KeyHashes:
        """Return the hashes of keys, for `find` and `add` of this set."""
        texts = pl.Series("key", pl.from_arrow(keys), dtype=pl.String)
        first, second = (texts.hash(seed).to_numpy() for seed in self._seeds)
        order = np.argsort(first)
        return KeyHashes(first[order], second[order], order)

    def find(self, keys: KeyHashes) -> NDArray[np.bool_] | None:
        """Return which of the keys are in the set, by their number; None if none is."""
        found = np.zeros(len(keys), np.bool_)
        for pieces, part in self._divided(keys):
            for piece in pieces:
                found[part] |= _among(piece, keys.first[part], keys.second[part])
        if not found.any():
            return None
        mask = np.empty(len(keys), np.bool_)
        mask[keys.rows] = found
        return mask

    def add(self, keys: KeyHashes) -> None:
        """Add keys, in the set or not."""
        for pieces, part in self._divided(keys):
            _add_piece(pieces, keys.first[part].copy(), keys.second[part].copy())

    def _divided(self, keys: KeyHashes) -> Iterator[tuple[list[_Piece], slice]]:
        """Yield the pieces of each division, and which of the keys belong to it, if any do."""
        shift = 64 - _DIVISION_BITS
        begins = np.arange(len(self._divisions), dtype=np.uint64) << np.uint64(shift)
        ends = [*np.searchsorted(keys.first, begins).tolist(), len(keys)]
        for pieces, start, stop in zip(self._divisions, ends, ends[1:], strict=False):
            if start < stop:
                yield pieces, slice(start, stop)


def _add_piece(pieces: list[_Piece], first: NDArray[np.uint64], second: NDArray[np.uint64]) -> None:
    """Add sorted hashes to pieces, which are merged as they grow."""
    while pieces and len(pieces[-1][0]) < _GROWTH * len(first):
        larger_first, larger_second = pieces.pop()
        first = np.concatenate([larger_first, first])
        order = np.argsort(first, kind="stable")  # linear for two sorted pieces in a row
        first, second = first[order], np.concatenate([larger_second, second])[order]
    pieces.append((first, second))


def _among(
    piece: _Piece, firsts: NDArray[np.uint64], seconds: NDArray[np.uint64]
) -> NDArray[np.bool_]:
    """Return which keys, given by their sorted first and their second hashes, are in a piece."""
    first, second = piece
    at = np.searchsorted(first, firsts)
    inside = np.minimum(at, len(first) - 1)
    candidate: NDArray[np.bool_] = first[inside] == firsts
    if not candidate.any():
        return candidate
    found: NDArray[np.bool_] = candidate & (second[inside] == seconds)
    # Keys whose first hash is there with another second one: it may be there several times.
    for row in np.flatnonzero(candidate & ~found).tolist():
        stop = np.searchsorted(first, firsts[row], side="right")
        found[row] = bool((second[at[row] : stop] == seconds[row]).any())
    return found
