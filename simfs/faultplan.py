"""Fault plans: where which fault strikes, as one expression that prints and parses.

    plan  =  rule { "|" rule }
    rule  =  fault "@" operation "(" [ condition { "," condition } ] ")"

| fault             | at             | what happens                                                                  |
| ----------------- | -------------- | ----------------------------------------------------------------------------- |
| error(EIO)        | any operation  | the error is raised, nothing is done                                          |
| short(17, ENOSPC) | append         | the first 17 bytes arrive, then the error is raised                           |
| torn(seed)        | append         | some 512-byte sectors (one at least) arrive as zeros; the call claims success |
| flip(bit)         | pread          | this bit of the answer, counted round, is the other way; only this time       |
| rot(bit)          | any of a file  | from now on this bit of the file reads the other way: damage at rest          |
| lie()             | sync, sync_dir | nothing is made durable; the call claims success                              |
| failsync(EIO)     | sync, sync_dir | the error is raised, and *later* syncs of this file or folder lie             |

Operations are the names of the protocol's methods, or `any`. Conditions: `path="*.log"` and `site="wal.*"` (shell
patterns, over the whole path), `nth=3` (the third call that fits), `after=3` (the third and all later ones).

    >>> plan = Plan.parse('short(17, ENOSPC) @ append(path="*.log", nth=3) | lie() @ sync(site="manifest.*")')
    >>> print(plan)
    short(17, ENOSPC) @ append(path="*.log", nth=3) | lie() @ sync(site="manifest.*")

Invariants
----------
1. `Plan.parse(str(plan)) == plan`.
2. The grammar is a part of Python's, so that Python's parser reads it; nothing is ever evaluated.

Left out: latency, misdirected writes, stuck devices (they need a simulated device), and probabilities: a plan
says exactly what happens, and whoever wants many plans draws them.
"""

from __future__ import annotations

import ast
import errno
import json
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Self

from simfs.wrapper import FILE_OPERATIONS, OPERATIONS, Call

SYNCS = ("sync", "sync_dir")
_SHAPES: dict[str, tuple[tuple[type, ...], tuple[str, ...]]] = {
    "error": ((str,), OPERATIONS),
    "short": ((int, str), ("append",)),
    "torn": ((int,), ("append",)),
    "flip": ((int,), ("pread",)),
    "rot": ((int,), FILE_OPERATIONS),
    "lie": ((), SYNCS),
    "failsync": ((str,), SYNCS),
}
"""Kind of fault → what it takes (a `str` is the name of an errno), and the operations that it can break."""


@dataclass(frozen=True)
class Rule:
    """One fault and where it strikes. Raises `ValueError` for what makes no sense."""

    fault: str
    arguments: tuple[int | str, ...]
    operation: str
    path: str = "*"
    site: str = "*"
    nth: int = 0
    after: int = 0

    def __post_init__(self) -> None:
        if self.fault not in _SHAPES:
            raise ValueError(f"unknown fault {self.fault!r}: one of {', '.join(_SHAPES)}")
        takes, operations = _SHAPES[self.fault]
        if tuple(type(each) for each in self.arguments) != takes:
            wanted = ", ".join("an errno's name" if each is str else "a number" for each in takes) or "nothing"
            raise ValueError(f"{self.fault} takes {wanted}, not {self.arguments!r}")
        for each in self.arguments:
            if isinstance(each, str) and not isinstance(getattr(errno, each, None), int):
                raise ValueError(f"{each} is not the name of an errno")
            if isinstance(each, int) and each < 0:
                raise ValueError(f"{self.fault} takes no negative number: {each}")
        if self.operation != "any" and self.operation not in operations:
            raise ValueError(f"{self.fault} cannot strike {self.operation!r}: one of {', '.join(operations)}")
        if self.nth < 0 or self.after < 0 or (self.nth and self.after):
            raise ValueError("nth and after count from 1, and exclude each other")

    def fits(self, call: Call) -> bool:
        """Whether this is a call that the rule counts."""
        return (
            (call.operation == self.operation or (self.operation == "any" and call.operation in _SHAPES[self.fault][1]))
            and fnmatchcase(call.path, self.path)
            and fnmatchcase(call.site, self.site)
        )

    def strikes(self, count: int) -> bool:
        """Whether the `count`-th call that fits is struck."""
        return count == self.nth if self.nth else count >= self.after

    def __str__(self) -> str:
        conditions = [
            f"{name}={json.dumps(value, ensure_ascii=False)}"
            for name, value in (("path", self.path), ("site", self.site))
            if value != "*"
        ]
        conditions += [f"{name}={value}" for name, value in (("nth", self.nth), ("after", self.after)) if value]
        return f"{self.fault}({', '.join(map(str, self.arguments))}) @ {self.operation}({', '.join(conditions)})"


@dataclass(frozen=True)
class Plan:
    """Rules, tried in order."""

    rules: tuple[Rule, ...] = ()

    def __str__(self) -> str:
        return " | ".join(map(str, self.rules))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str(plan)` prints. Raises `ValueError` that says what is not understood."""
        if not text.strip():
            return cls()
        try:
            node: ast.expr = ast.parse(text.strip(), mode="eval").body
        except SyntaxError as error:
            raise ValueError(f"not a fault plan: {text!r} ({error.msg})") from None
        rules: list[Rule] = []
        while isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            rules.insert(0, _rule(node.right))
            node = node.left
        return cls((_rule(node), *rules))


def _rule(node: ast.expr) -> Rule:
    match node:
        case ast.BinOp(
            ast.Call(ast.Name(fault), arguments, []), ast.MatMult(), ast.Call(ast.Name(operation), [], keywords)
        ):
            values = tuple(_value(each) for each in arguments)
            conditions = {each.arg or "**": _value(each.value) for each in keywords}
        case _:
            raise ValueError(f"not a rule, which is fault(...) @ operation(...): {ast.unparse(node)}")
    for name, value in conditions.items():
        if type(value) is not {"path": str, "site": str, "nth": int, "after": int}.get(name):
            raise ValueError(f'not a condition (path="…", site="…", nth=N, after=N): {name}={value!r}')
    return Rule(
        fault,
        values,
        operation,
        str(conditions.get("path", "*")),
        str(conditions.get("site", "*")),
        int(conditions.get("nth", 0)),
        int(conditions.get("after", 0)),
    )


def _value(node: ast.expr) -> int | str:
    match node:
        case ast.Name(str(name)):
            return name
        case ast.Constant(int() | str() as value):
            return value
    raise ValueError(f"neither a number nor a name nor a string: {ast.unparse(node)}")
