# SPDX-License-Identifier: Apache-2.0
"""Runs one command under one fault and judges how it ended; tools/faults has the faults."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

# As in fault_injection.cc.
CALLS = "malloc open read pread write pwrite fsync rename".split() + (
    "close fstat statx stat flock unlink opendir ftruncate".split()
)
REFUSALS = (3, 70)
OUTCOMES = ("right", "refused", "killed", "else")
TIMEOUT = 60
HANGS = 1000


@dataclass
class Command:
    """A command line with {in} and {out}, the folders of its inputs and outputs."""

    name: str
    arguments: list[str]
    checks_changes: bool = False  # of the files that it reads
    expected: dict[str, bytes] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)


@dataclass
class Fault:
    """What is done to a process; `may_kill`: it may end by a signal."""

    text: str
    environment: dict[str, str] = field(default_factory=dict)
    limits: dict[int, int] = field(default_factory=dict)
    closed: tuple[int, ...] = ()
    kill_after: float | None = None
    disk: int | None = None  # bytes of the device for the outputs
    may_kill: bool = False
    must_succeed: bool = False
    changes: bool = False  # an input


COMMANDS = [
    Command(
        "replay",
        ["replay", "{in}/trace", "--json", "{out}/r.json", "--csv", "{out}/r.csv", "--quiet"],
        checks_changes=True,
    ),
    Command(
        "profile",
        ["profile", "{in}/trace", "-o", "{out}/p", "--scaled-format", "mxfp8", "--quiet"],
        checks_changes=True,
    ),
    Command(
        "sweep",
        "sweep {in}/profile --policy torch --vary init_scale=2^0..2^8 --quiet "
        "--json {out}/s.json --csv {out}/s.csv".split(),
    ),
    Command("convert", ["convert", "--to", "cb16", "{in}/a.npy", "{out}/c.npy"]),
]


def write_inputs(folder: Path, dlsim: Path) -> None:
    """Five steps of three tensors, an array, and a profile of the trace."""
    chance = random.Random(20261123)
    (folder / "trace").mkdir()
    for step in range(5):
        header, data = "", b""
        for name in ("a.weight", "b.weight", "b.bias"):
            values = [chance.gauss(0, 1) * 2.0 ** chance.randint(-30, 3) for _ in range(300)]
            span = f"[{len(data)},{len(data) + 1200}]"
            header += f',"{name}":{{"dtype":"F32","shape":[300],"data_offsets":{span}}}'
            data += struct.pack("<300f", *values)
        text = f'{{"__metadata__":{{"step":"{step}"}}{header}}}'.encode()
        (folder / "trace" / f"step-{step}.safetensors").write_bytes(
            struct.pack("<Q", len(text)) + text + data
        )
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (300,), }"
    head = head.ljust(117) + b"\n"
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + data[:1200]
    (folder / "a.npy").write_bytes(array)
    output = ["-o", str(folder / "profile"), "--quiet"]
    subprocess.run([dlsim, "profile", folder / "trace", *output], check=True)


class Campaign:
    """Runs cases and counts how they end."""

    def __init__(self, dlsim: Path, library: Path, folder: Path, short: bool) -> None:
        self.dlsim, self.library, self.short = dlsim, library, short
        self.inputs, self.outputs = folder / "in", folder / "out"
        self.kept, self.counts_file = folder / "kept", folder / "counts"
        self.inputs.mkdir()
        write_inputs(self.inputs, dlsim)
        self.whole = {path: path.read_bytes() for path in self.inputs.rglob("*") if path.is_file()}
        self.times = {path: path.stat().st_mtime_ns for path in self.whole}
        self.others: list[str] = []
        for command in COMMANDS:
            self._learn(command)

    def _learn(self, command: Command) -> None:
        """Notes the right bytes, and how often each call is made."""
        self.clear()
        counts = {"LD_PRELOAD": str(self.library), "DLSIM_FAULT_COUNTS": str(self.counts_file)}
        ended, line = self.start(command, Fault("", counts))
        if ended != 0:
            raise SystemExit(f"tools/faults: {command.name} fails by itself: {line}")
        command.expected = self._files()
        numbers = struct.unpack(f"<{len(CALLS)}Q", self.counts_file.read_bytes())
        command.calls = dict(zip(CALLS, numbers, strict=True))

    def clear(self) -> None:
        shutil.rmtree(self.outputs, ignore_errors=True)
        self.outputs.mkdir()

    def _files(self) -> dict[str, bytes]:
        files = (path for path in self.outputs.rglob("*") if path.is_file())
        return {str(path.relative_to(self.outputs)): path.read_bytes() for path in files}

    def _complete_files(self) -> dict[str, bytes]:
        """Without what a profile's writer left, which readers ignore and the next one removes."""
        return {name: data for name, data in self._files().items() if not name.endswith(".tmp")}

    def _restore(self) -> None:
        """Undoes what a fault did to the inputs."""
        for path, data in self.whole.items():
            if path.stat().st_mtime_ns != self.times[path]:
                path.write_bytes(data)
                os.utime(path, ns=(self.times[path], self.times[path]))

    def start(self, command: Command, fault: Fault) -> tuple[int, str]:
        """Returns how the process ends, and what it says on standard error."""
        places = {"in": self.inputs, "out": self.outputs}
        line = [str(self.dlsim), *(a.format(**places) for a in command.arguments)]

        def prepare() -> None:
            for limit, value in fault.limits.items():
                resource.setrlimit(limit, (value, value))
            for descriptor in fault.closed:
                os.close(descriptor)

        if fault.disk is not None:
            script = f'mount -t tmpfs -o size={fault.disk} none "$0" && "$@"; code=$?; '
            script += f'cp -a "$0"/. "{self.kept}"; exit $code'
            shutil.rmtree(self.kept, ignore_errors=True)
            self.kept.mkdir()
            line = ["unshare", "--mount", "sh", "-c", script, str(self.outputs), *line]
        environment = {**os.environ, "OMP_NUM_THREADS": "2", "LC_ALL": "C", **fault.environment}
        with subprocess.Popen(
            line,
            env=environment,
            preexec_fn=prepare,  # noqa: PLW1509, this program has no threads
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                if fault.kill_after is not None:
                    time.sleep(fault.kill_after)
                    process.kill()
                text = process.communicate(timeout=TIMEOUT)[1]
            except subprocess.TimeoutExpired:
                process.kill()
                return HANGS, "hangs"
        if fault.disk is not None:
            shutil.rmtree(self.outputs)
            self.kept.rename(self.outputs)
        return process.returncode, text.decode("utf-8", "replace")

    def run(self, family: str, command: Command, fault: Fault) -> str:
        """Runs one case and returns how it ended, one of OUTCOMES."""
        self.clear()
        ended, text = self.start(command, fault)
        found = self._complete_files()
        outcome, why = self._judge(command, fault, ended, text, found)
        if (
            outcome == "else"
            and fault.changes
            and ended == 0
            and self._is_of_changed(command, found)
        ):
            outcome = "right"  # the change came before the file was read for its data
        self._restore()
        if outcome == "killed" and not self._recovers(command):
            outcome, why = "else", "killed, and the next run has other bytes"
        if outcome == "else":
            self.others.append(f"{family} {command.name} {fault.text}: {why}: {text.strip()!r}")
        return outcome

    def _judge(
        self, command: Command, fault: Fault, ended: int, text: str, found: dict[str, bytes]
    ) -> tuple[str, str]:
        killed = fault.may_kill and ended == -signal.SIGKILL
        for name, data in found.items():
            if killed and ".tmp." in name:
                continue
            if command.expected.get(name) != data:
                return "else", f"exit {ended}, and {name} is not whole"
        if killed:
            return "killed", ""
        if ended == 0 and found == command.expected:
            return ("right", "") if not text else ("else", "right bytes, and words")
        if fault.must_succeed or ended not in REFUSALS:
            return "else", f"exit {ended}"
        one_line = text.startswith("dlsim") and text.count("\n") == 1 and text.endswith("\n")
        if not one_line and 2 not in fault.closed:
            return "else", f"exit {ended}, and not one line"
        return "refused", ""

    def _is_of_changed(self, command: Command, found: dict[str, bytes]) -> bool:
        """Whether a run on the inputs as they are now gives what was found."""
        self.clear()
        return self.start(command, Fault(""))[0] == 0 and self._complete_files() == found

    def _recovers(self, command: Command) -> bool:
        """Whether a run after a kill gives the right bytes."""
        ended, _ = self.start(command, Fault(""))
        found = {name: data for name, data in self._files().items() if ".tmp." not in name}
        return ended == 0 and found == command.expected

    def inject(self, text: str, **keywords: bool) -> Fault:
        """A fault of the preloaded library."""
        environment = {
            "LD_PRELOAD": str(self.library),
            "DLSIM_FAULT": text,
            "DLSIM_FAULT_INPUTS": str(self.inputs),
        }
        return Fault(text, environment, **keywords)

    def numbers(self, count: int, most: int) -> list[int]:
        """Numbers of calls to fail: all, or the first, the last and `most` between them."""
        most = max(1, most // 40) if self.short else most
        if count <= most:
            return list(range(1, count + 1))
        return sorted({1, count, *random.Random(count).sample(range(1, count + 1), most)})
