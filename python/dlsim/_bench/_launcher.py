# SPDX-License-Identifier: Apache-2.0
"""A process that runs commands in a directory of its own, and removes that when its parent ends.

It imports little: what it holds itself when it starts a command counts as that command's memory.
It reads one line of JSON per command, [arguments, environment], and answers with one.
"""

import json
import os
import shutil
import signal
import sys
import tempfile
import time


def _run(arguments: list[str], environment: dict[str, str], errors: int) -> dict[str, object]:
    null = os.open(os.devnull, os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, null, number) for number in (0, 1)]
    actions.append((os.POSIX_SPAWN_DUP2, errors, 2))
    os.ftruncate(errors, 0)
    begin = time.monotonic()
    process = os.posix_spawn(
        arguments[0], arguments, {**os.environ, **environment}, file_actions=actions
    )
    _, status, usage = os.wait4(process, 0)
    wall = time.monotonic() - begin
    os.close(null)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "errors": os.pread(errors, 1 << 16, 0).decode("utf-8", "replace"),
        "wall_seconds": wall,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_bytes": usage.ru_maxrss << 10,
    }


def main() -> None:
    """Makes the directory, says where, and serves until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with its parent
    errors = os.memfd_create("errors")
    try:
        folder = tempfile.mkdtemp(prefix="dlsim-", dir=sys.argv[1] or None)
    except OSError as error:
        sys.exit(f"{error.strerror}")
    try:
        print(folder, flush=True)
        for line in sys.stdin:
            arguments, environment = json.loads(line)
            print(json.dumps(_run(arguments, environment, errors)), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
