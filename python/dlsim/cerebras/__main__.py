# SPDX-License-Identifier: Apache-2.0
"""`python -m dlsim.cerebras script.py` runs a script that imports cerebras.pytorch."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from . import install

_USAGE = 2


def main() -> int:
    """Runs the script with its arguments; what it raises, it raises."""
    parser = argparse.ArgumentParser(
        prog="python -m dlsim.cerebras",
        description="Run a script whose imports say `import cerebras.pytorch as cstorch`, with the "
        "loss scaling and rounding of a Cerebras system emulated",
        epilog="example: python -m dlsim.cerebras train.py --steps 100",
    )
    parser.add_argument("script", help="the script, a file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    given = parser.parse_args()
    script = Path(given.script)
    if not script.is_file():
        print(f"dlsim.cerebras: {script}: no such file, expected a script", file=sys.stderr)
        return _USAGE
    install()
    sys.argv = [given.script, *given.arguments]
    sys.path[0] = str(script.resolve().parent)
    runpy.run_path(given.script, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
