#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Acts as dlsim_bench in tests: logs that it was called, and prints a result of two benchmarks.

FAKE_BENCH makes it fail: "fail" with a message, "garbage" with output that is not JSON.
"""

import json
import os
import sys

with open("calls.txt", "a", encoding="ascii") as log:
    log.write(" ".join([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\n")
if os.environ.get("FAKE_BENCH") == "fail":
    sys.stderr.write("some diagnostics\ndlsim_bench: --threads: out of range\n")
    sys.exit(2)
entries = [
    {"name": name, "run_type": "iteration", "cpu_time": cost, "real_time": 2, "time_unit": "us"}
    for name, cost in (("Encode", 1.5), ("Decode", 0.5))
]
document = {"context": {"cpu_model": "Fake CPU"}, "benchmarks": entries}
print("garbage" if os.environ.get("FAKE_BENCH") == "garbage" else json.dumps(document))
