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
    import pyarrow as pa
    from numpy.typing import NDArray

# Sorted pieces are merged until each is at least so many times as large as the next one: a key is
# merged a few times, and is looked for in few pieces.
_GROWTH = 3


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
        # Sorted hashes, the largest piece first.
        self._pieces: list[tuple[NDArray[np.uint64], NDArray[np.uint64]]] = []

    def hashes(self, keys: pa.ChunkedArray) -> KeyHashes:
        """Return the hashes of keys, for `find` and `add` of this set."""
        texts = pl.Series("key", pl.from_arrow(keys), dtype=pl.String)
        first, second = (texts.hash(seed).to_numpy() for seed in self._seeds)
        order = np.argsort(first)
        return KeyHashes(first[order], second[order], order)

    def find(self, keys: KeyHashes) -> NDArray[np.bool_] | None:
        """Return which of the keys are in the set, by their number; None if none is."""
        found = np.zeros(len(keys), np.bool_)
        for piece in self._pieces:
            found |= _among(piece, keys)
        if not found.any():
            return None
        mask = np.empty(len(keys), np.bool_)
        mask[keys.rows] = found
        return mask

    def add(self, keys: KeyHashes) -> None:
        """Add keys, in the set or not."""
        if not len(keys):
            return
        first, second = keys.first, keys.second
        while self._pieces and len(self._pieces[-1][0]) < _GROWTH * len(first):
            # One column after the other, and pieces freed at once: half the memory of a merge.
            larger_first, larger_second = self._pieces.pop()
            first = np.concatenate([larger_first, first])
            del larger_first
            order = np.argsort(first, kind="stable")  # linear for two sorted pieces in a row
            first = first[order]
            second = np.concatenate([larger_second, second])
            del larger_second
            second = second[order]
            del order
        self._pieces.append((first, second))


def _among(
    piece: tuple[NDArray[np.uint64], NDArray[np.uint64]], keys: KeyHashes
) -> NDArray[np.bool_]:
    """Return which keys are in a sorted piece, in the order of their hashes."""
    first, second = piece
    at = np.searchsorted(first, keys.first)
    inside = np.minimum(at, len(first) - 1)
    candidate: NDArray[np.bool_] = first[inside] == keys.first
    if not candidate.any():
        return candidate
    found: NDArray[np.bool_] = candidate & (second[inside] == keys.second)
    # Keys whose first hash is there with another second one: it may be there several times.
    for row in np.flatnonzero(candidate & ~found).tolist():
        stop = np.searchsorted(first, keys.first[row], side="right")
        found[row] = bool((second[at[row] : stop] == keys.second[row]).any())
    return found
