"""What the live page costs while a run of many tensors trains: age of what is shown, and share of a core.

    python -m benchmarks.serve [--tensors 1000] [--rate 10] [--seconds 40] [--before 1000]

A process records a made-up run; another one serves it; a client asks once a second, as the page does. The age of a step
is the time from its making to the answer that has it.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

WRITER = """
import sys, time
from pathlib import Path
from benchmarks.report import MadeUp, facts_of
from gradmedic.record import Recorder
folder, tensors, rate, seconds, before = sys.argv[1], *map(float, sys.argv[2:])
made = MadeUp(int(tensors), 10_000)
recorder = Recorder(folder, meta={"command": ["python", "train.py"]}, budget="1GB")
recorder.event({"kind": "facts", "step": 0, "facts": facts_of(made.entries).to_json()})
for step in range(int(before)):
    recorder.put(made.frame(step), keep=True)
    if step % 50 == 0:
        recorder.put_module_rows(made.modules(step))
        recorder.flush()
print("ready", flush=True)
begun, step = time.time(), int(before)
while time.time() - begun < seconds:
    frame = made.frame(step)
    frame.time = time.time()
    recorder.put(frame, keep=True)
    step += 1
    time.sleep(max(0.0, begun + (step - before) / rate - time.time()))
recorder.close()
"""

SERVER = """
import sys
from gradmedic.serve import Server
server = Server([sys.argv[1]], port=0)
print(server.url, flush=True)
server.run()
"""


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def megabytes(pid):
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def started(code, *arguments):
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensors", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=10.0, help="steps a second")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--before", type=int, default=1000, help="steps made before anybody looks")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp()) / "run"
    writer = started(WRITER, folder, args.tensors, args.rate, args.seconds, args.before)
    server = None
    try:
        writer.stdout.readline()
        server = started(SERVER, folder)
        url = server.stdout.readline().strip()
        scalars, tables, answers, version, cpu, first = [], [], [], "", None, None
        until = time.time() + args.seconds - 2
        while time.time() < until:
            asked = time.perf_counter()
            urllib.request.urlopen(f"{url}api/runs").read()
            with urllib.request.urlopen(f"{url}api/runs/0?version={version}") as answer:
                body = answer.read()
            answers.append(time.perf_counter() - asked)
            if cpu is None:  # the first answer reads all that was there before
                cpu, first, begun = cpu_seconds(server.pid), answers.pop(), time.time()
            elif body:
                found = json.loads(body)
                size, version = len(body), found["version"]
                scalars.append(time.time() - found["run"]["last"])
                norm = next(each for each in found["grids"] if each["id"] == "norm")
                last = int.from_bytes(base64.b64decode(norm["last"]["b"])[-4:], "little")
                tables.append((found["run"]["steps"] - 1 - last) / args.rate + scalars[-1])
            time.sleep(max(0.0, 1.0 - (time.perf_counter() - asked)))
        share = (cpu_seconds(server.pid) - cpu) / (time.time() - begun)
        print(f"{args.tensors} tensors, {args.rate:g} steps/s, {args.before} steps before: first answer {first:.2f} s")
        for name, ages in (("scalars", scalars), ("tables", tables)):
            print(f"  age of {name}: median {statistics.median(ages):.2f} s, worst {max(ages):.2f} s")
        print(f"  answers: median {statistics.median(answers):.3f} s, worst {max(answers):.3f} s, {size / 1e6:.1f} MB")
        print(f"  server: {share:.0%} of a core, {megabytes(server.pid):.0f} MB")
    finally:
        for process in (writer, server):
            if process is not None:
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main()
