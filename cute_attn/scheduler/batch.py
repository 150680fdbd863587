"""What the planner is asked: the requests of one step, and the tile geometry of the kernel.

`RequestBatch` holds the lengths of a step as host arrays, checked once; `Geometry` holds what the
kernel was compiled for (tile shape, GQA group) and the band of keys that a query can see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cute_attn.abi import UNBOUNDED
from cute_attn.abi.plan import MAX_BATCH
from cute_attn.scheduler.each import BoolArray, Int64Array, least, most

_INT32_MAX = (1 << 31) - 1
_Q_START, _Q_LEN, _KV_START, _KV_LEN, _Q_POS, _KV_POS = range(6)


def _host_integers(name: str, value: Any) -> npt.NDArray[Any]:
    """`value` as a 1-D integer array on the host."""
    if type(value) is np.ndarray:
        array = value
    else:
        device = getattr(value, "device", None)
        if getattr(device, "type", "cpu") != "cpu":
            raise TypeError(
                f"{name} is on device {device}; the planner takes host lengths (CPU array)"
            )
        array = np.asarray(value)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"{name} has dtype {array.dtype}; it takes integers")
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}; it takes one number per request")
    return array


class RequestBatch:
    """The requests of one step, in the caller's order; every array is (num_requests,) int64.

    Args:
        q_start: first query row of each request in q and out.
        q_len: query tokens; 0 = nothing to compute.
        kv_start: ragged: first KV row; paged: offset of the first entry in the page table.
        kv_len: keys; 0 = output 0, lse -inf.
        q_pos: position of the first query token. Default kv_len - q_len + kv_pos: the last query
            sees the last key (bottom-right aligned). May be negative.
        kv_pos: position of the first key. Default 0.
        ids: what the kernels call the requests. Default 0, 1, ...
        common_keys: keys per KV head that all requests choose theirs from, as the rows of a sparse
            pattern do. Default 0: every request has its own.

    Raises:
        TypeError: an array is no integer array, or lives on a device.
        ValueError: lengths differ, a number is negative or out of the plan's range.
    """

    __slots__ = (
        "aligned", "common_keys", "ids", "least_q_len", "most_q_len", "num_requests", "table",
    )  # fmt: skip

    aligned: bool
    """The last query of each request is at the position of its last key."""
    table: Int64Array
    """(6, num_requests): all of them, in the order of a request record. The others are its rows."""
    ids: Int64Array | None
    least_q_len: int
    """Of all requests; 0 if there are none."""
    most_q_len: int

    def __init__(
        self,
        q_start: Any,
        q_len: Any,
        kv_start: Any,
        kv_len: Any,
        q_pos: Any = None,
        kv_pos: Any = None,
        ids: Any = None,
        common_keys: int = 0,
    ) -> None:
        q_len = _host_integers("q_len", q_len)
        n = self.num_requests = q_len.size
        if n >= MAX_BATCH:
            raise ValueError(f"q_len holds {n} requests; a plan takes fewer than {MAX_BATCH}")
        # One table: a check or a gather of all numbers is one call of NumPy.
        table = self.table = np.empty((6, n), np.int64)
        table[_Q_LEN] = q_len
        self.least_q_len, self.most_q_len = least(q_len), most(q_len)
        self._fill(_Q_START, "q_start", q_start)
        self._fill(_KV_START, "kv_start", kv_start)
        self._fill(_KV_LEN, "kv_len", kv_len)
        if kv_pos is None:
            table[_KV_POS] = 0
        else:
            self._fill(_KV_POS, "kv_pos", kv_pos)
        self.aligned = q_pos is None
        if q_pos is None:
            np.subtract(table[_KV_LEN], table[_Q_LEN], out=table[_Q_POS])
            if kv_pos is not None:
                table[_Q_POS] += table[_KV_POS]
        else:
            self._fill(_Q_POS, "q_pos", q_pos)
        self.common_keys = common_keys
        self.ids = None
        if ids is not None:
            self.ids = _host_integers("ids", ids).astype(np.int64, copy=False)
            self._check_ids(self.ids)
        if n and not (q_pos is None and kv_pos is None and self._is_small()):
            self._check()

    def _row(self, row: int) -> Int64Array:
        found: Int64Array = self.table[row]
        return found

    @property
    def q_start(self) -> Int64Array:
        return self._row(_Q_START)

    @property
    def q_len(self) -> Int64Array:
        return self._row(_Q_LEN)

    @property
    def kv_start(self) -> Int64Array:
        return self._row(_KV_START)

    @property
    def kv_len(self) -> Int64Array:
        return self._row(_KV_LEN)

    @property
    def q_pos(self) -> Int64Array:
        return self._row(_Q_POS)

    @property
    def kv_pos(self) -> Int64Array:
        return self._row(_KV_POS)

    @property
    def equal_q_len(self) -> int:
        """The number of query tokens that every request has; 0 if they differ or there are none."""
        return self.most_q_len if self.most_q_len == self.least_q_len else 0

    def _check_ids(self, ids: Int64Array) -> None:
        n = self.num_requests
        if ids.size != n:
            raise ValueError(f"ids has {ids.size} entries but q_len has {n}; one per request")
        if n and not 0 <= ids.min() <= ids.max() < MAX_BATCH:
            raise ValueError(f"ids are {ids}; they take 0 .. {MAX_BATCH - 1}")

    def _fill(self, row: int, name: str, value: Any) -> None:
        array = _host_integers(name, value)
        if array.size != self.num_requests:
            raise ValueError(
                f"{name} has {array.size} entries but q_len has {self.num_requests}; one per"
                " request"
            )
        self.table[row] = array

    def _is_small(self) -> bool:
        """Whether all but the positions are so small that default positions are in range too."""
        # Seen as unsigned, a negative number is too large: one pass checks both ends.
        return most(self.table[:4].reshape(-1).view(np.uint64)) < UNBOUNDED

    def _check(self) -> None:
        for name in ("q_start", "q_len", "kv_start", "kv_len", "kv_pos"):
            array: Int64Array = getattr(self, name)
            if int(array.view(np.uint64).max()) > _INT32_MAX:
                at = int(np.flatnonzero((array < 0) | (array > _INT32_MAX))[0])
                raise ValueError(f"{name}[{at}] is {array[at]}; it takes 0 .. {_INT32_MAX}")
        if int(self.kv_len.max()) >= UNBOUNDED:
            raise ValueError(f"kv_len is {int(self.kv_len.max())}; it must be below {UNBOUNDED}")
        # The kernels compute shift + token +- window in int32.
        first = self.q_pos - self.kv_pos
        last = first + self.q_len
        if int(first.min()) <= -UNBOUNDED or int(last.max()) >= UNBOUNDED:
            at = int(np.flatnonzero((first <= -UNBOUNDED) | (last >= UNBOUNDED))[0])
            raise ValueError(
                f"q_pos[{at}] is {self.q_pos[at]} with q_len {self.q_len[at]} and kv_pos "
                f"{self.kv_pos[at]}; query positions relative to the first key must lie within "
                f"+-{UNBOUNDED}"
            )

    def select(self, which: BoolArray) -> RequestBatch:
        """Some of the requests, under the names they have here."""
        ids = np.arange(self.num_requests) if self.ids is None else self.ids
        q_start, q_len, kv_start, kv_len, q_pos, kv_pos = self.table[:, which]
        part = RequestBatch(
            q_start, q_len, kv_start, kv_len, q_pos, kv_pos, ids[which], self.common_keys
        )
        part.aligned = self.aligned
        return part

    @classmethod
    def from_lengths(cls, q_len: Any, kv_len: Any) -> RequestBatch:
        """Packed requests: q and ragged KV rows follow one another without gaps."""
        q = _host_integers("q_len", q_len).astype(np.int64, copy=False)
        kv = _host_integers("kv_len", kv_len).astype(np.int64, copy=False)
        return cls(np.cumsum(q) - q, q, np.cumsum(kv) - kv, kv)


@dataclass(frozen=True)
class Geometry:
    """The tile shape of a kernel and the band of visible keys.

    Attributes:
        tile_q: packed query rows per tile.
        tile_kv: keys per KV block.
        group: query heads per KV head.
        num_kv_heads: KV heads of a request.
        window_left: key j is visible to position i only if j >= i - window_left.
        window_right: ... and j <= i + window_right (0 = causal); UNBOUNDED = no limit.
        heads_in_ids: KV heads each of which has keys of its own: a request of the planner is then
            one of those heads, num_kv_heads is 1, and its id is the caller's request *
            heads_in_ids + KV head. 0: all KV heads of a request have the same keys.
    """

    tile_q: int
    tile_kv: int
    group: int
    num_kv_heads: int
    window_left: int = UNBOUNDED
    window_right: int = UNBOUNDED
    heads_in_ids: int = 0

    def __post_init__(self) -> None:
        for name in ("tile_q", "tile_kv", "group", "num_kv_heads"):
            value = getattr(self, name)
            if not 1 <= value <= 1 << 16:
                raise ValueError(f"{name} is {value}; it takes 1 .. {1 << 16}")
        for name in ("window_left", "window_right"):
            value = getattr(self, name)
            if not 0 <= value <= UNBOUNDED:
                raise ValueError(f"{name} is {value}; it takes 0 .. {UNBOUNDED} (no limit)")
        if not 0 <= self.heads_in_ids <= 1 << 16:
            raise ValueError(f"heads_in_ids is {self.heads_in_ids}; it takes 0 .. {1 << 16}")
        if self.heads_in_ids and self.num_kv_heads != 1:
            raise ValueError(
                f"num_kv_heads is {self.num_kv_heads} with heads_in_ids {self.heads_in_ids}; each"
                " request is one KV head then, so it must be 1"
            )

    def by_head(self, requests: RequestBatch) -> bool:
        """Whether the tiles of a KV head run side by side, because they read the same keys."""
        return self.heads_in_ids > 0 and requests.common_keys > 0

    def callers_request(self, ids: Any) -> Any:
        """The caller's requests that ids belong to; an integer or an array."""
        return ids // self.heads_in_ids if self.heads_in_ids else ids
