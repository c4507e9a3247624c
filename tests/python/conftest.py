# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests of the package."""

import os
import signal

# A shell ignores SIGINT in what it starts in the background, and children inherit that: tests of
# interrupts would wait in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# So that children find the package from any folder.
if "PYTHONPATH" in os.environ:
    paths = os.environ["PYTHONPATH"].split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, paths))
