# SPDX-License-Identifier: Apache-2.0
"""`dlsim bench`: measures kernels and commands, and compares measurements.

Nothing here needs the compiled module, so that tools/bench runs it from a source tree.
"""
