"""What the commands of ``tilewheel`` find out. Nothing here prints or exits."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

import tilewheel
from tilewheel import api, discovery, environment, loader, selftest
from tilewheel.discovery import Entry
from tilewheel.errors import ArtifactLoadError, nearest
from tilewheel.key import Value, format_value, is_name, parse_value

OK = 0
COMMAND_LINE = 2
NOTHING_SELECTED = 3
CHECK_FAILED = 7
INTERRUPTED = 130
BROKEN_PIPE = 141
"""As for a program that SIGINT or SIGPIPE ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a command says: an exit code, text for people, and the same as a JSON value."""

    code: int
    text: str
    tree: Any


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; ``run`` of its result is the command."""
    root = argparse.ArgumentParser(
        prog="tilewheel",
        description="Inspect and check the installed artifacts.",
        epilog="exit codes: 0 ok, 1 bug, 2 command line, 3 nothing selected, 7 check failed",
    )
    root.add_argument("--version", action="version", version=tilewheel.__version__)
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[argparse.Namespace], Outcome], text: str) -> Any:
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--json", action="store_true", help="print JSON")
        command.set_defaults(run=run)
        return command

    only = {"nargs": "?", "default": "*", "metavar": "ONLY", "help": "a glob over keys"}
    add("list", _list, "List the installed artifacts.").add_argument("only", **only)
    add("info", _info, "Show everything known of one artifact.").add_argument("key")
    why = add("why", _why, "Explain which artifact serves a request, or why none does.")
    why.add_argument("operator")
    why.add_argument("parameters", nargs="*", metavar="NAME=VALUE", type=_parameter)
    why.add_argument("--target", metavar="TARGET", help="cuda-sm_90a, cuda:1, ascend-sim, ...")
    verify = add("verify", _verify, "Check that every artifact's file is there and whole.")
    verify.add_argument("only", **only)
    verify.add_argument(
        "--hash", action="store_true", help="compare every SHA-256, not only those of overlays"
    )
    self_test = add("selftest", _selftest, "Run artifacts against the reference.")
    self_test.add_argument("only", **only)
    add("env", _env, "Show versions, driver, devices and manifests.")
    return root


def _parameter(text: str) -> tuple[str, Value]:
    name, separator, value = text.partition("=")
    if not separator or not is_name(name):
        raise argparse.ArgumentTypeError(f"is {text!r}, must be NAME=VALUE")
    try:
        return name, parse_value(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _select(only: str) -> list[Entry]:
    return [entry for entry in api.artifacts() if fnmatchcase(str(entry.artifact.key), only)]


def _nothing(only: str) -> Outcome:
    problems = discovery.catalog().problems
    installed = len(discovery.catalog().entries)
    if installed:
        text = f"no artifact matches {only!r}; {installed} are installed"
    elif problems:
        text = "no artifacts can be read"
    else:
        text = (
            "no artifacts are installed\nhint: pip install tilewheel-cu13, or set "
            f"{discovery.VARIABLE} to a directory of artifacts"
        )
    return _outcome(NOTHING_SELECTED, text, {"artifacts": []}, problems)


def _outcome(code: int, text: str, tree: dict[str, Any], problems: Sequence[str]) -> Outcome:
    lines = [text, *(f"problem: {problem}" for problem in problems)]
    return Outcome(code=code, text="\n".join(lines), tree={**tree, "problems": list(problems)})


def _list(arguments: argparse.Namespace) -> Outcome:
    entries = _select(arguments.only)
    if not entries:
        return _nothing(arguments.only)
    rows = [
        {
            "key": str(entry.artifact.key),
            "size_bytes": entry.artifact.size_bytes,
            "verification": entry.artifact.verification,
            "source": entry.source,
        }
        for entry in entries
    ]
    return _outcome(OK, _table(rows), {"artifacts": rows}, discovery.catalog().problems)


def _info(arguments: argparse.Namespace) -> Outcome:
    entries = api.artifacts()
    found = [entry for entry in entries if str(entry.artifact.key) == arguments.key]
    if not found:
        known = nearest(arguments.key, [str(entry.artifact.key) for entry in entries])[:5]
        if not known:
            return _nothing(arguments.key)
        text = f"key: is {arguments.key!r}, must be one of, nearest first:\n  " + "\n  ".join(known)
        return _outcome(NOTHING_SELECTED, text, {"nearest": list(known)}, ())
    # Of equal keys an overlay comes first, as in selection.
    entry = found[0]
    tree = asdict(entry.artifact)
    tree["key"] = str(entry.artifact.key)
    tree["parameters"] = dict(entry.artifact.key.parameters)
    tree["toolchain"] = dict(entry.artifact.toolchain)
    tree["multiples"] = dict(entry.artifact.multiples)
    tree["limits"] = {name: [low, high] for name, low, high in entry.artifact.limits}
    tree |= {"source": entry.source, "file": str(entry.path), "overlay": entry.is_overlay}
    return Outcome(code=OK, text="\n".join(_lines(tree)), tree=tree)


def _why(arguments: argparse.Namespace) -> Outcome:
    names = [name for name, _ in arguments.parameters]
    for name in names:
        # The API has arguments of these names: no spec has such a parameter.
        problem = "is no parameter" if name in ("operator", "device") else ""
        problem = "is given twice, must be once" if names.count(name) > 1 else problem
        if problem:
            error = f"{name}: {problem}"
            return Outcome(code=COMMAND_LINE, text=error, tree={"error": error})
    try:
        selection = api.why(
            arguments.operator, device=arguments.target, **dict(arguments.parameters)
        )
    except ValueError as error:
        return Outcome(code=COMMAND_LINE, text=str(error), tree={"error": str(error)})
    except RuntimeError as error:
        text = f"{error}\nhint: name another machine's target with --target, e.g. cuda-sm_90a"
        return Outcome(code=NOTHING_SELECTED, text=text, tree={"error": str(error)})
    choice = selection.choice
    tree = {
        "operator": selection.request.operator,
        "parameters": dict(selection.request.parameters),
        "device": asdict(selection.device) | {"properties": dict(selection.device.properties)},
        "choice": None if choice is None else str(choice.artifact.key),
        "source": None if choice is None else choice.source,
        "file": None if choice is None else str(choice.path),
        "alternatives": [str(entry.artifact.key) for entry in selection.alternatives],
        "rejections": [
            {"key": str(item.entry.artifact.key), "reasons": list(item.reasons)}
            for item in selection.rejections
        ],
        "command": selection.command,
        "problems": list(selection.problems),
    }
    code = NOTHING_SELECTED if choice is None else OK
    return Outcome(code=code, text=str(selection), tree=tree)


def _verify(arguments: argparse.Namespace) -> Outcome:
    entries = _select(arguments.only)
    problems = discovery.catalog().problems
    if not entries and not problems:
        return _nothing(arguments.only)
    failures = []
    for entry in entries:
        try:
            loader.check_files(entry, verify=arguments.hash)
        except ArtifactLoadError as error:
            failures.append(str(error))
    num_hashed = sum(arguments.hash or entry.is_overlay for entry in entries)
    what = "place, size and hash" if num_hashed == len(entries) else "place and size"
    if 0 < num_hashed < len(entries):
        what += f", {num_hashed} in hash too"
    text = "\n".join(
        [f"{len(entries) - len(failures)} of {len(entries)} artifacts right in {what}", *failures]
    )
    code = CHECK_FAILED if failures or problems else OK
    tree = {"num_checked": len(entries), "num_hashed": num_hashed, "failures": failures}
    return _outcome(code, text, tree, problems)


def _selftest(arguments: argparse.Namespace) -> Outcome:
    try:
        available = selftest.machine()
    except ImportError as error:
        text = f"torch: cannot be imported: {error}\nhint: install torch, which is the reference"
        return Outcome(code=NOTHING_SELECTED, text=text, tree={"error": str(error)})
    rows = selftest.run(api.artifacts(), available, arguments.only)
    if not rows:
        return _nothing(arguments.only)
    table = [asdict(row) | {"time_ms": round(row.time_ms, 3)} for row in rows]
    bad = [row for row in rows if row.status in (selftest.MISMATCH, selftest.FAILED)]
    counts = {
        status: sum(row.status == status for row in rows)
        for status in (selftest.EXACT, selftest.MISMATCH, selftest.FAILED, selftest.SKIPPED)
    }
    summary = ", ".join(f"{count} {status}" for status, count in counts.items())
    code = CHECK_FAILED if bad else OK
    tree = {"rows": table, **counts}
    return _outcome(code, f"{_table(table)}\n{summary}", tree, discovery.catalog().problems)


def _env(arguments: argparse.Namespace) -> Outcome:
    tree, problems = environment.describe(discovery.catalog(), os.environ)
    return _outcome(OK, "\n".join(_lines(tree)), tree, problems)


def _lines(tree: dict[str, Any], indent: str = "") -> list[str]:
    """Return a value as ``name: value`` lines, one for each leaf."""
    lines = []
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            lines += [f"{indent}{name}:", *_lines(value, indent + "  ")]
        elif isinstance(value, (list, tuple)) and value and isinstance(value[0], dict):
            lines.append(f"{indent}{name}:")
            for item in value:
                lines.append(f"{indent}  " + " ".join(f"{k}={_cell(v)}" for k, v in item.items()))
        else:
            lines.append(f"{indent}{name}: {_cell(value)}")
    return lines


def _table(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as left-aligned columns below their names."""
    cells = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )


def _cell(value: object) -> str:
    if value is None or value in ((), [], {}, ""):
        return "-"
    if isinstance(value, (list, tuple)):
        return " ".join(_cell(item) for item in value)
    if isinstance(value, str):
        return "; ".join(value.splitlines())  # a message of several lines stays one cell
    return format_value(value) if isinstance(value, (bool, int)) else str(value)
