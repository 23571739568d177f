"""What this tree's calls cost beside an earlier commit, in time: in process, over HTTP and over QUIC, in turns.

    python3 benches/speed.py COMMIT [--rounds 3]

Builds the benchmarks of both sides, each in a worktree or directory of its own, runs them in turns, and prints the
median of each figure and the ratio. A machine that does other work measures that work, so this refuses to begin while
the processors are busy, and says at the end if they were disturbed. Ten minutes, and as long again for the builds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# The package of each benchmark, its name, and its arguments.
BENCHES = {
    "in_process": ("callboard", []),
    "overhead": ("callboard", ["--quick", "--connections", "1,64,256"]),
    "hop": ("callboard-net", ["--quick"]),
}

# The most that other processes may use of all processors' time.
MOST_BUSY = 0.1

NUMBER = re.compile(r"(?<![\w.])[+-]?\d+(?:\.\d+)?(?!\w)")


def busy_share(seconds: float) -> float:
    """The share of the processors' time that is used meanwhile."""

    def times() -> tuple[int, int]:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]

    (total, idle) = times()
    time.sleep(seconds)
    (total_now, idle_now) = times()
    return 1 - (idle_now - idle) / max(total_now - total, 1)


def require_quiet() -> None:
    share = busy_share(3)
    if share > MOST_BUSY:
        sys.exit(f"{share:.0%} of the processors' time is used by something else, at most {MOST_BUSY:.0%}: try later")


@contextlib.contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A worktree of a commit."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "before")
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", path, commit], cwd=ROOT, check=True)
        try:
            yield path
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", path], cwd=ROOT, check=True)


def built(tree: Path, target: Path) -> dict[str, str]:
    """Builds the benchmarks of a tree; returns the programs by name."""
    programs = {}
    for name, (package, _) in BENCHES.items():
        command = ["cargo", "bench", "--quiet", "--no-run", "--message-format=json", "-p", package, "--bench", name]
        done = subprocess.run(
            [*command, "--target-dir", target], cwd=tree, check=True, stdout=subprocess.PIPE, text=True
        )
        for message in map(json.loads, done.stdout.splitlines()):
            if message.get("executable") and message["target"]["name"] == name:
                programs[name] = message["executable"]
    return programs


def figures(output: str) -> dict[str, float]:
    """The figures of a benchmark's tables: a line without indentation is the head of those below it."""
    head = row = ""
    read = {}
    for line in output.splitlines():
        parts = re.split(r"\s{2,}", line.strip())
        if not line.startswith(" "):
            head = parts[0].partition(":")[0]
            continue
        # A line below a row is about that row.
        row = f"{row}, {parts[0]}" if line.startswith("    ") else parts[0]
        numbers = [float(found) for part in parts[1:] for found in NUMBER.findall(part)]
        for place, number in enumerate(numbers):
            read[f"{head} | {row} | {place + 1}"] = number
    return read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("commit", help="what this tree is compared with")
    parser.add_argument("--rounds", type=int, default=3, help="the runs of each side (3)")
    arguments = parser.parse_args()
    with checked_out(arguments.commit) as before:
        target = ROOT / "target" / "speed"
        sides = {"now": (ROOT, built(ROOT, target / "now")), "before": (before, built(before, target / "before"))}
        require_quiet()
        runs: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
        for turn in range(arguments.rounds):
            for side in sorted(sides, reverse=turn % 2 == 1):
                tree, programs = sides[side]
                read: dict[str, float] = {}
                for name, (_, options) in BENCHES.items():
                    command = [programs[name], "--bench", *options]
                    done = subprocess.run(command, cwd=tree, check=True, stdout=subprocess.PIPE, text=True)
                    read |= {f"{name} | {key}": figure for key, figure in figures(done.stdout).items()}
                runs[side].append(read)
        report(runs)
        if (share := busy_share(3)) > MOST_BUSY:
            sys.exit(f"{share:.0%} of the processors' time is used by something else now: do not trust these figures")


def report(runs: dict[str, list[dict[str, float]]]) -> None:
    """One line for each figure that both sides have."""
    print(f"{'figure (the columns of its table are numbered)':<76} {'now':>12} {'before':>12} {'ratio':>7}")
    for key in runs["now"][0]:
        now, before = ([run[key] for run in runs[side] if key in run] for side in ("now", "before"))
        if now and before:
            middle, earlier = statistics.median(now), statistics.median(before)
            ratio = f"{middle / earlier:.3f}" if earlier else "-"
            print(f"{key:<76} {middle:>12.2f} {earlier:>12.2f} {ratio:>7}")


if __name__ == "__main__":
    main()
