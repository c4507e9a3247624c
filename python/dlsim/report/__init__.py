# SPDX-License-Identifier: Apache-2.0
"""One self-contained HTML page of the results of replay, sweep, tune and diff."""

from ._write import write_report

__all__ = ["write_report"]
