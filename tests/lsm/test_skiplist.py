"""The skip list's own structure: levels, heights, determinism."""

from __future__ import annotations

import itertools

from lsm.skiplist import BRANCHING, HEIGHT_MAX, Lehmer, SkipListMemtable


def levels(table: SkipListMemtable) -> list[list[bytes]]:
    """The keys on each level, by following its links from the head."""
    found = []
    for level in range(1, table._height + 1):
        keys, node = [], table._links[level]
        while node:
            keys.append(table._keys[table._links[node]])
            node = table._links[node + level]
        found.append(keys)
    return found


def filled(count: int) -> SkipListMemtable:
    table = SkipListMemtable()
    for number in range(count):
        table.put(b"%06d" % (number * 7919 % count), number + 1, b"v", -1)
    return table


def test_each_level_is_sorted_and_part_of_the_level_below() -> None:
    found = levels(filled(5000))
    assert found[0] == [b"%06d" % number for number in range(5000)]
    for below, above in itertools.pairwise(found):
        assert above == sorted(above)
        assert set(above) <= set(below)


def test_a_quarter_of_each_level_reaches_the_next() -> None:
    found = levels(filled(20_000))
    assert len(found) <= HEIGHT_MAX
    for below, above in itertools.pairwise(found[:5]):
        assert abs(len(above) / len(below) - 1 / BRANCHING) < 0.06


def test_same_puts_same_arena() -> None:
    assert filled(500)._links == filled(500)._links
    assert filled(500)._links.tobytes() != SkipListMemtable()._links.tobytes()


def test_the_generator_has_its_published_check_value() -> None:
    generator = Lehmer(1)
    for _ in range(10_000):
        last = generator.next()
    assert last == 1043618065  # Park and Miller, CACM 31(10), 1988


def test_a_search_compares_logarithmically_many_keys() -> None:
    class Counted(bytes):
        compared = 0

        def __gt__(self, other: bytes) -> bool:
            Counted.compared += 1
            return bytes(self) > bytes(other)

    table = filled(20_000)
    for number in range(0, 20_000, 100):
        assert table.get(Counted(b"%06d" % number), 1 << 40) is not None
    assert Counted.compared / 200 < 40
