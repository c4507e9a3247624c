# SPDX-License-Identifier: Apache-2.0
"""Where the C++ command is that belongs to this package."""

from pathlib import Path

from . import _core
from ._errors import Error


def command_path() -> Path:
    """Returns the path of the C++ command that was installed with the package."""
    # Beside the module, which an editable install keeps apart from the Python files.
    path = Path(_core.__file__).parent / "bin" / "dlsim"
    if not path.is_file():
        raise Error(f"{path}: the dlsim command is missing, expected an install by pip")
    return path
