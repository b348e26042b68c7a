"""How Hypothesis runs here: no deadlines (no test depends on time), and in `make test` the same examples every time.

`LSMLAB_EXPLORE=1 pytest …`, and `make campaign`, draw new ones; a failure prints what replays it.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "lsmlab",
    deadline=None,
    derandomize=not os.environ.get("LSMLAB_EXPLORE"),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("lsmlab")
