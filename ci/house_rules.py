"""House rules: file length, SAFETY notes, Ordering notes, no unexplained #[ignore]. Exit status 1 with one line per breach."""
import re
import subprocess
import sys

MAX_LINES = 900
files = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.rs"],
    capture_output=True, text=True, check=True,
).stdout.split("\n")

breaches = []
for name in filter(None, files):
    try:
        lines = open(name, encoding="utf-8").read().split("\n")
    except FileNotFoundError:  # deleted but still in the index
        continue
    if len(lines) > MAX_LINES:
        breaches.append(f"{name}: {len(lines)} lines ({MAX_LINES} is the ceiling)")
    is_test = "/tests" in name or name.startswith("tests") or name.endswith("/models.rs")  # model-checker tests
    for i, line in enumerate(lines):
        code = line.split("//")[0]
        near = "\n".join(lines[max(0, i - 6): i + 1])
        if re.search(r"\bunsafe\s*(\{|impl)", code) and "SAFETY" not in near:
            breaches.append(f"{name}:{i + 1}: unsafe without a SAFETY note")
        if (re.search(r"Ordering::(Acquire|Release|AcqRel|SeqCst)", code) and not is_test
                and "Ordering:" not in near.replace("Ordering::", "")):
            breaches.append(f"{name}:{i + 1}: atomic without an Ordering note")
        if re.search(r"\b(todo!|unimplemented!)\s*\(", code):
            breaches.append(f"{name}:{i + 1}: todo!/unimplemented!")
        if re.search(r"#\[ignore\]", code):
            breaches.append(f"{name}:{i + 1}: #[ignore] without a reason")

print("\n".join(breaches) if breaches else f"house rules: {len(files) - 1} files, no breach")
sys.exit(1 if breaches else 0)
