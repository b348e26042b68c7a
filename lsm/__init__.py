"""An LSM-tree storage engine in plain Python, to be read, measured and crashed.

    with lsm.open("path") as db:
        db[b"k"] = b"v"

Where to read on: `lsm.db` (the public face), `lsm.wal`, `lsm.memtable`, `lsm.table`, `lsm.merge`,
`lsm.picking`, `lsm.versions`, `lsm.recover`. Each module's head says what it is for, draws its format and
numbers its invariants.
"""

from lsm.batch import WriteBatch
from lsm.checkpoint import destroy
from lsm.db import DB, open  # noqa: A004
from lsm.errors import Corruption, InvalidArgument, MissingExtra
from lsm.metrics import Metrics
from lsm.options import Options
from lsm.repair import RepairReport, repair
from lsm.snapshot import Snapshot
from lsm.verify import VerifyReport
from simfs.api import SyncLevel

__all__ = [
    "DB",
    "Corruption",
    "InvalidArgument",
    "Metrics",
    "MissingExtra",
    "Options",
    "RepairReport",
    "Snapshot",
    "SyncLevel",
    "VerifyReport",
    "WriteBatch",
    "destroy",
    "open",
    "repair",
]
