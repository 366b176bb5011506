"""Faults while the real program trains, and what became of the run.

`python tests/faults/campaign.py --faults 1000 --jobs 2` trains a small model again and again. Each
time one thing goes wrong, at a moment and a place that a seeded generator chooses: a signal, a full
disk, a damaged file, a batch of NaN, a second writer, a dead process among two. Then the same
command is given again, and the run must end as if nothing had happened: the same weights bit by
bit, a row of metrics for every epoch, resumed from the newest whole checkpoint, no traceback, and
no wait of more than a minute. Each fault is a line of the output file; killed, the campaign goes
on where it was.

The program runs in a fork of this process, which has loaded PyTorch already; with two processes,
and now and then with one, it is started from nothing, as a user would.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # a fork has no other threads
HERE = Path(__file__).parent
PATIENCE = 180.0  # seconds; what takes longer hangs
EPOCHS, STEPS = 5, 3
TRAIN = [
    "train", "--preset", "digits", "--train_size", "35", "--batch_size", "16", "--device", "cpu",
    "--model.num_inducing", "[8,8]", "--model.num_samples", "10", "--evaluate_every", "2",
    "--checkpoint_minutes", "0", "--conditions", "false", "--plots", "false",
    "--max_epochs", str(EPOCHS), "--name", "run", "--output",
]  # fmt: skip
TWO = ["--devices", "2"]
SKIP = ["--on_numerical_error", "skip"]
ROLLBACK = ["--on_numerical_error", "rollback"]


class Problem(Exception):
    """A loss, a hang or a traceback."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind


# ---- programs ----


@dataclass
class Program:
    """A running program: a fork of this process, or one started from nothing."""

    pid: int
    log: Path
    popen: subprocess.Popen[bytes] | None = None
    code: int | None = None

    def is_over(self) -> bool:
        """Whether it has ended."""
        if self.code is None and self.popen is not None:
            self.code = self.popen.poll()
        elif self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def end(self) -> tuple[int, str]:
        """Wait for its end: exit code, and what it said."""
        deadline = time.monotonic() + PATIENCE
        while not self.is_over():
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                raise Problem("hang", self.log.read_text()[-2000:])
            time.sleep(0.005)
        said = self.log.read_text(errors="replace")
        if "Traceback" in said or "unexpected error" in said:
            raise Problem("traceback", said[-3000:])
        assert self.code is not None
        return self.code, said

    def send(self, number: int) -> bool:
        """Send a signal, unless it is over; whether it was sent."""
        if self.is_over():
            return False
        os.kill(self.pid, number)
        return True


def fork(words: list[str], log: Path, arm: Callable[[], None] | None = None) -> Program:
    """Run the program in a copy of this process; ``arm`` prepares its fault."""
    from gramian.experiments.cli.main import main

    begun, begins = os.pipe()
    pid = os.fork()
    if pid:
        os.close(begins)
        os.read(begun, 1)
        os.close(begun)
        return Program(pid, log)
    code = 70
    try:
        nothing, said = os.open(os.devnull, os.O_RDWR), os.open(log, os.O_CREAT | os.O_WRONLY)
        for number, target in enumerate((nothing, nothing, said)):
            os.dup2(target, number)
        if arm is not None:
            arm()
        os.write(begins, b"!")
        code = main(words)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def start(words: list[str], log: Path) -> Program:
    """Start the program from nothing."""
    with log.open("wb") as said:
        popen = subprocess.Popen(
            [sys.executable, "-m", "gramian", *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said,
        )  # fmt: skip
    return Program(popen.pid, log, popen)


# ---- one case ----


@dataclass
class Case:
    """One fault: where it happens, and what the run must come to."""

    folder: Path
    chance: random.Random
    references: dict[str, bytes]
    seconds: float  # of an undisturbed run
    words: list[str] = field(default_factory=list)  # beyond TRAIN
    reference: str = "one"
    logs: int = 0

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.folder / "run"

    def launch(self, arm: Callable[[], None] | None = None, afresh: bool = False) -> Program:
        """The program, with this case's options."""
        self.logs += 1
        words, log = [*TRAIN, str(self.folder), *self.words], self.folder / f"{self.logs}.log"
        return start(words, log) if afresh or self.words[:2] == TWO else fork(words, log, arm)

    def wait(self, share: float = 1.0) -> None:
        """Until some moment of a run."""
        time.sleep(self.chance.random() * self.seconds * share)

    def steps(self) -> int:
        """Steps of the newest checkpoint."""
        names = [path.name for path in (self.run / "checkpoints").glob("step=*.ckpt")]
        return max((int(name[5:13]) for name in names), default=0)

    def wait_for_steps(self, program: Program, steps: int) -> None:
        """Until so many steps are saved, or the program has ended."""
        deadline = time.monotonic() + PATIENCE
        while self.steps() < steps and not program.is_over():
            if time.monotonic() > deadline:
                raise Problem("hang", f"no {steps} steps after {PATIENCE} s")
            time.sleep(0.005)

    def recover(self, lost_steps: int = 0) -> None:
        """Give the same command again: everything must be there, and be right."""
        saved, over = self.steps(), (self.run / "result.json").exists()
        code, said = self.launch().end()
        if code != 0:
            raise Problem("loss", f"the same command again ended with {code}: {said[-2000:]}")
        places = {saved, saved - lost_steps}  # a damaged checkpoint may be whole all the same
        resumed = [f"resuming at epoch {place / STEPS:.2f}" for place in places if place > 0]
        afresh = over or not resumed or "never" in self.words
        if not afresh and not any(text in said for text in resumed):
            raise Problem("loss", f"not {resumed}: {said[-2000:]}")
        self.check()

    def check(self) -> None:
        """Whether the run ended as the undisturbed one."""
        weights = (self.run / "model" / "model.safetensors").read_bytes()
        if weights != self.references[self.reference]:
            raise Problem("loss", "the weights differ from those of the undisturbed run")
        rows = (self.run / "metrics.jsonl").read_text().splitlines()
        epochs = [json.loads(row)["epoch"] for row in rows]
        if epochs != list(range(1, EPOCHS + 1)):
            raise Problem("loss", f"metrics of epochs {epochs}")
        left = [path.name for path in self.folder.rglob("*.part")]
        if left or not (self.run / "result.json").exists():
            raise Problem("loss", f"half-written files {left}, or no result")


def expect(code: int, allowed: Iterable[int], said: str) -> None:
    """An exit code that is documented for what happened."""
    if code not in set(allowed):
        raise Problem("loss", f"exit code {code} is not one of {set(allowed)}: {said[-2000:]}")


# ---- the faults; each returns what exactly happened ----


def killed(case: Case) -> str:
    """SIGKILL at any moment, up to three times."""
    times = case.chance.randrange(1, 4)
    for _ in range(times):
        program = case.launch()
        case.wait()
        program.send(signal.SIGKILL)
        expect(program.end()[0], {0, -signal.SIGKILL}, "")
    return f"{times} times"


def killed_afresh(case: Case) -> str:
    """SIGKILL of a program that was started from nothing."""
    program = case.launch(afresh=True)
    time.sleep(case.chance.random() * 8)
    program.send(signal.SIGKILL)
    expect(program.end()[0], {0, -signal.SIGKILL}, "")
    return f"at step {case.steps()}"


def stopped(case: Case) -> str:
    """SIGTERM or Ctrl-C at any moment: a checkpoint, and the documented exit code."""
    number = case.chance.choice([signal.SIGTERM, signal.SIGINT])
    program = case.launch()
    case.wait()
    program.send(number)
    code, said = program.end()
    expect(code, {0, 128 + number, -number}, said)
    return number.name


def paused(case: Case) -> str:
    """SIGSTOP for a while: nothing changes, and no other writer gets in meanwhile."""
    program = case.launch()
    case.wait()
    if program.send(signal.SIGSTOP):
        time.sleep(case.chance.random() * 2)
        program.send(signal.SIGCONT)
    expect(program.end()[0], {0}, "")
    case.check()
    return "for up to 2 s"


def full_disk(case: Case) -> str:
    """No space left after so many bytes; then there is space again."""
    size = int(10 ** case.chance.uniform(1, 6.5))

    def arm() -> None:
        ctypes.CDLL(None).fill_disk(str(case.run).encode(), ctypes.c_long(size))

    code, said = case.launch(arm).end()
    expect(code, {0, 1}, said)
    if code == 1 and "No space left" not in said:
        raise Problem("loss", f"the message does not say why: {said[-2000:]}")
    return f"after {size} bytes: exit code {code}"


def full_disk_at_the_model(case: Case) -> str:
    """No space left while the model or the result is written."""
    at = case.chance.choice(["model", "result.json", "metrics.jsonl", "metrics.csv", "env.json"])
    size = case.chance.choice([0, 1, 100, 5000])

    def arm() -> None:
        where = case.run / ".gramian-new" if at == "env.json" else case.run
        target = where / (at if at == "model" else f".{at}.")  # a temporary file
        ctypes.CDLL(None).fill_disk(str(target).encode(), ctypes.c_long(size))

    code, said = case.launch(arm).end()
    expect(code, {1} if at == "env.json" and size <= 100 else {0, 1}, said)
    return f"{at} after {size} bytes: exit code {code}"


def damage(path: Path, chance: random.Random) -> str:
    """Truncate a file, flip some of its bits, overwrite a part, or empty it."""
    content = bytearray(path.read_bytes())
    how = chance.choice(["truncated", "flipped", "overwritten", "emptied"])
    if how == "truncated":
        content = content[: chance.randrange(len(content))]
    elif how == "flipped":
        for _ in range(chance.randrange(1, 9)):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    elif how == "overwritten":
        start_at = chance.randrange(len(content))
        content[start_at : start_at + 512] = chance.randbytes(len(content[start_at:][:512]))
    else:
        content = bytearray()
    path.write_bytes(content)
    return f"{path.name} {how}"


def damaged_checkpoint(case: Case) -> str:
    """The newest checkpoint of a killed run is damaged: the one before is used."""
    program = case.launch()
    case.wait_for_steps(program, case.chance.randrange(2, EPOCHS * STEPS))
    program.send(signal.SIGKILL)
    program.end()
    newest = max((case.run / "checkpoints").glob("step=*.ckpt"))
    done = damage(newest, case.chance)
    if (case.run / "result.json").exists():
        (case.run / "result.json").unlink()  # it was over: as if it were not
    return done


def damaged_checkpoints(case: Case) -> str:
    """All are damaged: an error that says so, and no start from zero unless it is asked for."""
    program = case.launch()
    case.wait_for_steps(program, case.chance.randrange(2, EPOCHS * STEPS - 3))
    program.send(signal.SIGKILL)
    program.end()
    for path in (case.run / "checkpoints").glob("step=*.ckpt"):
        path.write_bytes(path.read_bytes()[: case.chance.randrange(1000)])
    code, said = case.launch().end()
    if (case.run / "result.json").exists():  # it had been quicker than the signal
        return "after its end"
    expect(code, {1}, said)
    if "--resume never" not in said:
        raise Problem("loss", f"no remedy in: {said[-2000:]}")
    case.words = [*case.words, "--resume", "never"]
    return "refused, then started again"


def damaged_model(case: Case) -> str:
    """A file of a finished model is damaged: it is refused, or the model is the same."""
    expect(case.launch().end()[0], {0}, "")
    name = case.chance.choice(["model.safetensors", "config.json"])
    path = case.run / "model" / name
    before = path.read_bytes()
    done = damage(path, case.chance)
    case.logs += 1
    log = case.folder / f"{case.logs}.log"
    code, said = fork(["evaluate", str(case.run), "--json"], log).end()
    if path.read_bytes() != before:
        expect(code, {1}, said)
    path.write_bytes(before)
    return f"{done}: exit code {code}"


def nan_batch(case: Case) -> str:
    """A batch of NaN ends the run with a numerical failure; the same command goes on."""
    step = case.chance.randrange(1, EPOCHS * STEPS)
    code, said = case.launch(lambda: spoil(step)).end()
    expect(code, {3}, said)
    return f"step {step}"


def nan_batch_survived(case: Case, words: list[str], reference: str) -> str:
    """A batch of NaN does not end this run, a signal does, and it goes on."""
    case.words, case.reference = words, reference
    program = case.launch(lambda: spoil(4))
    case.wait_for_steps(program, case.chance.randrange(6, EPOCHS * STEPS))
    program.send(signal.SIGKILL)
    expect(program.end()[0], {0, -signal.SIGKILL}, "")
    return f"{reference}, then killed"


def two_writers(case: Case) -> str:
    """A second program for the same folder is refused; the first is not disturbed."""
    first = case.launch()
    case.wait_for_steps(first, case.chance.randrange(1, EPOCHS * STEPS - 4))
    refused = 0
    for _ in range(case.chance.randrange(1, 4)):
        second = case.launch()
        code, said = second.end()
        if code == 1 and f"in use by process {first.pid} on" in said:
            refused += 1
        elif code != 0 or not first.is_over():  # by then the first may have ended
            raise Problem("loss", f"a second writer ended with {code}: {said[-2000:]}")
    expect(first.end()[0], {0}, "")
    case.check()
    return f"{refused} refused"


def one_of_two(case: Case) -> str:
    """One of two processes is killed, stopped or paused: both end, and say why."""
    import psutil

    case.words, case.reference = TWO, "two"
    program = case.launch()
    goal = case.chance.randrange(EPOCHS * STEPS - 2)
    children: list[psutil.Process] = []
    deadline = time.monotonic() + PATIENCE
    while (not children or case.steps() < goal) and not program.is_over():
        if time.monotonic() > deadline:
            raise Problem("hang", "the second process did not start")
        time.sleep(0.01)
        try:
            children = psutil.Process(program.pid).children()
        except psutil.NoSuchProcess:
            break
    number = case.chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
    victims = case.chance.choice([[program.pid], [c.pid for c in children]])
    if number == signal.SIGKILL and case.chance.random() < 0.3:
        victims = [program.pid, *(child.pid for child in children)]
    for pid in victims:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
    if number == signal.SIGSTOP:
        time.sleep(case.chance.random() * 3)
        for pid in victims:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue
    code, said = program.end()
    allowed = {
        signal.SIGKILL: {0, 1, -signal.SIGKILL},
        signal.SIGTERM: {0, 1, 128 + signal.SIGTERM, -signal.SIGTERM},
        signal.SIGSTOP: {0},
    }[number]
    expect(code, allowed, said)
    _, alive = psutil.wait_procs(children, timeout=PATIENCE / 2)
    if alive:
        raise Problem("hang", "the second process outlived the first")
    return f"{number.name} to {'both' if len(victims) > 1 else 'one'}: exit code {code}"


class Spoilt:
    """A task whose batches are NaN."""

    def __init__(self, task: Any) -> None:
        self.task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def inputs(self, *arguments: Any) -> Any:
        """As an augmentation with a fault would make them."""
        return self.task.inputs(*arguments) * float("nan")


def spoil(step: int) -> None:
    """Let the batch of one step be NaN, in this process."""
    from gramian.train import trainer

    before: Any = trainer.step_objective

    def objective(forward: Any, model: Any, task: Any, indices: Any, place: Any, *rest: Any) -> Any:
        bad = place.step == step and place.attempt == 0
        return before(forward, model, Spoilt(task) if bad else task, indices, place, *rest)

    trainer.step_objective = objective


FAULTS: dict[str, tuple[Callable[[Case], str], int]] = {  # and how many of 50
    "killed": (killed, 8),
    "killed, started from nothing": (killed_afresh, 2),
    "stopped by SIGTERM or Ctrl-C": (stopped, 6),
    "paused by SIGSTOP": (paused, 3),
    "full disk": (full_disk, 7),
    "full disk at one file": (full_disk_at_the_model, 3),
    "newest checkpoint damaged": (damaged_checkpoint, 6),
    "all checkpoints damaged": (damaged_checkpoints, 1),
    "model damaged": (damaged_model, 4),
    "batch of NaN": (nan_batch, 2),
    "batch of NaN, skip": (partial(nan_batch_survived, words=SKIP, reference="skipped"), 1),
    "batch of NaN, rollback": (
        partial(nan_batch_survived, words=ROLLBACK, reference="rolled back"),
        1,
    ),
    "two writers": (two_writers, 2),
    "one of two processes, or both": (one_of_two, 4),
}


# ---- the campaign ----


def references(folder: Path) -> tuple[dict[str, bytes], float]:
    """Weights of undisturbed runs, and the seconds that one takes."""
    found: dict[str, bytes] = {}
    cases: dict[str, tuple[list[str], Callable[[], None] | None]] = {
        "one": ([], None),
        "two": (TWO, None),
        "skipped": (SKIP, lambda: spoil(4)),
        "rolled back": (ROLLBACK, lambda: spoil(4)),
    }
    seconds = 0.0
    for name, (words, arm) in cases.items():
        case = Case(folder / name.replace(" ", "_"), random.Random(0), {}, 0.0, words)
        case.folder.mkdir()
        started = time.monotonic()
        code, said = case.launch(arm).end()
        assert code == 0, said
        if name == "one":
            seconds = time.monotonic() - started
        found[name] = (case.run / "model" / "model.safetensors").read_bytes()
    assert len({found[name] for name in ("one", "skipped", "rolled back")}) == 3
    return found, seconds


def kind_of(number: int) -> str:
    """The kinds take turns: any 50 in a row have each as often as FAULTS says."""
    kinds = [name for name, (_, count) in FAULTS.items() for _ in range(count)]
    return kinds[number * 21 % len(kinds)]


def run_case(number: int, seed: int, known: dict[str, bytes], seconds: float) -> dict[str, Any]:
    """One fault and its end."""
    kind = kind_of(number)
    started, problem, detail, trouble = time.monotonic(), None, "", ""
    folder = Path(tempfile.mkdtemp(prefix="gramian-fault-"))
    case = Case(folder, random.Random(f"{seed} {number}"), known, seconds)
    try:
        detail = FAULTS[kind][0](case)
        lost = 1 if kind == "newest checkpoint damaged" else 0
        case.recover(lost)
    except Problem as found:
        problem, trouble = found.kind, str(found)
    except OSError as found:  # a file that should be there
        problem, trouble = "loss", str(found)
    if problem is None:
        shutil.rmtree(folder)
    row = {"number": number, "seed": seed, "kind": kind, "detail": detail, "problem": problem}
    if problem:
        row |= {"trouble": trouble, "folder": str(folder)}
    return row | {"seconds": round(time.monotonic() - started, 2)}


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a line for each kind."""
    lines = ["| Fault | Runs | Losses | Hangs | Tracebacks | Longest |", "|---|" + "---:|" * 5]
    for kind in [*FAULTS, "all"]:
        mine = [row for row in rows if kind in (row["kind"], "all")]
        if mine:
            counts = [
                sum(row["problem"] == p for row in mine) for p in ("loss", "hang", "traceback")
            ]
            longest = max(row["seconds"] for row in mine)
            cells = [kind, len(mine), *counts, f"{longest:.0f} s"]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def compile_full_disk(folder: Path) -> str:
    """The library that makes a disk full; without a compiler the faults that need it are a loss."""
    library = folder / "full_disk.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", library, HERE / "full_disk.c", "-ldl"]
    subprocess.run(command, check=True)
    return str(library)


def worker(arguments: argparse.Namespace) -> None:
    """Every so many-th fault of the campaign."""
    from gramian.experiments.cli.main import main as program

    lines = arguments.output.read_text().splitlines() if arguments.output.exists() else []
    done = {row["number"] for row in map(json.loads, lines) if row["seed"] == arguments.seed}
    mine = [n for n in range(arguments.part, arguments.faults, arguments.jobs) if n not in done]
    with tempfile.TemporaryDirectory() as folder:
        warm = [*TRAIN, folder, "--quiet", "--json", "--name", "warm"]
        with contextlib.redirect_stdout(io.StringIO()):  # once here: a fork finds all loaded
            assert program(warm) == program(["evaluate", f"{folder}/warm", "--json"]) == 0
        known, seconds = references(Path(folder))
        for number in mine:
            row = run_case(number, arguments.seed, known, seconds)
            with arguments.output.open("a") as file:
                file.write(json.dumps(row) + "\n")


def main() -> int:
    """Run what is missing in so many processes, then print the table; 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("runs/faults.jsonl"))
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    if arguments.part is not None:
        worker(arguments)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"LD_PRELOAD": compile_full_disk(Path(folder))}
        workers = [
            subprocess.Popen([sys.executable, *sys.argv, "--part", str(part)], env=environment)
            for part in range(arguments.jobs)
        ]
        ends = [process.wait() for process in workers]
    rows = [json.loads(line) for line in arguments.output.read_text().splitlines()]
    rows = [row for row in rows if row["seed"] == arguments.seed]
    print(table(rows))
    for row in rows:
        if row["problem"]:
            print(row)
    return int(any(ends) or len(rows) < arguments.faults or any(row["problem"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
