# SPDX-License-Identifier: Apache-2.0
"""Nothing of the module outlives Python: at its end there is no report of leaked objects."""

from __future__ import annotations

import subprocess
import sys

import pytest

TRACE = "'tests/data/traces/cnn-digits'"
USES = {
    "arrays": "x = dlsim.encode([1.0], 'cb16'); dlsim.quantize(dlsim.decode(x, 'cb16'), 'fp16')",
    "measure": "dlsim.measure([1.0], ['fp16', 'cb16'], scale=2.0)",
    "scaler": "scaler = dlsim.LossScaler('torch'); scaler.next(overflow=True)",
    "trace": f"kept = dlsim.open_trace({TRACE}); step = kept[0]",
    "replay": f"result = dlsim.replay({TRACE}, formats='fp16').verdict",
    "torch": "import torch; dlsim.quantize(torch.ones(2), 'cb16'); dlsim.Recorder",
    "watch": (
        "import torch; model = torch.nn.Linear(2, 1); rec = dlsim.Recorder(model, None, watch="
        "dlsim.recorder.Watch(alerts={'scale<=1': print})); "
        "loss = model(torch.ones(2, 2)).mean(); loss.backward(); rec.step(scale=2.0); rec.close()"
    ),
    "autocast": "import torch; f = dlsim.autocast_emulation",
}


@pytest.mark.parametrize("use", USES)
def test_python_ends_in_silence(use: str, request: pytest.FixtureRequest) -> None:
    if "import torch" in USES[use]:
        pytest.importorskip("torch")
    code = f"import numpy as np, dlsim\n{USES[use]}".replace("[1.0]", "np.float32([1.0])")
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=request.config.rootpath,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
