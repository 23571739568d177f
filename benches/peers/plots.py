"""The results as pictures: `plots.py RESULTS DIRECTORY`, in the environment with matplotlib."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot

from cases import CASES
from peers import PEERS
from report import OURS, figure

matplotlib.use("svg")
# Words stay words, and the file is the same for the same figures.
matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "peers", "font.size": 8}
MOST = "64"


def closed_loops(closed: dict[str, Any], file: Path) -> None:
    """Requests per second of each case, on a scale by powers of ten."""
    cases = [case for case in CASES if closed.get(case)]
    if not cases:
        return
    picture, axes = pyplot.subplots(1, len(cases), figsize=(3.2 * len(cases), 2.6), squeeze=False)
    for axis, case in zip(axes[0], cases, strict=True):
        rates = {name: figure(peer[MOST], "per_second") for name, peer in closed[case].items() if MOST in peer}
        _bars(axis, {name: rate for name, rate in rates.items() if rate}, f"{CASES[case].title}\nrequests/s")
        axis.set_xscale("log")
    _save(picture, file)


def overload(faults: dict[str, Any], file: Path) -> None:
    """Answers within a second under five times too many calls, and calls that fail after a kill."""
    all_shown: list[tuple[str, str, Callable[[dict[str, Any]], float]]] = [
        ("overload", "five times too many calls:\nanswered within 1 s, of the peak", lambda found: found["goodput"]),
        ("kill_one_of_two", "one of two workers is killed:\nfailed calls, %", _failed),
        ("kill_only", "the only worker is killed:\nfailed calls, %", _failed),
    ]
    shown = [row for row in all_shown if faults.get(row[0])]
    if not shown:
        return
    picture, axes = pyplot.subplots(1, len(shown), figsize=(3.2 * len(shown), 2.6), squeeze=False)
    for axis, (fault, title, value) in zip(axes[0], shown, strict=True):
        _bars(axis, {name: value(found) for name, found in faults[fault].items()}, title)
    _save(picture, file)


def _failed(found: dict[str, Any]) -> float:
    return float(100 * found["failed"] / found["offered"])


def _bars(axis: Any, values: dict[str, float], title: str) -> None:
    names = list(values)[::-1]
    colours = ["#c2410c" if name == OURS else "#94a3b8" for name in names]
    bars = axis.barh([PEERS[name].title for name in names], [values[name] for name in names], color=colours)
    axis.bar_label(bars, fmt=lambda value: f"{value:,.0f}" if value >= 10 else f"{value:.2g}", padding=2, fontsize=7)
    axis.set_title(title, fontsize=8)
    axis.margins(x=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def _save(picture: Any, file: Path) -> None:
    picture.tight_layout()
    picture.savefig(file, metadata={"Date": None})


def main(results: Path, directory: Path) -> None:
    found = json.loads(results.read_text())
    directory.mkdir(parents=True, exist_ok=True)
    closed_loops(found["closed"], directory / "closed.svg")
    overload(found["faults"], directory / "faults.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
