# SPDX-License-Identifier: Apache-2.0
"""What times on one and on several threads say of machines with more cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from .._text import bytes_text
from ._comparison_report import format_table
from ._results import threads_of, uses_wall_time

_CORES = (16, 64)  # numbers of cores to predict

Entries = Sequence[Mapping[str, Any]]


def serial_share(wall: float, cpu: float, threads: int) -> float:
    """Returns the share of all work that is done while other threads have none.

    In the model, either one thread works or all do: cpu = serial + parallel, wall = serial +
    parallel / threads. Time that other programs take counts as serial, and threads that spin while
    they wait count as working.
    """
    if threads <= 1 or cpu <= 0:
        return 1.0
    return min(1.0, max(0.0, (threads * wall - cpu) / (threads - 1) / cpu))


def efficiency(share: float, cores: int) -> float:
    """Returns the share of cores that work keeps busy, by Amdahl's law."""
    return 1 / (1 + share * (cores - 1))


def scaling_of(entries: Entries) -> list[dict[str, Any]]:
    """Returns "dlsim.scaling": each command on several threads, by medians of its repetitions."""
    medians = _medians(entries)
    found = []
    for name, own in medians.items():
        threads = threads_of(name)
        if threads == 1 or "label" in own:
            continue
        share = serial_share(own["real_time"], own["cpu_time"], threads)
        single = medians.get(f"{name.rpartition('/')[0]}/threads:1")
        speedup = {"speedup": single["real_time"] / own["real_time"]} if single else {}
        shares = {str(cores): efficiency(share, cores) for cores in _CORES}
        found.append(
            {
                **{"name": name, "threads": threads, **speedup},
                **{"serial_share": share, "efficiency": shares},
            }
        )
    return found


def command_report(document: Mapping[str, Any]) -> str:
    """Returns a table of the commands of a document, and one of how they scale."""
    medians = _medians(document["benchmarks"])
    rows = [["command", "wall", "cpu", "GB/s", "of limit", "peak"]]
    for name, own in medians.items():
        times = [f"{1e-9 * own[time]:.3f} s" for time in ("real_time", "cpu_time")]
        rate = f"{1e-9 * own.get('bytes_per_second', 0):.2f}"
        last = ["limit", "-"]
        if "label" not in own:
            peak = bytes_text(own.get("peak_bytes", 0))
            last = [f"{own.get('fraction_of_stream', 0):.2f}", peak]
        rows.append([name, *times, rate, *last])
    text = format_table(rows)
    scaling = scaling_of(document["benchmarks"])
    if not scaling:
        return text
    rows = [["command", "speed-up", "serial", *(f"{cores} cores" for cores in _CORES)]]
    for each in scaling:
        speedup = f"{each['speedup']:.2f}" if "speedup" in each else "-"
        shares = [f"{100 * share:.0f} %" for share in each["efficiency"].values()]
        rows.append([each["name"], speedup, f"{100 * each['serial_share']:.1f} %", *shares])
    return (
        f"{text}\nSerial: share of the work that only one thread can do. With it, more cores would "
        f"be busy for this share of the time:\n{format_table(rows)}"
        + ("The machine was busy, and its other programs count as serial.\n" * _was_busy(medians))
    )


def _medians(entries: Entries) -> dict[str, dict[str, Any]]:
    """Returns the medians of numbers, and labels, by name."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        groups.setdefault(entry["name"], []).append(entry)
    return {
        name: {
            key: median(each[key] for each in own) if isinstance(value, int | float) else value
            for key, value in own[0].items()
        }
        for name, own in groups.items()
    }


def _was_busy(medians: Mapping[str, Mapping[str, Any]]) -> bool:
    """Returns whether commands on one thread, which wait for nothing, did not run all the time."""
    return any(
        own["cpu_time"] < 0.8 * own["real_time"]
        for name, own in medians.items()
        if "label" not in own and not uses_wall_time(name)
    )
