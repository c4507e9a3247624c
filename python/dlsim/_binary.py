# SPDX-License-Identifier: Apache-2.0
"""Where the C++ command is that belongs to this package."""

from pathlib import Path

from . import _core
from ._errors import Error


def command_path() -> Path:
    """Returns the path of the C++ command that was installed with the package."""
    folders = [Path(__file__).parent, Path(_core.__file__).parent]
    for folder in folders:
        path = folder / "bin" / "dlsim"
        if path.is_file():
            return path
    raise Error(
        f"{folders[0] / 'bin' / 'dlsim'}: the dlsim command is missing, expected an install by pip"
    )
