"""Compaction strategies: which tables to merge, and where to. See `plan` for the contract."""

from __future__ import annotations

from lsm.picking.plan import Picker


def make_picker(strategy: str | Picker) -> Picker:
    """The picker of a name in `options.CHOICES["strategy"]`; a picker of your own passes through."""
    from lsm.picking.leveled import LeveledPicker
    from lsm.picking.none import NonePicker
    from lsm.picking.tiered import TieredPicker

    if not isinstance(strategy, str):
        return strategy
    return {"leveled": LeveledPicker, "tiered": TieredPicker, "none": NonePicker}[strategy]()
