"""Who is hot: one small file for each serving process, written once it is warm, and what `ready` and `status` read.

Standard library only: a readiness probe has 300 ms. A file counts only while the very process that wrote it lives: its
pid, the kernel's start time of that pid, and the boot they belong to must all agree.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import tempfile
import time
from pathlib import Path
from typing import ClassVar

from pipeline.digests import sha256_file
from pipeline.errors import ConfigError, QwarmError, RecordError, disk_error
from pipeline.files import replacing
from pipeline.strict import Record

PREFIX = "process-"


@dataclasses.dataclass(frozen=True)
class State(Record):
    """One warm process. `started_ticks` is the kernel's start time of `pid` in clock ticks since boot `boot_id`."""

    SCHEMA: ClassVar[str] = "qwarm.state/1"
    bundle: str
    bundle_sha256: str
    name: str
    version: str
    target: str
    pid: int
    started_ticks: int
    boot_id: str
    address: str | None
    """`http://host:port` when `serve` answers there, null for `fleet.open` in a server of your own."""
    ready_at: str
    ready_ms: float
    """From process start to ready, verification included."""


def default_folder() -> Path:
    """`$XDG_RUNTIME_DIR/qwarm`, else `/tmp/qwarm-<uid>`; two servers that must be told apart get a `--state` folder each."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "qwarm" if runtime else Path(tempfile.gettempdir()) / f"qwarm-{os.getuid()}"


def boot_id() -> str:
    """This boot of the kernel; a start time means nothing in another."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def start_ticks(pid: int) -> int | None:
    """Start time of `pid` in clock ticks since boot (proc(5), field 22 of stat), or None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        if not Path("/proc/self/stat").exists():
            raise QwarmError("This system has no /proc", where="/proc/self/stat", expected="Linux", got="no such file") from None
        return None
    return None if fields[0] in "ZXx" else int(fields[19])


def process_age_ms() -> float:
    """Milliseconds since this process was started, by the kernel's clock (resolution: one tick, usually 10 ms)."""
    ticks = start_ticks(os.getpid()) or 0
    return (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")) * 1000.0


def write(folder: Path, *, bundle: Path, bundle_sha256: str, name: str, version: str, target: str, address: str | None, ready_ms: float) -> State:
    """Say that this process is warm; sweeps away what dead processes left. Returns what was written."""
    try:
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    except OSError as error:
        raise disk_error(error, folder) from error
    state = State(
        bundle=str(bundle),
        bundle_sha256=bundle_sha256,
        name=name,
        version=version,
        target=target,
        pid=os.getpid(),
        started_ticks=start_ticks(os.getpid()) or 0,
        boot_id=boot_id(),
        address=address,
        ready_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        ready_ms=round(ready_ms, 3),
    )
    for path, other in read_all(folder):
        if other is None or not alive(other):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
    with replacing(folder / f"{PREFIX}{state.pid}.json", durable=False) as temporary:  # a boot that ends takes the process with it
        temporary.write_text(state.to_text(), encoding="utf-8")
    return state


def remove(folder: Path) -> None:
    """This process is not ready any more; harmless when it never was."""
    (folder / f"{PREFIX}{os.getpid()}.json").unlink(missing_ok=True)


def read_all(folder: Path) -> list[tuple[Path, State | None]]:
    """Every state file in `folder`. One that is torn, of a foreign schema, or of another user gives None and counts as dead.

    A state folder may be writable by all (a Kubernetes emptyDir is), so a file is believed by its owner: this user or root.
    """
    found: list[tuple[Path, State | None]] = []
    for path in sorted(folder.glob(f"{PREFIX}*.json")):
        try:
            believed = path.lstat().st_uid in (os.getuid(), 0) or os.getuid() == 0
            found.append((path, State.load(path) if believed and not path.is_symlink() else None))
        except (RecordError, FileNotFoundError):
            found.append((path, None))
    return found


def alive(state: State) -> bool:
    """Whether the very process that wrote `state` still runs (a reused pid and a zombie do not count)."""
    return state.boot_id == boot_id() and state.started_ticks == start_ticks(state.pid)


def living(folder: Path) -> list[State]:
    """States of the processes that are warm now, by pid; none when the folder does not exist."""
    return [state for _, state in read_all(folder) if state is not None and alive(state)]


def _manifest_sha256(bundle: Path) -> str:
    try:
        return sha256_file(bundle / "manifest.json")
    except OSError as error:
        raise ConfigError("There is no bundle", where=str(bundle), expected="a folder with manifest.json", got=str(error)) from error


def readiness(folder: Path, bundle: Path | None = None) -> tuple[State | None, str]:
    """A warm process (of `bundle`, if given) and why; None with the reason when there is none.

    A bundle is recognised by the sha256 of its manifest.json: this asks who is hot, it does not verify the bundle.
    """
    digest = _manifest_sha256(bundle) if bundle is not None else None
    states = living(folder)
    if not states:
        written = read_all(folder)
        gone = [path.name for path, state in written if state is not None]
        torn = [path.name for path, state in written if state is None]
        said = [f"{', '.join(gone)} is of a process that is gone"] if gone else []
        said += [f"{', '.join(torn)} cannot be read"] if torn else []
        return None, f"no warm process in {folder}" + (f": {'; '.join(said)}" if said else "")
    if digest is None:
        return states[-1], "a warm process lives"
    for state in states:
        if state.bundle_sha256 == digest:
            return state, "a warm process of this bundle lives"
    others = ", ".join(f"{state.name} {state.version} (manifest sha256 {state.bundle_sha256[:12]})" for state in states)
    return None, f"the bundle's manifest sha256 is {digest[:12]}, but what is warm is {others}"
