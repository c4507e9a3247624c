# SPDX-License-Identifier: Apache-2.0
"""`python -m dlsim` is the dlsim command."""

import sys

from ._command import main

sys.exit(main())
