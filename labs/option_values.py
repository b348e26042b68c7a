"""Engine options from the command line: `name=value` texts become what `lsm.Options` takes.

    block_size=16k     memtable=skiplist     key_range_filter=none     sync=fsync

Every field of `Options` that can be said in text can be said here; the type is the field's own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

from lsm.errors import InvalidArgument
from lsm.options import Options

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_BOOLS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_SIZE = re.compile(r"(-?\d+)\s*([kmg]?)(?:i?b)?", re.IGNORECASE)


def parse_options(pairs: Iterable[str]) -> dict[str, Any]:
    """Options from `name=value` texts. Raises `InvalidArgument`.

    >>> parse_options(["block_size=16k", "key_range_filter=none", "memtable=skiplist"])
    {'block_size': 16384, 'key_range_filter': None, 'memtable': 'skiplist'}
    """
    types = {field.name: str(field.type) for field in dataclasses.fields(Options)}
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise InvalidArgument(f"option {pair!r}: expected name=value")
        values[name] = _parse(name, types[name], text.strip()) if name in types else text
    return values


def _parse(name: str, type_name: str, text: str) -> Any:
    kinds = [kind.strip() for kind in type_name.split("|")]
    if "Listener" in kinds:
        raise InvalidArgument(f"option {name} is a function: it can only be given in Python")
    if "None" in kinds and text.lower() == "none":
        return None
    if "bool" in kinds:
        if text.lower() not in _BOOLS:
            raise InvalidArgument(f"option {name}={text!r}: expected true or false")
        return _BOOLS[text.lower()]
    if "int" in kinds:
        match = _SIZE.fullmatch(text)
        if match is None:
            raise InvalidArgument(f"option {name}={text!r}: expected a whole number, such as 4096, 64k or 4MiB")
        return int(match.group(1)) * _UNITS[match.group(2).lower()]
    if "float" in kinds:
        try:
            return float(text)
        except ValueError:
            raise InvalidArgument(f"option {name}={text!r}: expected a number") from None
    return text
