#!/usr/bin/env python3
"""Breaks the policy in one place after the other and says whether the tests notice.

  ci/mutants.py            all, in a scratch copy below target/; about ten minutes on two cores
  ci/mutants.py NAME ...   these

Each mutant must be caught by the policy's own tests (its unit tests, the symptoms, the kernel's example, the reference model) or by a fault
run of the simulator. Exit status 1 if one survives or no longer applies.
"""
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SCRATCH = os.path.join(ROOT, "target", "mutants")
POOL = "crates/policy/src/pool/"
# name, file, text that occurs once, what replaces it
MUTANTS = [
    ("no wake-up on enqueue", POOL + "queue.rs",
     "            self.push_worklist(id, now);\n            self.kick(now, drv);\n        } else {",
     "            self.push_worklist(id, now);\n        } else {"),
    ("no wake-up on activation", POOL + "queue.rs", "        if n > 0 {\n            self.kick(now, drv);\n        }", ""),
    ("no chain wake-up", POOL + "run.rs", "            self.kick(now, drv);\n            self.keep_reserve(now, drv);", "            self.keep_reserve(now, drv);"),
    ("a blocked worker is not replaced", POOL + "manage.rs", "let woke = self.needs_more() &&", "let woke = false && self.needs_more() &&"),
    ("limit skipped on enqueue", POOL + "queue.rs", "pwq.inactive.is_empty() && pwq.active < pwq.limit && !pwq.frozen", "pwq.inactive.is_empty() && !pwq.frozen"),
    ("limit off by one on activation", POOL + "queue.rs", "if pwq.frozen || pwq.active >= pwq.limit ||", "if pwq.frozen || pwq.active > pwq.limit ||"),
    ("held-back items leave in the wrong order", POOL + "queue.rs", "            self.entries.push_back(&mut self.pwqs[q.pwq].inactive, id);", "            self.entries.push_front(&mut self.pwqs[q.pwq].inactive, id);"),
    ("frozen queues run on", POOL + "queue.rs", "if pwq.frozen || pwq.active >=", "if pwq.active >="),
    ("an item runs beside itself", POOL + "run.rs", "                if let Some(other) = self.busy_worker(item) {\n                    // Rule", "                if let Some(other) = self.busy_worker(item).filter(|_| false) {\n                    // Rule"),
    ("helpers run an item beside itself", POOL + "run.rs", "let free = oneshot || self.busy_worker(item).is_none();", "let free = true;"),
    ("a permit is lost on completion", POOL + "queue.rs", "            pwq.limit -= spare - keep;\n            drv.give_back(pwq.tag, spare - keep);", "            pwq.limit -= spare - keep;"),
    ("a permit is made up on completion", POOL + "queue.rs", "            pwq.limit -= spare - keep;\n            drv.give_back", "            drv.give_back"),
    ("the slot grants beyond its limit", "crates/policy/src/slot.rs", "while self.leased < self.max {", "while self.leased <= self.max {"),
    ("the slot does not serve who waits", "crates/policy/src/slot.rs", "        self.leased -= n;\n        self.serve(drv);", "        self.leased -= n;"),
    ("a raised limit serves nobody", "crates/policy/src/slot.rs", "            self.sweep(drv);\n        }\n        self.serve(drv);\n    }\n}", "            self.sweep(drv);\n        }\n    }\n}"),
    ("spares are not swept", "crates/policy/src/slot.rs", "                drv.sweep(m);", "                let _ = m;"),
    ("a grant overtaken by a sweep keeps spares", POOL + "queue.rs", "pwq.swept = pwq.asking;", "pwq.swept = false;"),
    ("a pwq asks once only", POOL + "queue.rs", "        pwq.asking = false;\n        let keep", "        let keep"),
    ("cancel forgets the permit", POOL + "queue.rs", "        if active {\n            self.permits_freed(pwq, 1, now, drv);\n        }", ""),
    ("cancel takes what was claimed", POOL + "queue.rs", "            Place::Taken(_) | Place::Inline => return Removed::Started,", "            Place::Taken(_) => {}\n            Place::Inline => return Removed::Started,"),
    ("cancel trusts a settled entry", POOL + "queue.rs", "        let Some(pwq) = self.entries.get(id).map(|e| e.pwq) else {\n            return Removed::Started;\n        };", "        let pwq = self.entries[id].pwq;"),
    ("waiters are not told", POOL + "queue.rs", "            drv.barrier(barrier.waiter);", "            let _ = barrier.waiter;"),
    ("flushers are not told", POOL + "queue.rs", "            drv.flushed(pwq.tag, e.colour);", ""),
    ("a flush does not wait for older colours", "crates/policy/src/flush.rs", "        while self.oldest != self.colour && self.armed[self.oldest as usize] == 0 {\n            done.append(&mut self.waiters[self.oldest as usize]);", "        if self.armed[colour as usize] == 0 {\n            done.append(&mut self.waiters[colour as usize]);\n        }\n        while self.oldest != self.colour && self.armed[self.oldest as usize] == 0 {\n            done.append(&mut self.waiters[self.oldest as usize]);"),
    ("flush colours stand still", "crates/policy/src/flush.rs", "        self.colour = next;\n        Some(Arm { flush, next })", "        Some(Arm { flush, next })"),
    ("a drained pwq is not reported", POOL + "queue.rs", "            drv.drained(pwq.tag);", ""),
    ("a pwq is released while its slot owes an answer", POOL + "queue.rs", "pwq.retiring && pwq.is_empty() && !pwq.asking", "pwq.retiring && pwq.is_empty()"),
    ("recalled items lose their order", POOL + "run.rs", "        for i in (claimed..len).rev() {", "        for i in claimed..len {"),
    ("recalled items are lost", POOL + "run.rs", "            self.entries.push_front(&mut self.worklist, id);\n        }\n        self.workers[w].taken_len = claimed;", "            let _ = id;\n        }\n        self.workers[w].taken_len = claimed;"),
    ("batches are not recalled when slow", POOL + "manage.rs", "        self.recall_slow(now, drv);\n", ""),
    ("batches are not stolen from", POOL + "run.rs", "if self.open_batches == 0 || !self.worklist", "if true || self.open_batches == 0 || !self.worklist"),
    ("batches in unmanaged pools", POOL + "run.rs", "self.armed_pwqs > 0 || self.target() == u32::MAX", "self.armed_pwqs > 0"),
    ("a leaving helper wakes nobody", POOL + "worker.rs", "        self.manage.left(w);\n        self.kick(now, drv);", "        self.manage.left(w);"),
    ("private items of a leaving worker are lost", POOL + "worker.rs", "            self.push_worklist(id, now);\n        }\n        *self.counts", "        }\n        *self.counts"),
    ("no liveness floor", POOL + "manage.rs", "            m.floor += 1;", "            m.floor += 0;"),
    ("no mayday", POOL + "manage.rs", "                drv.mayday(p.tag);", ""),
    ("a drain refuses nobody", POOL + "queue.rs", "if pwq.draining && !q.chained {", "if false && pwq.draining && !q.chained {"),
    ("a spurious wake-up corrupts the idle list", POOL + "run.rs", "            WorkerState::Idle => self.workers.unlink(&mut self.idle, w),", "            WorkerState::Idle => {}"),
    ("hogs on a per-CPU pool keep counting", POOL + "manage.rs", "                self.set_state(w, WorkerState::Intensive);\n                if self.needs_more() {", "                if self.needs_more() {"),
    ("a called worker that does not come keeps its pod for ever", POOL + "outward.rs", "            self.waking_since.saturating_add(CALL_PATIENCE_NS)", "            Time::MAX"),
    ("a late worker's CPU is nobody's", POOL + "outward.rs", "let on_their_way = c.waking.saturating_sub(1);", "let on_their_way = c.waking;"),
    ("late workers have any number called", POOL + "outward.rs", "let on_their_way = c.waking.saturating_sub(1);", "let on_their_way = 0;"),
    ("a pod with a worker on its way is called", POOL + "outward.rs", "            self.waking_since.saturating_add(CALL_PATIENCE_NS)", "            0"),
    ("workers are woken beside a busy issuer", POOL + "nearby.rs", "            _ if self.share_core(cpu, there) => u32::from(begun),\n", ""),
    ("workers are woken where one has just begun", POOL + "nearby.rs", "            (true, true) => 0,", "            (true, true) => 1,"),
    ("the worker that ran there is not preferred", POOL + "nearby.rs", "            (true, false) => 3,", "            (true, false) => 0,"),
]


def run(cmd, env=None, limit=240):
    try:
        p = subprocess.run(cmd, cwd=SCRATCH, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, timeout=limit)
        return p.returncode, p.stdout
    except subprocess.TimeoutExpired:
        return 124, "timed out"


def main():
    wanted = sys.argv[1:]
    os.makedirs(SCRATCH, exist_ok=True)
    for part in ("crates/policy", "crates/topology", "crates/sim"):
        shutil.rmtree(os.path.join(SCRATCH, part), ignore_errors=True)
        shutil.copytree(os.path.join(ROOT, part), os.path.join(SCRATCH, part), ignore=shutil.ignore_patterns("data", "target"))
    shutil.copy(os.path.join(ROOT, "Cargo.lock"), SCRATCH)
    manifest = open(os.path.join(ROOT, "Cargo.toml"), encoding="utf-8").read()
    manifest = manifest.replace('default-members = ["crates/cli"]\n', "").replace(', "bench"', "")
    open(os.path.join(SCRATCH, "Cargo.toml"), "w", encoding="utf-8").write(manifest)
    failed = 0
    for name, path, old, new in MUTANTS:
        if wanted and name not in wanted:
            continue
        full = os.path.join(SCRATCH, path)
        source = open(full, encoding="utf-8").read()
        if source.count(old) != 1:
            print(f"DOES NOT APPLY  {name}: the text occurs {source.count(old)} times in {path}", flush=True)
            failed += 1
            continue
        open(full, "w", encoding="utf-8").write(source.replace(old, new))
        by = None
        steps = [
            ("tests", ["cargo", "test", "--quiet", "-p", "cmwq-policy", "--lib", "--test", "symptoms", "--test", "kernel_example"], {}),
            ("reference model", ["cargo", "test", "--quiet", "-p", "cmwq-policy", "--test", "steps"],
             {"CMWQ_CASES": "400", "PROPTEST_MAX_SHRINK_ITERS": "0"}),
            ("fault run", ["cargo", "run", "--quiet", "--release", "-p", "cmwq-sim", "--example", "faults", "0", "2000"], {}),
        ]
        for what, cmd, env in steps:
            code, out = run(cmd, env)
            if "error: could not compile" in out:
                by = None
                print(f"DOES NOT COMPILE  {name}\n{out[-1500:]}", flush=True)
                break
            if code != 0:
                by = what
                break
        open(full, "w", encoding="utf-8").write(source)
        if by:
            print(f"caught by {by:16} {name}", flush=True)
        else:
            print(f"SURVIVED          {name}", flush=True)
            failed += 1
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
