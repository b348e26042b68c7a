"""No compaction: every flush stays a table of level 0. The baseline against which compaction is priced."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lsm.options import Options
    from lsm.picking.plan import PickState, Plan
    from lsm.version import Version


class NonePicker:
    """Never picks."""

    def pick(self, version: Version, state: PickState, options: Options) -> Plan | None:  # noqa: ARG002
        """None."""
        return None

    def scores(self, version: Version, options: Options) -> list[float]:
        """All zero."""
        return [0.0] * max(len(version.levels), options.num_levels)
