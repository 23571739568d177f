"""Whether `callboard bench` and oha tell the same of one server: pairs of rounds in turns, and the median of their ratios.

    benches/agreement.py CALLBOARD OHA

Beside each ratio stands that of neighbouring rounds of oha with itself: what two rounds differ by although nothing does.
"""

import json
import statistics
import subprocess
import sys

PICTURE = "examples/digits/seven.png"
CONNECTIONS, SECONDS, ROUNDS = "4", "3s", 10
FIGURES = ("requests/s", "p50", "p90", "p99")


def output(*command):
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def ours(callboard, base):
    load = ["-c", CONNECTIONS, "-d", SECONDS, "--warm-up", "0s", "--format", "json"]
    target = output(callboard, "bench", base, "/digits", "--file", PICTURE, *load)["target"]
    return [target["requests_per_second"], *(target["latency_ms"][name] for name in FIGURES[1:])]


def theirs(oha, base):
    request = ["-m", "POST", "-D", PICTURE, "-T", "image/png", f"{base}/digits"]
    report = output(oha, "--no-tui", "-c", CONNECTIONS, "-z", SECONDS, "--output-format", "json", *request)
    return [report["summary"]["requestsPerSec"], *(report["latencyPercentiles"][name] * 1e3 for name in FIGURES[1:])]


def told(ratios):
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} … {max(ratios):.3f})"


def main(callboard, oha):
    serve = [callboard, "serve", "examples/digits", "--http", "127.0.0.1:0"]
    server = subprocess.Popen(serve, stderr=subprocess.PIPE, text=True)
    try:
        base = next(line for line in server.stderr if "listening on " in line).split()[-1]
        rounds = []
        for index in range(ROUNDS):
            if index % 2:
                their_round = theirs(oha, base)
                our_round = ours(callboard, base)
            else:
                our_round = ours(callboard, base)
                their_round = theirs(oha, base)
            rounds.append((our_round, their_round))
    finally:
        server.kill()
        server.wait()
    for index, name in enumerate(FIGURES):
        ratios = [our_round[index] / their_round[index] for our_round, their_round in rounds]
        noise = [after[1][index] / before[1][index] for before, after in zip(rounds, rounds[1:])]
        print(f"{name:<12} callboard / oha {told(ratios)}, oha / oha {told(noise)}")


main(*sys.argv[1:])
