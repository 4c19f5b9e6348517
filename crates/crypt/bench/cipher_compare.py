#!/usr/bin/env python3
"""Compares the cipher with `openssl speed` for the same cipher and bytes a call, in interleaved rounds on one core.

    cargo build --release -p cmwq-cli
    python3 crates/crypt/bench/cipher_compare.py --rounds 10

Both count CPU time. `openssl speed` sets the IV once; `cmwq crypt speed` sets it for every sector, as a disk needs it, so runs of
many sectors are compared with calls of one sector, which is what OpenSSL could do for a disk at best.

Prints, for each sector size, bytes a call and direction, both speeds and their ratio in the same round: median
[lowest..highest], and the mean with its 95 % bounds (Student's t).
"""
import argparse
import math
import os
import re
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
LINE = re.compile(r"(\d+)-byte sectors, (\d+) bytes a call, one core: encrypt ([\d.]+) GB/s, decrypt ([\d.]+) GB/s")
# Student's t, 95 %, two-sided, for 2 rounds and more; 1.96 beyond the table.
T95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131]


def ours(args):
    out = subprocess.run([args.cmwq, "crypt", "speed", "--ms", str(args.ms)], capture_output=True, text=True, check=True)
    found = {}
    for sector, call, encrypt, decrypt in LINE.findall(out.stdout):
        found[int(sector), int(call), "encrypt"] = float(encrypt)
        found[int(sector), int(call), "decrypt"] = float(decrypt)
    if not found:
        sys.exit(f"no speeds in {out.stdout!r}")
    return found


def openssl(sector, direction, seconds):
    more = ["-decrypt"] if direction == "decrypt" else []
    argv = ["openssl", "speed", "-mr", "-evp", "aes-256-xts", "-bytes", str(sector), "-seconds", str(seconds)] + more
    out = subprocess.run(argv, capture_output=True, text=True, check=True)
    line = [l for l in out.stdout.splitlines() if l.startswith("+F:")][-1]
    return float(line.split(":")[-1]) / 1e9


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cmwq", default=os.path.join(ROOT, "target", "release", "cmwq"))
    p.add_argument("--rounds", type=int, default=10)
    p.add_argument("--ms", type=int, default=200, help="CPU milliseconds for each figure of ours")
    p.add_argument("--seconds", type=int, default=1, help="seconds for each figure of OpenSSL")
    args = p.parse_args()
    if args.rounds < 2:
        p.error("--rounds: at least 2, for a spread")
    mine, theirs = [], []
    for n in range(args.rounds):
        mine.append(ours(args))
        theirs.append({(s, d): openssl(s, d, args.seconds) for s in (512, 4096) for d in ("encrypt", "decrypt")})
        print(f"round {n + 1}/{args.rounds}", end="\r", file=sys.stderr)
    print(f"\n{'sector':>6} {'a call':>7} {'way':8} {'GB/s':>20} {'openssl speed':>20} {'ratio':>20} {'mean and 95 % bounds':>24}")
    for sector, call, way in mine[0]:
        a = [m[sector, call, way] for m in mine]
        b = [t[sector, way] for t in theirs]
        r = [x / y for x, y in zip(a, b)]
        mean = statistics.mean(r)
        t = T95[len(r) - 2] if len(r) - 2 < len(T95) else 1.96
        half = t * statistics.stdev(r) / math.sqrt(len(r))
        spread = [f"{statistics.median(v):.2f} [{min(v):.2f}..{max(v):.2f}]" for v in (a, b, r)]
        print(f"{sector:>6} {call:>7} {way:8} {spread[0]:>20} {spread[1]:>20} {spread[2]:>20}"
              f" {mean:>9.3f} [{mean - half:.3f}..{mean + half:.3f}]")


if __name__ == "__main__":
    main()
