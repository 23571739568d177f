"""The results as tables: what was measured, and whether it is what was asked."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from cases import CASES
from peers import PEERS

BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
OURS, RUST, AXUM, MOSEC = "callboard", "rust", "axum", "mosec"
Rounds = list[dict[str, float]]


def insert(readme: Path, text: str) -> None:
    """Puts the text between the marks."""
    before, begin, rest = readme.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{readme} has no `{BEGIN}` with `{END}` after it")
    readme.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}")


def markdown(results: dict[str, Any]) -> str:
    closed, faults = results["closed"], results["faults"]
    parts = [_how(results)]
    parts += [_case_table(case, closed[case]) for case in CASES if closed.get(case)]
    if faults:
        parts.append(_fault_table(faults))
    if rows := _targets(closed, faults):
        parts.append("\n".join(["| asked | figure | |", "|---|---|---|", *rows]) + "\n")
    if results["problems"]:
        lines = [f"- {name}: {' '.join(text.split())[:160]}" for name, text in results["problems"].items()]
        parts.append("Not measured:\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _how(results: dict[str, Any]) -> str:
    versions = {
        package for name, packages in results["packages"].items() for package in packages if _is_of(name, package)
    }
    return (
        f"{results['machine']}, Python {results['python']}, {results['rounds']} rounds of {results['seconds']:g} s, "
        f"load {results['load_before']:.1f} before the first. {', '.join(sorted(versions)).replace('==', ' ')}.\n"
    )


def _is_of(name: str, package: str) -> bool:
    known = {"uvicorn": ("fastapi", "uvicorn"), "granian": ("granian",), "ray": ("ray",), "cog": ("cog",)}
    return package.partition("==")[0].partition("[")[0] in known.get(name, (name,))


# ---- Closed loops ----------------------------------------------------------------------------------------------------


def figure(rounds: Rounds, name: str) -> float:
    return statistics.median(measured[name] for measured in rounds)


def ratio(ours: Rounds, theirs: Rounds, name: str = "per_second") -> float | None:
    """The median of the ratios within rounds; None where the other answered nothing."""
    pairs = [(mine[name], other[name]) for mine, other in zip(ours, theirs, strict=False)]
    return (
        statistics.median(mine / other for mine, other in pairs if other) if any(other for _, other in pairs) else None
    )


def _case_table(case: str, table: dict[str, dict[str, Rounds]]) -> str:
    connections = sorted({int(number) for peer in table.values() for number in peer})
    most = str(connections[-1]) if connections else ""
    heads = [f"{number}: requests/s | p50, p99" for number in connections]
    lines = [
        f"**{CASES[case].title}**, by connections\n",
        f"| | {' | '.join(heads)} | CPU for each, at {most} | memory | Callboard |",
        "|---" * (2 * len(connections) + 4) + "|",
    ]
    for name, peer in table.items():
        if most not in peer:
            continue
        cells = [PEERS[name].title]
        for number in connections:
            rounds = peer[str(number)]
            refused = figure(rounds, "refused")
            rate = f"{figure(rounds, 'per_second'):,.0f}" + (f" ({refused:.0%} refused)" if refused > 0.001 else "")
            cells += [rate, f"{_time(figure(rounds, 'p50'))}, {_time(figure(rounds, 'p99'))}"]
        cells += [
            f"{figure(peer[most], 'cpu_per_request') * 1e6:,.0f} µs",
            f"{figure(peer[most], 'memory_bytes') / 2**20:,.0f} MiB",
            _times(table.get(OURS, {}).get(most), peer[most]) if name != OURS else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    shares = [measured["generator"] for peer in table.values() for rounds in peer.values() for measured in rounds]
    if shares:
        lines.append(f"\nThe generator took at most {max(shares):.0%} of a core.")
    return "\n".join(lines) + "\n"


def _times(ours: Rounds | None, theirs: Rounds) -> str:
    found = ratio(ours, theirs) if ours else None
    return f"× {found:.1f}" if found is not None else "–"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return (
        f"{seconds:.1f} s"
        if seconds >= 1
        else f"{seconds * 1e3:.3g} ms"
        if seconds >= 0.001
        else f"{seconds * 1e6:.0f} µs"
    )


# ---- Faults ----------------------------------------------------------------------------------------------------------


def _fault_table(faults: dict[str, dict[str, Any]]) -> str:
    lines = [
        "**Faults**: failed of all offered, and what else a caller sees\n",
        "| | the only worker is killed | one of two is killed | five times too many calls | SIGTERM under load "
        "| 20 clients leave |",
        "|---" * 6 + "|",
    ]
    names = [name for name in PEERS if any(name in table for fault, table in faults.items() if fault != "told")]
    for name in names:
        found = {fault: table.get(name) for fault, table in faults.items()}
        cells = [
            _killed(found.get("kill_only")),
            _killed(found.get("kill_one_of_two")),
            _overloaded(found.get("overload")),
            _stopped(found.get("stop")),
            _left(found.get("leaving")),
        ]
        lines.append(f"| {PEERS[name].title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _killed(figures: dict[str, Any] | None) -> str:
    if figures is None:
        return "–"
    back = figures["full_strength_seconds"]
    again = f"all workers after {_time(back)}" if back is not None else "no new worker"
    return f"{figures['failed']} of {figures['offered']}; {again}; slowest {_time(figures['slowest_seconds'])}"


def _overloaded(figures: dict[str, Any] | None) -> str:
    if figures is None:
        return "–"
    refused = figures["refused_p99_seconds"]
    return f"{figures['goodput']:.2f} of its peak within 1 s, {figures['late']} too late or never; " + (
        f"refused within {_time(refused)} (p99)" if refused is not None else "no refusals"
    )


def _stopped(figures: dict[str, Any] | None) -> str:
    if figures is None:
        return "–"
    code = figures["exit_code"]
    end = f"code {code} after {_time(figures['ended_seconds'])}" if code is not None else "does not end"
    left = f", {figures['processes_left']} processes stay" if figures["processes_left"] else ""
    return f"{figures['cut']} cut; {end}{left}"


def _left(figures: dict[str, Any] | None) -> str:
    if figures is None:
        return "–"
    still = "" if figures["serves_after"] == 200 else "; serves no more"
    return f"{figures['begun_for_nobody']} of {figures['clients']} run for nobody{still}"


# ---- What was asked --------------------------------------------------------------------------------------------------


def _targets(closed: dict[str, Any], faults: dict[str, Any]) -> list[str]:
    """Each target with its figure; none for what was not measured."""
    rows: list[str] = []

    def row(asked: str, found: float | None, is_met: bool, shown: str) -> None:
        if found is not None:
            rows.append(
                f"| {asked} | {'**' if is_met else ''}{shown}{'**' if is_met else ''} | {'' if is_met else 'missed'} |"
            )

    def least(asked: str, found: float | None, bound: float) -> None:
        row(f"{asked}: at least {bound:g}", found, found is not None and found >= bound, f"{found or 0:.2f}")

    def most(asked: str, found: float | None, bound: float) -> None:
        row(f"{asked}: at most {bound:g}", found, found is not None and found <= bound, f"{found or 0:.2f}")

    def seconds(asked: str, found: float | None, bound: float) -> None:
        row(f"{asked}: at most {_time(bound)}", found, found is not None and found <= bound, _time(found))

    def rounds(case: str, name: str, connections: int = 64) -> Rounds | None:
        found: Rounds | None = closed.get(case, {}).get(name, {}).get(str(connections))
        return found

    def compared(case: str, name: str, what: str = "per_second", connections: int = 64) -> float | None:
        ours, theirs = rounds(case, OURS, connections), rounds(case, name, connections)
        return ratio(ours, theirs, what) if ours and theirs else None

    for name, title in ((MOSEC, "mosec"), ("mosec_msgspec", "mosec with msgspec")):
        least(f"echo, requests/s of {title}'s", compared("echo", name), 3)
        most(f"echo, CPU for each request of {title}'s", compared("echo", name, "cpu_per_request"), 0.5)
        least(f"square in batches, requests/s of {title}'s", compared("square", name), 2)
        least(f"5 ms for a batch, requests/s of {title}'s", compared("slow_square", name), 1.25)
    bare, theirs = rounds("square", AXUM), rounds("square", MOSEC)
    if bare and theirs and (most_of_mosec := ratio(bare, theirs)):
        alone = "axum alone, without a model: requests/s of mosec's square"
        rows.append(f"| {alone} | {most_of_mosec:.2f} | for comparison |")
    ours, theirs = rounds("square", OURS, 1), rounds("echo", MOSEC, 1)
    if ours and theirs:
        most("one connection, p50 in batches of mosec's without", ratio(ours, theirs, "p50"), 1)
    if ours := rounds("slow_square", OURS):
        least("5 ms for a batch, of the ideal", figure(ours, "per_second") / (CASES["slow_square"].ideal or 1), 0.92)
    for case, title in (("echo", "echo"), ("square", "square in batches")):
        others = [name for name in PEERS if name not in (OURS, RUST, AXUM, MOSEC, "mosec_msgspec")]
        found = {name: value for name in others if (value := compared(case, name)) is not None}
        if found:
            name = min(found, key=lambda name: found[name])
            least(f"{title}, requests/s of the quickest other peer's ({PEERS[name].title})", found[name], 3)
    if (python := rounds("noop", OURS)) and (rust := rounds("noop", RUST)):
        least("a no-op in batches, requests/s of the same route with a stage in Rust", ratio(python, rust), 0.5)
    own = {fault: table[OURS] for fault, table in faults.items() if OURS in table}
    for fault, title in (("kill_only", "the only worker is killed"), ("kill_one_of_two", "one of two is killed")):
        if fault in own:
            most(f"{title}, failed calls", own[fault]["failed"], 0)
            seconds(f"{title}, all workers again", own[fault]["full_strength_seconds"], 0.5)
    if "overload" in own:
        least("five times too many calls, answered within 1 s of the peak", own["overload"]["goodput"], 0.95)
        seconds("the same, refusals at p99", own["overload"]["refused_p99_seconds"], 0.05)
    if "leaving" in own:
        most("calls that run although their clients have left", own["leaving"]["begun_for_nobody"], 0)
    if "told" in own:
        seconds("running work is told that its client has left", own["told"]["slowest_seconds"], 0.05)
    return rows
