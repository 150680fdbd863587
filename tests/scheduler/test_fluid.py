"""Blocks that share bandwidth, against closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cute_attn.scheduler.fluid import Course, Work, flow, max_min


@pytest.mark.parametrize(
    ("wanted", "total", "shares"),
    [
        ([1, 1, 1], 6, [1, 1, 1]),
        ([1, 5, 5], 6, [1, 2.5, 2.5]),
        ([4, 4, 4], 6, [2, 2, 2]),
        ([0, 3, 9], 6, [0, 3, 3]),
        ([], 6, []),
    ],
)
def test_max_min_fairness(wanted: list[float], total: float, shares: list[float]) -> None:
    assert max_min(np.array(wanted, float), total) == pytest.approx(shares)


def run(alone: list[float], bytes_of: list[float], rate: float = 1.0, **more: Any) -> Course:
    """One launch of blocks without merges, unless there are `merges`."""
    merges = np.array(more.pop("merges", np.zeros(len(alone))), float)
    (course,) = flow([Work(np.array(alone), np.array(bytes_of), merges, **more)], rate)
    return course


def test_bandwidth_is_shared_over_time() -> None:
    # Three readers of 10 bytes, each 5 bytes per us alone, on a device of 10 bytes per us; one of
    # them has only half as much. They share until it ends (t = 1.5), then the others go faster.
    course = run([2.0, 2.0, 1.0], [10.0, 10.0, 5.0], 10.0)
    assert course.ends == pytest.approx([2.5, 2.5, 1.5])
    # When two thirds of the first one's work are done: at 10/3 bytes per us, 5 of 6.67 bytes at
    # 1.5, the others at 5 bytes per us.
    when = course.times(np.zeros(3, np.int64), np.array([0.0, 2 / 3, 1.0]))
    assert when == pytest.approx([0.0, 1.5 + (20 / 3 - 5) / 5, 2.5])
    # Work without bytes is not slowed down.
    assert run([3.0, 0.0], [0.0, 0.0]).ends == pytest.approx([3.0, 0.0])


def test_nobody_reads_before_the_start_and_while_merging() -> None:
    course = run([2.0, 1.0], [2.0, 1.0], start_us=5.0, begin_us=1.0, merges=[0.0, 4.0])
    # Two readers of 1 byte per us share 1: until 8 both have 1 byte, then the first one is alone.
    assert course.begins == pytest.approx([6.0, 6.0])
    assert course.busy == pytest.approx([9.0, 8.0])
    assert course.ends == pytest.approx([9.0, 12.0])


def test_the_next_block_starts_where_one_ends() -> None:
    alone = [3.0, 1.0, 0.0, 4.0, 1.0, 2.0]
    course = run(alone, [0.0] * 6, resident=2, start_us=10.0, next_us=0.5)
    # Place 0: block 0 to 13, block 4 (13.5) to 14.5, block 5 (15) to 17.
    # Place 1: block 1 to 11, block 2 has nothing to do, block 3 (11.5) to 15.5.
    assert course.place.tolist() == [0, 1, 1, 1, 0, 0]
    assert course.begins == pytest.approx([10, 10, 0, 11.5, 13.5, 15])
    assert course.ends == pytest.approx([13, 11, 0, 15.5, 14.5, 17])


def test_launches_share_the_rate() -> None:
    one = Work(np.array([1.0]), np.array([4.0]), np.zeros(1))
    two = Work(np.array([1.0, 0.0]), np.array([4.0, 0.0]), np.zeros(2), begin_us=1.0)
    first, second = flow([one, two], 4.0)
    assert first.ends == pytest.approx([1.0]) and second.ends == pytest.approx([2.0, 0.0])
    first, second = flow([one, two], 2.0)
    # Alone at 2 bytes per us until 1, then both at 1: 2 bytes are left of the first, until 3; the
    # other one has done 2 of 4 by then.
    assert first.ends == pytest.approx([3.0]) and second.ends == pytest.approx([4.0, 0.0])


def test_nothing_to_do() -> None:
    course = run([0.0, 0.0], [0.0, 0.0], start_us=3.0)
    assert course.ends.tolist() == [0, 0] and course.place.tolist() == [0, 1]
    assert course.times(np.zeros(0, np.int64), np.zeros(0)).size == 0
