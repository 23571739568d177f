"""Callboard side by side with its peers, in one command: the same Python code, the same number of processes.

    benches/peers/run.py --callboard target/release/callboard --rust target/release/hostile_server

It makes a virtual environment for each peer, measures all of them in turns, and writes `results.json`, plots and the
tables in `benches/README.md`. `--only callboard,mosec --cases echo,overload --seconds 1` measures less.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import report
from cases import CASES, OWN, Request
from closed_loop import measure, warm_up
from environments import environment
from faults import FAULTS
from peers import HERE, PEERS, Peer
from servers import NotReady, Server, serve

ROOT = HERE.parents[1]
CONNECTIONS = (1, 16, 64)
CLOSED = (*CASES, "noop")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=_names(PEERS), default=list(PEERS), help="the peers, with commas between")
    parser.add_argument(
        "--cases", type=_names({*CLOSED, *FAULTS}), default=[*CLOSED, *FAULTS], help="the same of cases"
    )
    parser.add_argument("--seconds", type=float, default=3, help="how long each round measures, whole seconds")
    parser.add_argument("--rounds", type=int, default=2, help="each other round in the opposite order")
    parser.add_argument("--out", type=Path, default=ROOT / "target" / "peers", help="for results and environments")
    parser.add_argument("--callboard", type=Path, default=ROOT / "target" / "release" / "callboard")
    parser.add_argument("--rust", type=Path, default=ROOT / "target" / "release" / "hostile_server")
    parser.add_argument("--axum", type=Path, default=ROOT / "target" / "release" / "examples" / "bare_axum")
    parser.add_argument("--environment", type=Path, help="that of Callboard, instead of one that is made")
    parser.add_argument("--readme", type=Path, help="where the tables are written, such as benches/README.md")
    parser.add_argument("--report", action="store_true", help="only write the tables and plots of earlier results")
    return parser.parse_args()


def _names(known: Any) -> Any:
    def read(text: str) -> list[str]:
        unknown = [name for name in text.split(",") if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(sorted(known))}")
        return text.split(",")

    return read


class Run:
    """What is measured, and where it is kept."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.file: Path = options.out / "results.json"
        self.variables = {
            "PEERS_CALLBOARD": str(options.callboard.resolve()),
            "PEERS_RUST": str(options.rust.resolve()),
            "PEERS_AXUM": str(options.axum.resolve()),
        }
        os.environ |= self.variables
        self.environments: dict[str, Path] = {}
        self.results: dict[str, Any] = {
            "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}",
            "python": platform.python_version(),
            "seconds": options.seconds,
            "rounds": options.rounds,
            "load_before": os.getloadavg()[0],
            "packages": {},
            "closed": {},
            "faults": {},
            "problems": {},
        }

    def prepare(self) -> None:
        self.options.out.mkdir(parents=True, exist_ok=True)
        for name in list(self.options.only):
            peer = PEERS[name]
            if peer.packages == "callboard" and self.options.environment:
                self.environments[name] = self.options.environment.resolve()
                continue
            try:
                self.environments[name] = environment(self.options.out.resolve(), peer.requirements)
            except subprocess.CalledProcessError as error:
                self.problem(name, "installation", error)
                self.options.only.remove(name)
                continue
            self.results["packages"][name] = peer.requirements.read_text().split()

    def problem(self, name: str, case: str, error: Exception) -> None:
        print(f"  {name} {case}: {error}", file=sys.stderr, flush=True)
        self.results["problems"][f"{name} {case}"] = str(error)[:500]

    @contextlib.contextmanager
    def start(
        self, peer: Peer, case: str, request: Request, processes: int, *, bounded: bool = False
    ) -> Iterator[Server]:
        own = dict(self.variables)
        if peer.packages == "callboard":
            own["PYTHONPATH"] = str(ROOT / "python" / "src")
        with serve(peer, case, request, self.environments[peer.name], own, processes, bounded=bounded) as server:
            yield server

    def closed(self, case: str) -> None:
        """All peers in turns, every other round in the opposite order."""
        names = [name for name in self.options.only if case in PEERS[name].cases]
        table = self.results["closed"].setdefault(case, {name: {} for name in names})
        for round_number in range(self.options.rounds):
            for name in names if round_number % 2 == 0 else reversed(names):
                peer = PEERS[name]
                request = peer.request(case)
                try:
                    with self.start(peer, case, request, 1) as server:
                        warm_up(server, request, CONNECTIONS[-1])
                        for connections in CONNECTIONS:
                            measured = measure(server, request, connections, self.options.seconds)
                            table[name].setdefault(str(connections), []).append(dataclasses.asdict(measured))
                            print(f"  {case} {name} {connections}: {measured.per_second:,.0f}/s", flush=True)
                except (NotReady, OSError, subprocess.CalledProcessError) as error:
                    self.problem(name, case, error)
                self.save()

    def fault(self, fault: str) -> None:
        table = self.results["faults"].setdefault(fault, {})
        for name in self.options.only:
            peer = PEERS[name]
            if ("told" if fault == "told" else "work") not in peer.cases:
                continue
            start = functools.partial(self.start, peer)
            try:
                table[name] = FAULTS[fault](start, peer, max(3.0, 2 * self.options.seconds))
                print(f"  {fault} {name}: {table[name]}", flush=True)
            except (NotReady, OSError, subprocess.CalledProcessError, IndexError) as error:
                self.problem(name, fault, error)
            self.save()

    def save(self) -> None:
        self.file.write_text(json.dumps(self.results, indent=1) + "\n")


def main() -> int:
    options = arguments()
    run = Run(options)
    if not options.report:
        started = time.monotonic()
        run.prepare()
        for case in options.cases:
            print(f"{case}: {({**CASES, **OWN}[case].title) if case in CLOSED else 'a fault'}", flush=True)
            if case in CLOSED:
                run.closed(case)
            else:
                run.fault(case)
        run.results["minutes"] = (time.monotonic() - started) / 60
        run.save()
    text = report.markdown(json.loads(run.file.read_text()))
    if options.readme:
        report.insert(options.readme, text)
        python = environment(options.out.resolve(), HERE / "requirements" / "report.txt") / "bin" / "python"
        subprocess.run([python, HERE / "plots.py", run.file, HERE / "plots"], check=True)
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
