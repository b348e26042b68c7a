"""Several logs in order: gaps, what they mean, and every crash of a writer that rotates."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsm.batch import Op, encode_ops
from lsm.entry import DELETE, VALUE
from lsm.errors import Corruption
from lsm.framing import HEADER_BYTES
from lsm.wal import LogWriter, Replay, replay_logs
from simfs.api import SyncLevel
from simfs.crash import SYNCED_ONLY, WorstCase
from simfs.memory import MemoryFilesystem

NONE, FLUSH, FSYNC, FULLFSYNC = SyncLevel
GENTLE = ("tolerate_torn_tail", "point_in_time", "skip_corrupted")
MODES = (*GENTLE, "absolute")


class Store:
    """Logs in /db, one put at each sequence."""

    def __init__(self) -> None:
        self.fs = MemoryFilesystem()
        self.fs.mkdir("/db")
        self.fs.sync_dir("/", "test")
        self.sequence = 0
        self.log: LogWriter | None = None
        self.numbers: list[int] = []

    def rotate(self, number: int) -> None:
        self.log = LogWriter.create(
            self.fs,
            f"/db/{number:06d}.log",
            number=number,
            first_sequence=self.sequence + 1,
            predecessor=self.log,
            buffer_bytes=150,
        )
        self.numbers.append(number)

    def put(self, *levels: SyncLevel) -> None:
        """One put at each level."""
        assert self.log is not None
        for level in levels:
            self.sequence += 1
            self.log.append(encode_ops(self.sequence, [op(self.sequence)]), level)

    def cut(self, number: int, size_bytes: int) -> None:
        with self.fs.open(f"/db/{number:06d}.log", write=True) as file:
            file.truncate(file.size() + size_bytes if size_bytes < 0 else size_bytes)

    def flip(self, number: int, offset: int) -> None:
        path = f"/db/{number:06d}.log"
        with self.fs.open(path) as file:
            data = bytearray(file.pread(0, file.size()))
        data[offset] ^= 0xFF
        with self.fs.create(path, exclusive=False) as file:
            file.append(bytes(data))

    def replay(self, mode: str, start_sequence: int = 0) -> Replay:
        return replay_logs(self.fs, "/db", self.numbers, mode, start_sequence=start_sequence)


def op(sequence: int) -> Op:
    return (VALUE, b"k%d" % sequence, b"v" * (sequence % 40))


def batches(*sequences: int) -> list[tuple[int, list[Op]]]:
    return [(sequence, [op(sequence)]) for sequence in sequences]


def three_logs(second: SyncLevel, third: SyncLevel) -> Store:
    """Sequences 1 to 3 in log 3, 4 to 6 in log 5, 7 to 9 in log 8."""
    store = Store()
    store.rotate(3)
    store.put(FLUSH, FLUSH, FLUSH)
    store.rotate(5)
    store.put(second, second, second)
    store.rotate(8)
    store.put(third, third, third)
    return store


@pytest.mark.parametrize("mode", MODES)
def test_whole_logs_replay_in_order(mode: str) -> None:
    replay = three_logs(FLUSH, FSYNC).replay(mode)
    assert replay == Replay(batches(*range(1, 10)), 9, [], 9)


@pytest.mark.parametrize("mode", MODES)
def test_no_logs(mode: str) -> None:
    assert Store().replay(mode, 17) == Replay([], 17, [], 0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("start", range(11))
def test_what_is_in_tables_is_skipped_silently(start: int, mode: str) -> None:
    replay = three_logs(FLUSH, FSYNC).replay(mode, start)
    assert replay == Replay(batches(*range(start + 1, 10)), max(start, 9), [], max(0, 9 - start))


def test_a_lost_end_of_an_unsynced_log_ends_the_prefix() -> None:
    store = three_logs(FLUSH, FLUSH)
    store.cut(3, -1)
    replay = store.replay("tolerate_torn_tail")
    assert (replay.batches, replay.last_sequence) == (batches(1, 2), 2)
    assert [line.split(":")[0] for line in replay.dropped] == ["/db/000003.log", "/db/000005.log", "/db/000008.log"]
    assert "3 records dropped" in replay.dropped[1]
    assert "sequences 3 to 3 are missing before log 5" in replay.dropped[1]
    assert store.replay("point_in_time") == replay
    skipped = store.replay("skip_corrupted")
    assert (skipped.batches, skipped.last_sequence) == (batches(1, 2, 4, 5, 6, 7, 8, 9), 9)
    assert len(skipped.dropped) == 2
    with pytest.raises(Corruption) as caught:
        store.replay("absolute")
    assert caught.value.path == "/db/000003.log"


@pytest.mark.parametrize("cut_record", [False, True])
@pytest.mark.parametrize(("second", "third"), [(FSYNC, FLUSH), (FLUSH, FSYNC), (FSYNC, FSYNC)])
def test_a_lost_end_before_synced_records_is_corruption(second: SyncLevel, third: SyncLevel, cut_record: bool) -> None:
    """A later log was synced, and this one before it: its end cannot just be missing."""
    store = three_logs(second, third)
    size = store.fs.stat("/db/000003.log").size
    with store.fs.open("/db/000003.log") as file:
        last = file.pread(0, size).rindex(b"k3") - 19 - 16
    store.cut(3, last if cut_record else size - 1)
    with pytest.raises(Corruption, match="sequences 3 to 3 are missing before log 5") as caught:
        store.replay("tolerate_torn_tail")
    if cut_record:  # cut between two records: seen at the log that follows
        assert (caught.value.path, caught.value.offset) == ("/db/000005.log", 0)
    else:
        assert (caught.value.path, caught.value.offset) == ("/db/000003.log", last)
    assert "wal_recovery_mode" in caught.value.reason
    assert store.replay("point_in_time").batches == batches(1, 2)
    assert store.replay("skip_corrupted").batches == batches(1, 2, *range(4, 10))


def test_a_lost_end_that_tables_hold_is_no_gap() -> None:
    store = three_logs(FSYNC, FSYNC)
    store.cut(3, -1)
    replay = store.replay("tolerate_torn_tail", 3)
    assert replay.batches == batches(*range(4, 10))
    assert len(replay.dropped) == 1, "the torn record is told all the same"


def test_a_missing_log() -> None:
    store = three_logs(FLUSH, FLUSH)
    store.numbers = [3, 8]
    replay = store.replay("tolerate_torn_tail")
    assert replay.batches == batches(1, 2, 3)
    assert "sequences 4 to 6 are missing before log 8" in replay.dropped[0]
    store = three_logs(FLUSH, FSYNC)
    store.numbers = [3, 8]
    with pytest.raises(Corruption, match="sequences 4 to 6 are missing before log 8") as caught:
        store.replay("tolerate_torn_tail")
    assert caught.value.path == "/db/000008.log"


@pytest.mark.parametrize("head", [b"", bytes(32), b"\xfe\xdc" * 30])
def test_a_log_without_a_head_between_two_others(head: bytes) -> None:
    store = three_logs(FLUSH, FLUSH)
    with store.fs.create("/db/000005.log", exclusive=False) as file:
        file.append(head)
    assert store.replay("tolerate_torn_tail").batches == batches(1, 2, 3)
    store = three_logs(FLUSH, FSYNC)
    with store.fs.create("/db/000005.log", exclusive=False) as file:
        file.append(head)
    with pytest.raises(Corruption) as caught:
        store.replay("tolerate_torn_tail")
    assert (caught.value.path, caught.value.offset) == ("/db/000005.log", 0)


def test_an_empty_log_without_a_head_loses_nothing() -> None:
    store = Store()
    store.rotate(3)
    store.put(FLUSH, FLUSH)
    store.rotate(5)
    store.rotate(8)
    store.put(FSYNC, FSYNC)
    store.cut(5, 7)
    assert store.replay("tolerate_torn_tail").batches == batches(1, 2, 3, 4)


def test_damage_at_every_byte_of_every_log_gives_a_prefix_or_corruption() -> None:
    for second, third in ((FLUSH, FLUSH), (FLUSH, FSYNC)):
        for number in (3, 5, 8):
            size = three_logs(second, third).fs.stat(f"/db/{number:06d}.log").size
            for offset in range(size):
                store = three_logs(second, third)
                store.flip(number, offset)
                prefix = store.replay("point_in_time").batches
                assert prefix == batches(*range(1, len(prefix) + 1))
                assert 3 * [3, 5, 8].index(number) <= len(prefix) < 3 * [3, 5, 8].index(number) + 3
                skipped = [first for first, _ in store.replay("skip_corrupted").batches]
                assert len(set(skipped)) == len(skipped) == (9 if offset < HEADER_BYTES else 8) or number == 8
                if third == FSYNC and (number < 8 or offset < HEADER_BYTES):
                    with pytest.raises(Corruption) as caught:
                        store.replay("tolerate_torn_tail")
                    assert caught.value.path == f"/db/{number:06d}.log"
                elif third == FLUSH:
                    assert store.replay("tolerate_torn_tail").batches == prefix


def raw_log(store: Store, number: int, first: int, payloads: list[bytes], level: SyncLevel = FLUSH) -> None:
    log = LogWriter.create(
        store.fs, f"/db/{number:06d}.log", number=number, first_sequence=first, predecessor=None, buffer_bytes=1
    )
    for payload in payloads:
        log.append(payload, level)
    store.numbers.append(number)


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"no batch", "the checksum fits, the batch does not"),
        (encode_ops(2, [op(2)]), "expected sequence 3, found 2 to 2"),
        (encode_ops(2, [op(2), op(3)]), "expected sequence 3, found 2 to 3"),
    ],
)
def test_records_that_no_crash_explains(payload: bytes, why: str) -> None:
    store = Store()
    raw_log(store, 3, 1, [encode_ops(1, [op(1)]), encode_ops(2, [op(2)]), payload, encode_ops(3, [op(3)])])
    for mode in ("tolerate_torn_tail", "absolute"):
        with pytest.raises(Corruption, match=why) as caught:
            store.replay(mode)
        assert caught.value.path == "/db/000003.log"
    assert store.replay("point_in_time").batches == batches(1, 2)
    skipped = store.replay("skip_corrupted")
    assert skipped.batches == batches(1, 2, 3)
    assert why in skipped.dropped[0]


@pytest.mark.parametrize(("level", "corrupt"), [(FLUSH, False), (FSYNC, True)])
def test_a_gap_between_two_records_of_one_log(level: SyncLevel, corrupt: bool) -> None:
    store = Store()
    raw_log(store, 3, 1, [encode_ops(n, [op(n)]) for n in (1, 2, 4, 5)], level)
    if corrupt:
        with pytest.raises(Corruption, match="sequences 3 to 3 are missing"):
            store.replay("tolerate_torn_tail")
    else:
        assert store.replay("tolerate_torn_tail").batches == batches(1, 2)
    assert store.replay("skip_corrupted").batches == batches(1, 2, 4, 5)


def test_batches_count_by_their_ops() -> None:
    store = Store()
    ops: list[Op] = [(VALUE, b"a", b"1"), (DELETE, b"b", b""), (VALUE, b"c", b"3")]
    raw_log(store, 3, 1, [encode_ops(1, ops), encode_ops(4, ops[:2])])
    raw_log(store, 4, 6, [encode_ops(6, ops)])
    replay = store.replay("tolerate_torn_tail")
    assert replay == Replay([(1, ops), (4, ops[:2]), (6, ops)], 8, [], 3)
    with pytest.raises(Corruption, match="expected sequence 3, found 1 to 3"):
        store.replay("tolerate_torn_tail", 2)


# Crashes

steps = st.lists(st.one_of(st.sampled_from(SyncLevel), st.just("rotate"), st.just("sync")), min_size=1, max_size=14)


def run(script: list[SyncLevel | str]) -> tuple[Store, list[tuple[int, int, SyncLevel]]]:
    """The store, and for each acknowledgement: after how many operations, up to which sequence, at which level."""
    store = Store()
    store.rotate(3)
    acknowledged = []
    for step in script:
        level = FSYNC if step == "sync" else step
        if step == "rotate":
            store.rotate(store.numbers[-1] + 2)
            continue
        if step == "sync":
            assert store.log is not None
            store.log.sync(FSYNC)
        else:
            store.put(SyncLevel(int(level)))
        acknowledged.append((len(store.fs.log), store.sequence, SyncLevel(int(level))))
    return store, acknowledged


def recovered(image: MemoryFilesystem) -> Replay:
    numbers = [int(name[:6]) for name in image.listdir("/db")]
    return replay_logs(image, "/db", numbers, "tolerate_torn_tail", start_sequence=0)


def check_prefix(replay: Replay, least: int) -> None:
    assert replay.batches == batches(*range(1, len(replay.batches) + 1))
    assert replay.last_sequence == len(replay.batches) >= least


@settings(deadline=None)
@given(steps, st.integers(0, 2**32))
def test_power_loss_at_every_operation_leaves_a_prefix_with_all_that_was_synced(
    script: list[SyncLevel | str], seed: int
) -> None:
    store, acknowledged = run(script)
    start = 2  # the folder is there
    for at in range(start, len(store.fs.log) + 1):
        least = max((last for done, last, level in acknowledged if done <= at and level >= FSYNC), default=0)
        for choice in (SYNCED_ONLY, WorstCase(seed + at)):
            check_prefix(recovered(store.fs.crash_image("power", choice, at)), least)


@settings(deadline=None)
@given(steps)
def test_a_kill_at_every_operation_leaves_a_prefix_with_all_that_was_flushed(script: list[SyncLevel | str]) -> None:
    store, acknowledged = run(script)
    for at in range(2, len(store.fs.log) + 1):
        least = max((last for done, last, level in acknowledged if done <= at and level >= FLUSH), default=0)
        check_prefix(recovered(store.fs.crash_image("kill", None, at)), least)


def test_without_syncs_power_loss_does_lose() -> None:
    """Else the tests above would test nothing."""
    store, _ = run([FLUSH, FLUSH, "rotate", FLUSH])
    assert recovered(store.fs.crash_image("power", SYNCED_ONLY)).batches == []
    store, _ = run([NONE, NONE])
    assert recovered(store.fs.crash_image("kill")).batches == []
