"""Whether `callboard bench` and oha or wrk tell the same of one server: pairs of rounds in turns, and the median of their ratios.

    benches/agreement.py CALLBOARD OHA|WRK

Beside each ratio stands that of neighbouring rounds of the other with itself: what two rounds differ by although nothing does.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

PICTURE = "examples/digits/seven.png"
CONNECTIONS, SECONDS, ROUNDS = "4", "3s", 10
FIGURES = ("requests/s", "p50", "p90", "p99")


def output(*command):
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def ours(callboard, base):
    load = ["-c", CONNECTIONS, "-d", SECONDS, "--warm-up", "0s", "--format", "json"]
    target = output(callboard, "bench", base, "/digits", "--file", PICTURE, *load)["target"]
    return [target["requests_per_second"], *(target["latency_ms"][name] for name in FIGURES[1:])]


def theirs(tool, base):
    return (of_wrk if pathlib.Path(tool).name == "wrk" else of_oha)(tool, base)


WRK = """
local file = io.open("%s", "rb")
wrk.method, wrk.body, wrk.headers["content-type"] = "POST", file:read("*a"), "image/png"
done = function(summary, latency)
  io.write(string.format("\\nfigures %%f %%f %%f %%f\\n", summary.requests / summary.duration * 1e6,
    latency:percentile(50) / 1e3, latency:percentile(90) / 1e3, latency:percentile(99) / 1e3))
end
"""


def of_wrk(wrk, base):
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(WRK % PICTURE)
        script.flush()
        load = ["-t", "1", "-c", CONNECTIONS, "-d", SECONDS, "-s", script.name, f"{base}/digits"]
        report = subprocess.run([wrk, *load], capture_output=True, check=True, text=True).stdout
    line = next(line for line in report.splitlines() if line.startswith("figures "))
    return [float(figure) for figure in line.split()[1:]]


def of_oha(oha, base):
    request = ["-m", "POST", "-D", PICTURE, "-T", "image/png", f"{base}/digits"]
    report = output(oha, "--no-tui", "-c", CONNECTIONS, "-z", SECONDS, "--output-format", "json", *request)
    return [report["summary"]["requestsPerSec"], *(report["latencyPercentiles"][name] * 1e3 for name in FIGURES[1:])]


def told(ratios):
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} … {max(ratios):.3f})"


def main(callboard, tool):
    serve = [callboard, "serve", "examples/digits", "--http", "127.0.0.1:0"]
    server = subprocess.Popen(serve, stderr=subprocess.PIPE, text=True)
    try:
        base = next(line for line in server.stderr if "listening on " in line).split()[-1]
        rounds = []
        for index in range(ROUNDS):
            if index % 2:
                their_round = theirs(tool, base)
                our_round = ours(callboard, base)
            else:
                our_round = ours(callboard, base)
                their_round = theirs(tool, base)
            rounds.append((our_round, their_round))
    finally:
        server.kill()
        server.wait()
    for index, name in enumerate(FIGURES):
        ratios = [our_round[index] / their_round[index] for our_round, their_round in rounds]
        noise = [after[1][index] / before[1][index] for before, after in zip(rounds, rounds[1:])]
        other = pathlib.Path(tool).name
        print(f"{name:<12} callboard / {other} {told(ratios)}, {other} / {other} {told(noise)}")


main(*sys.argv[1:])
