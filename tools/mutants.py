"""Put single faults into the source and see whether the nearest tests notice.

    python -m tools.mutants --only gram nn/steps --count 50 --seed 0 --output runs/mutants

A server imports the heavy libraries once and forks a child for each mutant. Results are lines of
DIR/mutants.jsonl; a mutant that has one is not tried again. tests/MUTANTS.md lists the survivors.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import gc
import importlib
import importlib.machinery
import json
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path("src/gramian").resolve()
HEAVY = (
    "tests.conftest scipy.stats sklearn.metrics sklearn.gaussian_process gpytorch yaml PIL.Image"
)
HEAVY += " lightning_fabric torch._dynamo matplotlib.pyplot jsonargparse rich.console pooch"
OPTIONS = ["-x", "-q", "-n0", "-p", "no:cacheprovider"]
OPTIONS += ["-W", "ignore:Module already:pytest.PytestAssertRewriteWarning"]
CPU_SECONDS, WALL_SECONDS = 180, 900
Row = dict[str, Any]
KEYS = ("file", "line", "column", "was", "is")
# The tests of each file, by the longest prefix of its path: first the nearest, then the next.
STEPS = "tests/nn/test_steps.py tests/nn/test_layers.py"
FAR = "tests/test_common.py tests/parity/test_steps.py tests/parity/test_networks.py"
MODELS = "tests/nn/test_models.py tests/nn/test_frozen.py tests/parity/test_networks.py"
FULL = "tests/nn/test_full_rank.py"
METRICS = "tests/test_uncertainty_metrics.py tests/train/test_metrics.py"
LIKELIHOODS = "tests/nn/test_likelihoods.py tests/parity/test_output.py"
TRAINER = "tests/train/test_trainer.py tests/train/test_fit.py"
PREDICTOR = "tests/train/test_predictor.py tests/train/test_pretrained.py"
TESTS = {
    "gram/": f"tests/gram {STEPS} {FAR}",
    "gram/exact_gp": FULL,
    "gram/deep_linear": FULL,
    "gram/full_blocks": FULL,
    "nn/": f"{MODELS} {STEPS} tests/nn/test_explain.py tests/nn/test_joint.py",
    "nn/baseline/": "tests/nn/test_network.py",
    "nn/explain": "tests/nn/test_explain.py",
    "nn/frozen/": "tests/nn/test_frozen.py tests/nn/test_models.py",
    "nn/full_rank/": f"{FULL} tests/train/test_full_rank_estimators.py",
    "nn/joint": "tests/nn/test_joint.py",
    "nn/likelihoods/": f"{LIKELIHOODS} {METRICS} tests/nn/test_models.py",
    "nn/steps/": f"{STEPS} {FAR}",
    "nn/steps/output": f"tests/parity/test_output.py {STEPS} {FAR}",
    "train/step": f"tests/train/test_step.py {TRAINER} tests/train/test_memory.py",
    "train/optimise": f"tests/train/test_optimise.py tests/train/test_muon.py {TRAINER}",
    "train/natural": f"tests/train/test_natural.py {TRAINER} tests/train/test_estimators.py",
    "train/muon": f"tests/train/test_muon.py {TRAINER}",
    "train/predict/": f"{PREDICTOR} tests/train/test_estimators.py tests/test_evaluate_unlike.py",
    "train/predict/export": "tests/train/test_export.py",
    "train/predict/logit": "tests/train/test_calibration.py",
    "train/predict/uncert": "tests/train/test_uncertainty.py tests/test_evaluate_unlike.py",
    "train/record/checkpoint": f"tests/train/test_checkpoint.py {TRAINER}",
    "metrics": METRICS,
}
SLOW = 3.0  # seconds: slower tests are left out
QUIET = ("logger", "log.", "warnings.", "if TYPE_CHECKING")
MESSAGES = {"__repr__", "__str__", "extra_repr", "fact", "reason"}
SWAPS: dict[type[ast.AST], tuple[type[Any], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt), ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,), ast.And: (ast.Or,),
    ast.Or: (ast.And,), ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,), ast.FloorDiv: (ast.Div,), ast.Mod: (ast.Mult,), ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,), ast.Break: (ast.Continue,), ast.Continue: (ast.Break,),
}  # fmt: skip
PAIRS = "min max, minimum maximum, clamp_min clamp_max, amin amax, any all, floor ceil, sum mean, "
PAIRS += "argmin argmax, zeros ones, new_zeros new_ones, zeros_like ones_like, tril triu, exp log"
NAMES = dict(x for a, b in (p.split() for p in PAIRS.split(", ")) for x in ((a, b), (b, a)))
DROPPED = {"abs", "square", "sqrt", "detach", "mT", "contiguous", "clone", "exp", "log", "eval"}


def changed(node: ast.AST, **fields: Any) -> Any:
    """A copy of a node with other fields."""
    new = copy.copy(node)
    vars(new).update(fields)
    return new


def faults(node: ast.AST) -> Iterator[ast.AST]:
    """What a node may be replaced with."""
    match node:
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                for swap in SWAPS[type(op)]:
                    yield changed(node, ops=[*ops[:i], swap(), *ops[i + 1 :]])
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.BoolOp(op=op) if type(op) in SWAPS:
            if "'" not in ast.unparse(node):  # no texts
                yield changed(node, op=SWAPS[type(op)][0]())
        case ast.Break() | ast.Continue():
            yield SWAPS[type(node)][0]()
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield changed(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield from (ast.Constant(other) for other in (value + 1, value - 1) if other >= 0)
        case ast.Constant(value=float(value)):
            yield ast.Constant(2 * value or 1.0)
        case ast.Name(id=name) if name in NAMES:
            yield changed(node, id=NAMES[name])
        case ast.Attribute(attr=name) if name in NAMES:
            yield changed(node, attr=NAMES[name])
        case ast.Attribute(value=ast.AST() as value, attr="mT"):
            yield value
        case ast.Call(func=ast.Attribute(value=value, attr=name), args=[]) if name in DROPPED:
            yield value
    match node:
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise():
            yield ast.Pass()
        case ast.Return(value=ast.BinOp() | ast.Call() | ast.Name() as value):
            yield ast.Return(ast.UnaryOp(ast.USub(), value))
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(value)):
                yield ast.Pass()


def sites(node: ast.AST) -> Iterator[tuple[Any, Any, Any]]:
    """Each place of a tree for a fault: what holds a node, under which key, and the node."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "exc"):
            continue
        holder: Any = value if isinstance(value, list) else vars(node)
        for key, child in enumerate(value) if isinstance(value, list) else [(field, value)]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr | ast.Assert):
                continue
            text = ast.unparse(child) if isinstance(child, ast.Expr | ast.If) else ""
            if text.startswith(QUIET) or getattr(child, "name", "") in MESSAGES:
                continue
            yield holder, key, child
            yield from sites(child)


def mutants(path: Path) -> Iterator[tuple[Row, str]]:
    """All mutants of a file: what is changed where, and the source."""
    tree = ast.parse(path.read_text())
    for holder, key, node in list(sites(tree)):
        for new in faults(node):
            holder[key] = ast.fix_missing_locations(ast.copy_location(new, node))
            place = (str(path.relative_to(SOURCE)), node.lineno, node.col_offset)
            was, now = (" ".join(ast.unparse(n).split())[:90] for n in (node, new))
            yield dict(zip(KEYS, (*place, was, now), strict=True)), ast.unparse(tree)
            holder[key] = node


class Watch:
    """A pytest plugin: leaves out slow tests, notes the seconds of each and the first to fail."""

    def __init__(self, known: dict[str, float]) -> None:
        self.known, self.seconds, self.failed = known, dict[str, float](), ""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep the fast tests."""
        items[:] = [item for item in items if self.known.get(item.nodeid, 0.0) < SLOW]

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note a test."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        self.pytest_collectreport(report)

    def pytest_collectreport(self, report: Any) -> None:
        """Note the first that failed."""
        if report.failed:
            self.failed = self.failed or report.nodeid


def test(path: Path, text: str, tests: str, known: dict[str, float]) -> dict[str, Any]:
    """Run the tests of a file on other source of it, in this process."""
    loader = importlib.machinery.SourceFileLoader
    get_data, path_stats = loader.get_data, loader.path_stats

    def path_stats_(self: Any, name: str) -> Any:
        if name == str(path):
            raise OSError("no cached bytecode")
        return path_stats(self, name)

    def get_data_(self: Any, name: str) -> bytes:
        return text.encode() if str(name) == str(path) else get_data(self, name)

    loader.path_stats, loader.get_data = path_stats_, get_data_  # type: ignore
    watch = Watch(known)
    code = pytest.main([*tests.split(), str(path), *OPTIONS], plugins=[watch])
    by = watch.failed or f"exit code {code}"
    return {"passed": code == 0, "by": by, "seconds": watch.seconds}


class Child:
    """A forked process that tests one mutant."""

    def __init__(self, row: Row, text: str, known: dict[str, float], folder: Path) -> None:
        self.row, self.start = row, time.monotonic()
        path, tests = SOURCE / row["file"], TESTS[prefix_of(row["file"])]
        self.pid = os.fork()
        self.file = folder / f"{self.pid or os.getpid()}.json"
        if self.pid:
            return
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
        log = os.open(folder / "last.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        try:
            self.file.write_text(json.dumps(test(path, text, tests, known)))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(0)

    def result(self) -> dict[str, Any] | None:
        """How it ended; None while it runs. One that hangs is killed, with all its children."""
        hangs = time.monotonic() - self.start > WALL_SECONDS
        if not hangs and not os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        _, status, usage = os.wait4(self.pid, 0)
        answer: dict[str, Any] = {"passed": False, "by": f"signal {os.WTERMSIG(status)}"}
        if self.file.exists():
            answer = json.loads(self.file.read_text())
            self.file.unlink()
        timeout = hangs or os.WTERMSIG(status) == signal.SIGXCPU
        ended = "timeout" if timeout else "survived" if answer.pop("passed") else "killed"
        return {"ended": ended, "cpu": round(usage.ru_utime + usage.ru_stime, 1), **answer}


def prefix_of(file: str) -> str:
    """The longest entry of TESTS that a file is under; empty if none."""
    return max((prefix for prefix in TESTS if file.startswith(prefix)), key=len, default="")


def main() -> None:
    """Try a sample of mutants."""
    sys.path.insert(0, str(SOURCE.parent))
    for name in HEAVY.split():
        importlib.import_module(name)
    gc.freeze()  # pytest collects garbage often
    parser = argparse.ArgumentParser(description="Put single faults into the source and test.")
    parser.add_argument("--only", nargs="*", default=[""], help="paths below src/gramian")
    parser.add_argument("--count", type=int, default=40, help="mutants of the sample")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("runs/mutants"))
    args = parser.parse_args()
    names = sorted(str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py"))
    names = [n for n in names if prefix_of(n) and n.startswith(tuple(args.only))]
    queue = [mutant for name in names for mutant in mutants(SOURCE / name)]
    print(f"{len(queue)} mutants of {len(names)} files", flush=True)
    random.Random(args.seed).shuffle(queue)
    folder = args.output.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    results, times = folder / "mutants.jsonl", folder / "seconds.json"
    results.touch()
    done = [{key: json.loads(line)[key] for key in KEYS} for line in results.open()]
    queue = [(row, text) for row, text in queue[: args.count] if row not in done]
    known = json.loads(times.read_text()) if times.exists() else {}
    for prefix in {prefix_of(row["file"]): row["file"] for row, _ in queue}.values():
        whole = (SOURCE / prefix).read_text()
        child, answer = Child({"file": prefix}, whole, {}, folder), None
        while not answer:
            time.sleep(0.05)
            answer = child.result()
        if answer["ended"] != "survived":
            raise SystemExit(f"without a fault, {prefix}: {answer['ended']} by {answer['by']}")
        known |= answer["seconds"]
        times.write_text(json.dumps(known))
    running: list[Child] = []
    while queue or running:
        while queue and len(running) < args.jobs:
            running.append(Child(*queue.pop(0), known, folder))
        time.sleep(0.05)
        for child in list(running):
            if answer := child.result():
                running.remove(child)
                answer.pop("seconds", None)
                with results.open("a") as file:
                    print(json.dumps(child.row | answer, ensure_ascii=False), file=file)
                print(*child.row.values(), *answer.values(), sep=" | ", flush=True)


if __name__ == "__main__":
    main()
