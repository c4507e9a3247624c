# SPDX-License-Identifier: Apache-2.0
"""How tests run the command in a process of its own."""

import sys

DLSIM = (sys.executable, "-m", "dlsim")
