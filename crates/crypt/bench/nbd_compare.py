#!/usr/bin/env python3
"""Compares NBD servers on one fio job by the CPU seconds that the *server* uses, in interleaved rounds.

    cargo build --release -p cmwq-cli
    python3 crates/crypt/bench/nbd_compare.py --rounds 10 --jobs 1,4,8

Needs fio; compares with nbdkit and its luks filter where nbdkit and cryptsetup are installed (Debian: fio nbdkit
cryptsetup-bin). Traffic goes over Unix sockets in a temporary folder.

Each round starts every server once, in an order that rotates from round to round, runs the same job and ends the server. Its
CPU time is that of all its threads during the job, from the kernel's clock of the process, less that of the same job with one
block a connection, run before: neither the start nor the connections (nbdkit's luks filter stretches the passphrase for each; the
fewest iterations that LUKS1 allows are set) nor the end (`crypt serve` flushes its device, nbdkit does not) is in it. The whole of
the process, from wait4, is `whole_cpu_s` in the JSON; user and system are parts of that. fio's own verification takes most
of two CPUs, so MiB/s say little there; `--verify none` gives runs where the server is the bottleneck.

A server is `nbdkit-file`, `nbdkit-luks`, `cmwq-EXECUTOR` or `cmwq-plain-EXECUTOR`; `cmwq-cmwq@PATH` takes another build of
the command and `cmwq-cmwq+--readers=1` adds arguments of `cmwq crypt serve`, so that builds and settings are compared in the
same rounds.

Prints, for each number of jobs and server: read and write MiB/s, server CPU milliseconds per MiB, and the ratio to the
base in the same round, as median [lowest .. highest]. `--json` prints the rounds as well.
"""
import argparse
import json
import os
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))


def command_for(name, args, folder, sock):
    """The argument vector of a server, or None where it cannot run."""
    name, *more = name.split("+")
    name, _, binary = name.partition("@")
    plain, luks = os.path.join(folder, "plain.img"), os.path.join(folder, "luks.img")
    cmwq = [binary or args.cmwq, "crypt", "serve", "--unix", sock]
    nbdkit = ["nbdkit", "-f", "-U", sock]
    key = ["--key-file", os.path.join(folder, "key"), "--sector-size", str(args.sector_size)]
    if name.startswith("cmwq-"):
        # cmwq-EXECUTOR or cmwq-plain-EXECUTOR
        parts = name.split("-")
        encrypt = ["--no-encryption"] if parts[1] == "plain" else key
        return cmwq + ["--file", plain, "--executor", parts[-1]] + encrypt + args.serve_arg + more
    if name == "nbdkit-file":
        return nbdkit + ["file", plain] if shutil.which("nbdkit") else None
    if name == "nbdkit-luks":
        if not (shutil.which("nbdkit") and os.path.exists(luks)):
            return None
        return nbdkit + ["--filter=luks", "file", luks, "passphrase=+" + os.path.join(folder, "pass")]
    sys.exit(f"unknown server {name}")


def cpu_clock(pid):
    """CPU seconds of all threads of a process so far, also of those that have ended (clock_getcpuclockid(3))."""
    return time.clock_gettime(~pid << 3 | 2)


def prepare(args, folder):
    size = args.size_mib << 20
    os.mkdir(os.path.join(folder, "control"), 0o700)
    with open(os.path.join(folder, "plain.img"), "wb") as f:
        f.truncate(size)
        for _ in range(args.size_mib):
            f.write(bytes(1 << 20))
    with open(os.path.join(folder, "key"), "wb") as f:
        f.write(secrets.token_bytes(64))
    if any("luks" in s for s in args.servers) and shutil.which("cryptsetup"):
        with open(os.path.join(folder, "pass"), "w", encoding="ascii") as f:
            f.write("bench")
        luks = os.path.join(folder, "luks.img")
        with open(luks, "wb") as f:
            f.truncate(size + (4 << 20))
        subprocess.run(
            ["cryptsetup", "luksFormat", "-q", "--type", "luks1", "--pbkdf-force-iterations", "1000",
             "--cipher", "aes-xts-plain64", "--key-size", "512", luks, os.path.join(folder, "pass")],
            check=True, capture_output=True)


def run_fio(name, sock, jobs, per_job, args, folder):
    """One run of the job, `per_job` bytes each (None: one block); returns fio's account of it."""
    span = (args.size_mib << 20) // jobs
    fio = ["fio", "--name=j", "--ioengine=nbd", f"--uri=nbd+unix:///?socket={sock}", f"--rw={args.rw}",
           f"--bs={args.bs}", f"--iodepth={args.iodepth}", f"--numjobs={jobs}", f"--size={span}",
           f"--offset_increment={span}", f"--io_size={per_job or args.bs}", "--group_reporting", "--output-format=json",
           "--randseed=1"]
    if args.verify != "none":
        fio += [f"--verify={args.verify}", "--verify_fatal=1", "--verify_state_save=0"]
    out = subprocess.run(fio, capture_output=True, text=True, cwd=folder)
    if out.returncode != 0:
        sys.exit(f"{name}: fio failed: {out.stderr[-500:]} {out.stdout[-500:]}")
    return json.loads(out.stdout[out.stdout.index("{"):])["jobs"][0]


def run_once(name, jobs, args, folder):
    sock = os.path.join(folder, "s")
    argv = command_for(name, args, folder, sock)
    if argv is None:
        return None
    env = dict(os.environ, CMWQ_CONTROL_DIR=os.path.join(folder, "control"))
    server = subprocess.Popen(argv, stdout=subprocess.PIPE if name.startswith("cmwq") else subprocess.DEVNULL, env=env)
    try:
        if name.startswith("cmwq"):
            line = server.stdout.readline().decode()
            if not line.startswith("ready "):
                sys.exit(f"{name}: no ready line but {line!r}")
        for _ in range(500):
            if os.path.exists(sock):
                break
            time.sleep(0.01)
        time.sleep(0.05)
        began = cpu_clock(server.pid)
        run_fio(name, sock, jobs, None, args, folder)
        connected = cpu_clock(server.pid)
        job = run_fio(name, sock, jobs, args.io_mib // jobs << 20, args, folder)
        cpu = cpu_clock(server.pid) - connected - (connected - began)
    finally:
        server.send_signal(signal.SIGTERM)
        _, status, usage = os.wait4(server.pid, 0)
        server.returncode = os.waitstatus_to_exitcode(status)
        if os.path.exists(sock):
            os.unlink(sock)
    moved = (job["read"]["io_bytes"] + job["write"]["io_bytes"]) / (1 << 20)
    whole = usage.ru_utime + usage.ru_stime
    return {
        "read_mib_s": job["read"]["bw_bytes"] / (1 << 20), "write_mib_s": job["write"]["bw_bytes"] / (1 << 20),
        "mib": moved, "cpu_s": cpu, "whole_cpu_s": whole, "user_s": usage.ru_utime, "system_s": usage.ru_stime, "cpu_ms_per_mib": cpu * 1000 / moved,
        "switches_per_mib": (usage.ru_nvcsw + usage.ru_nivcsw) / moved,
        "runtime_s": max(job["read"]["runtime"], job["write"]["runtime"]) / 1000,
    }


def spread(values, digits=2):
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}..{max(values):.{digits}f}]"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cmwq", default=os.path.join(ROOT, "target", "release", "cmwq"))
    p.add_argument("--servers", default="nbdkit-file,nbdkit-luks,cmwq-cmwq,cmwq-plain-cmwq,cmwq-thread")
    p.add_argument("--base", default="nbdkit-file")
    p.add_argument("--rounds", type=int, default=10)
    p.add_argument("--jobs", default="1,4,8")
    p.add_argument("--bs", default="32k")
    p.add_argument("--iodepth", type=int, default=64)
    p.add_argument("--rw", default="randrw")
    p.add_argument("--verify", default="sha512")
    p.add_argument("--size-mib", type=int, default=256, help="size of the device")
    p.add_argument("--io-mib", type=int, default=256, help="bytes moved in a run, all jobs together")
    p.add_argument("--sector-size", type=int, default=512)
    p.add_argument("--folder", help="where the devices lie (default: a temporary folder)")
    p.add_argument("--serve-arg", action="append", default=[], help="one more argument for cmwq crypt serve")
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    args.servers = args.servers.split(",")
    if not shutil.which("fio"):
        sys.exit("fio is not installed (Debian: apt-get install fio)")
    results = []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        prepare(args, folder)
        for jobs in map(int, args.jobs.split(",")):
            rows = {s: [] for s in args.servers}
            for r in range(args.rounds):
                turn = r % len(args.servers)
                for name in args.servers[turn:] + args.servers[:turn]:
                    one = run_once(name, jobs, args, folder)
                    if one is None:
                        rows.pop(name, None)
                        continue
                    rows[name].append(one)
                print(f"jobs {jobs}: round {r + 1}/{args.rounds}", end="\r", file=sys.stderr)
            base = rows.get(args.base)
            print(f"\nrw={args.rw} bs={args.bs} iodepth={args.iodepth} jobs={jobs} verify={args.verify}, "
                  f"{args.rounds} rounds, median [lowest..highest]")
            head = ("server", "read+write MiB/s", "server CPU ms/MiB", "user", "system", f"CPU / {args.base}",
                    f"MiB/s / {args.base}", "switches/MiB")
            print("{:20} {:>24} {:>22} {:>7} {:>7} {:>20} {:>22} {:>14}".format(*head))
            for name, all_of in rows.items():
                total = [o["read_mib_s"] + o["write_mib_s"] for o in all_of]
                cpu = [o["cpu_ms_per_mib"] for o in all_of]
                ratio = [o["cpu_ms_per_mib"] / b["cpu_ms_per_mib"] for o, b in zip(all_of, base)] if base else [0]
                speed = [t / (b["read_mib_s"] + b["write_mib_s"]) for t, b in zip(total, base)] if base else [0]
                switches = statistics.median(o["switches_per_mib"] for o in all_of)
                user, system = (statistics.median(o[k] * 1000 / o["mib"] for o in all_of) for k in ("user_s", "system_s"))
                print(f"{name:20} {spread(total, 0):>24} {spread(cpu, 3):>22} {user:>7.3f} {system:>7.3f} {spread(ratio):>20} "
                      f"{spread(speed):>22} {switches:>14.1f}")
                results.append({"jobs": jobs, "server": name, "rounds": all_of})
    if args.json:
        print(json.dumps({"settings": {k: v for k, v in vars(args).items() if k != "cmwq"}, "rows": results}))


if __name__ == "__main__":
    main()
