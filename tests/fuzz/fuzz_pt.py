# SPDX-License-Identifier: Apache-2.0
"""Fuzzes the reader of torch.save files with Atheris; takes libFuzzer's options (tools/fuzz pt).

An input is a whole archive, or else a pickle, which is put into a sound archive with two storages:
few mutations of an archive keep its checksums.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import zipfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["dlsim.importers", "zipfile", "pickletools"]):
    from dlsim import InputError
    from dlsim.importers import _torch_files
    from dlsim.importers._gradients import Notes

# What shares memory may expand to; the reader's own limit would take most of the time.
_torch_files._MOST_EXPANDED = 1 << 20

_FOLDER = tempfile.TemporaryDirectory(prefix="dlsim-fuzz-")
_PATH = Path(_FOLDER.name) / "step1.pt"
_ARCHIVE = b"PK\x03\x04"


def _archive_of(pickled: bytes) -> bytes:
    """Returns the archive that torch.save would write around a pickle."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a/data.pkl", pickled)
        archive.writestr("a/byteorder", "little")
        for key in ("0", "1"):
            archive.writestr(f"a/data/{key}", bytes(range(64)))
    return file.getvalue()


def _read(data: bytes) -> None:
    """Reads all tensors; anything but InputError with one line is a finding."""
    _PATH.write_bytes(data if data.startswith(_ARCHIVE) else _archive_of(data))
    for keeps_foreign in (False, True):
        try:
            with _torch_files.TorchFile(_PATH, keeps_foreign=keeps_foreign) as file:
                _torch_files.tensors_in(file, file.tree, "tensor", Notes())
        except InputError as error:
            assert len(str(error).splitlines()) == 1, "an error of several lines"


def main() -> None:
    """Runs until libFuzzer's options say that it is enough, or something is found."""
    atheris.Setup([*sys.argv, "-detect_leaks=0"], _read)
    try:
        atheris.Fuzz()
    finally:
        _FOLDER.cleanup()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
