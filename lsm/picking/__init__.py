"""Compaction strategies: which tables to merge, and where to. See `plan` for the contract."""

from __future__ import annotations

from lsm.picking.leveled import LeveledPicker
from lsm.picking.manual import manual_plan
from lsm.picking.none import NonePicker
from lsm.picking.plan import Picker, PickState, Plan
from lsm.picking.tiered import TieredPicker

__all__ = ["LeveledPicker", "NonePicker", "PickState", "Picker", "Plan", "TieredPicker", "make_picker", "manual_plan"]


def make_picker(strategy: str | Picker) -> Picker:
    """The picker of a name in `options.CHOICES["strategy"]`; a picker of your own passes through."""
    if not isinstance(strategy, str):
        return strategy
    pickers: dict[str, type[Picker]] = {"leveled": LeveledPicker, "tiered": TieredPicker, "none": NonePicker}
    return pickers[strategy]()
