# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests of the package."""

import signal

# A shell ignores SIGINT in what it starts in the background, and children inherit that: tests of
# interrupts would wait in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
