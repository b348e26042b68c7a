"""What a tour found out: one value, and the one JSON object that it is printed as."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from labs.text import encode_text
from labs.tour.kills import Killed
from labs.tour.power import Crashes
from labs.tour.store import Changed, Compared, Load
from labs.tour.workload import Data
from lsm.metrics import Metrics
from simfs.api import SyncLevel


@dataclass
class Report:
    """Filled in chapter by chapter."""

    data: Data
    seed: int
    folder: str
    filesystem: str | None
    kept: bool
    load: Load
    changed: Changed
    written: Metrics  # at the end of the writing session
    compared: Compared
    reopened: Metrics
    dial: dict[SyncLevel, Killed] = field(default_factory=dict)
    crashes: Crashes = field(default_factory=Crashes)  # at FSYNC
    unsafe: Crashes = field(default_factory=Crashes)  # at NONE
    live_user_bytes: int = 0
    device_reason: str | None = None
    seconds: float = 0.0

    def failures(self) -> list[str]:
        """The checks that failed, in words; empty if all is well."""
        found = []
        if self.load.wrong_reads:
            found.append(f"{self.load.wrong_reads} reads during the load returned a wrong value")
        if self.compared.differing:
            found.append(f"{self.compared.differing} entries of the reopened store differ from the model")
        if self.compared.wrong_lookups:
            found.append(f"{self.compared.wrong_lookups} lookups returned a wrong value")
        for level, killed in self.dial.items():
            if killed.wrong:
                found.append(f"{level.name}: {killed.wrong} entries are not what the killed writer wrote")
            if level == SyncLevel.NONE and not killed.lost:
                found.append("NONE: the kill lost nothing, so it has shown nothing")
            if level != SyncLevel.NONE and killed.lost:
                found.append(f"{level.name}: {killed.lost} acknowledged writes did not survive the kill")
        found += [f"power loss at FSYNC: {text}" for text in self.crashes.examples]
        found += [f"power loss at NONE: {text}" for text in self.unsafe.examples]
        if not self.unsafe.lossy:
            found.append("power loss at NONE: no state lost anything, so the power was not cut")
        return found

    @property
    def space_amp(self) -> float:
        """Bytes of live files ÷ bytes of live keys and values."""
        return self.reopened.live_bytes / max(self.live_user_bytes, 1)

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON-ready values."""
        amp = self.written.write_amp
        return {
            "ok": not self.failures(),
            "failures": self.failures(),
            "seed": self.seed,
            "folder": self.folder,
            "kept": self.kept,
            "filesystem": self.filesystem,
            "corpus": {"source": self.data.name, "truncated": self.data.truncated, **dataclasses.asdict(self.load)},
            "changes": self._changes(),
            "compare": dataclasses.asdict(self.compared),
            "dial": {
                level.name: dataclasses.asdict(killed) | {"lost": killed.lost} for level, killed in self.dial.items()
            },
            "crash": {**dataclasses.asdict(self.crashes), "unsafe": dataclasses.asdict(self.unsafe)},
            "write_amp": {
                "engine": amp.engine.value,
                "logical": amp.logical.value,
                "device": None if self.device_reason else amp.device.value,
                "device_reason": self.device_reason,
            },
            "space_amp": self.space_amp,
            "metrics": self.written.to_json(),
            "seconds": round(self.seconds, 3),
        }

    def _changes(self) -> dict[str, Any]:
        bounds = self.changed.range_bounds
        changes = dataclasses.asdict(self.changed)
        changes["range_bounds"] = None if bounds is None else [encode_text(key) for key in bounds]
        return changes
