"""perf_analyzer, Triton's load generator, against models of each kind: over HTTP, gRPC, packed and streamed.

Its binary is in this version of tritonclient alone that ran before glibc 2.38. It links libb64, which it calls for
JSON with base64 only: functions that end the process take its place.
"""

import csv
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

REQUESTS = 2000

NOT_CALLED = ["decode_block", "encode_block", "encode_blockend", "init_decodestate", "init_encodestate"]


def environment(directory):
    stubs = "".join(f"void base64_{name}(void) {{ __builtin_trap(); }}\n" for name in NOT_CALLED)
    compile = ["cc", "-shared", "-x", "c", "-o", directory / "libb64.so.0d", "-"]
    subprocess.run(compile, input=stubs, text=True, check=True)
    cuda = Path(sysconfig.get_path("purelib")) / "nvidia/cuda_runtime/lib"
    return os.environ | {"LD_LIBRARY_PATH": f"{directory}:{cuda}"}


def main():
    address = sys.argv[1]
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        env, report = environment(directory), directory / "report.csv"
        numbers = directory / "numbers.json"
        numbers.write_text(json.dumps({"data": [{"to": [3]}]}))
        program = Path(sys.executable).with_name("perf_analyzer")

        def measure(part, model, *arguments, callers, batch=1):
            report.unlink(missing_ok=True)
            command = [program, "-m", model, "-u", address, "--concurrency-range", str(callers), "-b", str(batch)]
            command += ["--request-count", str(REQUESTS), "-f", report, *arguments]
            ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
            assert ran.returncode == 0, f"{part}: {ran.stdout}\n{ran.stderr}"
            with report.open() as lines:
                [row] = csv.DictReader(lines)
            assert float(row["Inferences/Second"]) > 0, f"{part}: {row}\n{ran.stdout}"
            # By the server's own statistics, which are read a moment before and after.
            [counted] = re.findall(r"Inference count: (\d+)", ran.stdout)
            assert 0.95 <= int(counted) / (REQUESTS * batch) <= 1, f"{part}: {ran.stdout}"
            print(part)

        samples = ["--shape", "x:3"]
        measure("http", "samples", "-i", "http", *samples, callers=4)
        measure("grpc", "samples", "-i", "grpc", *samples, callers=32, batch=4)
        measure("gzip", "samples", "-i", "grpc", "--grpc-compression-algorithm", "gzip", *samples, callers=4)
        measure("plain stream", "samples", "-i", "grpc", "--streaming", "-a", *samples, callers=32)
        measure("decoupled", "count", "-i", "grpc", "--streaming", "-a", "--input-data", numbers, callers=8)


if __name__ == "__main__":
    main()
