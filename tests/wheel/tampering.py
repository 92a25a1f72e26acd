"""A sound wheel to tamper with: reading its members, changing them, writing it again."""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

from tilewheel.version import VERSION

KEY = "topk_gate-num_experts=any-num_topk=any-cuda-sm_90a"
FILE = f"tilewheel_cu13/sm_90a/{KEY}.so"
INFO = f"tilewheel_cu13-{VERSION}.dist-info"

Members = dict[str, bytes]


def read(path: Path) -> Members:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path: Path, members: Members, *, signs: bool = True) -> Path:
    """Write a wheel; its RECORD is made anew unless ``signs`` is false."""
    if signs:
        (record,) = (name for name in members if name.endswith(".dist-info/RECORD"))
        rows = []
        for name, content in members.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            rows.append(f"{name},sha256={digest.decode()},{len(content)}")
        rows = [row for row in rows if not row.startswith(f"{record},")]
        members = {**members, record: "\n".join([*rows, f"{record},,"]).encode()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def describe(members: Members, **changes: Any) -> None:
    """Change the manifest, by default to fit the artifact's file."""
    tree = json.loads(members["tilewheel_cu13/manifest.json"])
    (entry,) = tree["artifacts"]
    entry["sha256"] = hashlib.sha256(members[FILE]).hexdigest()
    entry["size_bytes"] = len(members[FILE])
    members["tilewheel_cu13/manifest.json"] = json.dumps({**tree, **changes}).encode()


def check(path: Path) -> list[str]:
    import check_wheel

    return check_wheel.check(path)
