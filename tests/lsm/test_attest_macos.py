"""Where `fsync` stops at the device's cache (macOS), only a FULL sync may be attested."""

import pytest

from lsm.batch import encode_ops
from lsm.entry import VALUE
from lsm.errors import Corruption
from lsm.wal import LogWriter, scan_log
from simfs.api import SyncLevel
from simfs.memory import MemoryFilesystem


class CachedDevice(MemoryFilesystem):
    fsync_is_durable = False


def written(fs: MemoryFilesystem, level: SyncLevel) -> LogWriter:
    log = LogWriter.create(fs, "/a.log", number=1, first_sequence=1, predecessor=None, buffer_bytes=0)
    for sequence in (1, 2, 3):
        log.append(encode_ops(sequence, [(VALUE, b"k%d" % sequence, b"v")]), level)
    return log


@pytest.mark.parametrize(
    ("fs", "level", "attests"),
    [
        (MemoryFilesystem(), SyncLevel.FLUSH, False),
        (MemoryFilesystem(), SyncLevel.FSYNC, True),
        (MemoryFilesystem(), SyncLevel.FULLFSYNC, True),
        (CachedDevice(), SyncLevel.FSYNC, False),
        (CachedDevice(), SyncLevel.FULLFSYNC, True),
    ],
)
def test_what_a_record_attests(fs: MemoryFilesystem, level: SyncLevel, attests: bool) -> None:
    written(fs, level).close()
    assert (scan_log(fs, "/a.log", "absolute").attested > 0) is attests


def test_a_device_that_lost_the_middle_leaves_a_torn_tail_not_damage() -> None:
    """fsync was acknowledged by the cache; the power failed, and the first record is gone where the last is there."""
    fs = CachedDevice()
    written(fs, SyncLevel.FSYNC).close()
    with fs.open("/a.log") as file:
        data = bytearray(file.pread(0, file.size()))
    data[40:60] = bytes(20)
    with fs.create("/a.log", exclusive=False) as file:
        file.append(data)
    scan = scan_log(fs, "/a.log", "tolerate_torn_tail")
    assert (scan.status, scan.records) == ("torn", [])


def test_a_clean_end_syncs_full_and_attests_everything() -> None:
    fs = CachedDevice()
    written(fs, SyncLevel.FSYNC).finish(sync=True)
    scan = scan_log(fs, "/a.log", "absolute")
    assert scan.attested == scan.records[-1].offset
    with fs.open("/a.log") as file:
        data = bytearray(file.pread(0, file.size()))
    data[50] ^= 1
    with fs.create("/a.log", exclusive=False) as file:
        file.append(data)
    with pytest.raises(Corruption):
        scan_log(fs, "/a.log", "tolerate_torn_tail")
