# SPDX-License-Identifier: Apache-2.0
"""One self-contained HTML page of the results of replay, sweep, tune and diff.

`dlsim.report(...)` is `dlsim.report.write_report(...)`.
"""

import sys
from inspect import signature
from types import ModuleType

from ._write import write_report

__all__ = ["write_report"]


class CallableReport(ModuleType):
    """This package, which may be called as its function."""

    write_report = staticmethod(write_report)
    __call__ = staticmethod(write_report)


sys.modules[__name__].__class__ = CallableReport
__signature__ = signature(write_report)
