import json
import subprocess
import sys

import pytest
import torch

from benchmarks import benchmark as bench_run
from benchmarks.__main__ import main
from benchmarks.bench_text import as_text
from benchmarks.benchmark import in_turns
from benchmarks.parts import PARTS, WRAPPED, Ledger, patched, step_totals
from benchmarks.process_memory import memory_of_training
from benchmarks.subjects import DKMSubject, NetworkSubject
from gramian.train.runtime.threads import num_threads

TINY = ["--width", "4", "--batch", "2", "--repeats", "2", "--threads", "1"]
PNG = b"\x89PNG\r\n"


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """The result of a small run with little patience, and the plot that it drew."""
    plot, written = tmp_path_factory.mktemp("bench") / "parts.png", []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_run, "GEMM_SIZE", 256)
        patch.setattr(bench_run, "WARM_UPS", 1)
        patch.setattr(bench_run, "LATENCY_REPEATS", 2)
        patch.setattr(bench_run, "LATENCY_CALLS", 1)
        patch.setattr(bench_run, "memory_of_training", lambda *_: 10**8)
        patch.setattr(sys.stdout, "write", written.append)
        code = main([*TINY, "--json", "--quiet", "--plot", str(plot)])
    assert code == 0
    return json.loads("".join(written)), plot


def numbers(value):
    """All numbers in nested dictionaries and lists."""
    if isinstance(value, dict):
        return [number for item in value.values() for number in numbers(item)]
    return [value]


def test_json_has_everything(bench):
    result, _ = bench
    assert (result["width"], result["batch"], result["repeats"], result["threads"]) == (4, 2, 2, 1)
    assert result["widths"] == [4, 8, 16]
    assert {"versions", "processor", "commit"} <= set(result)
    both = {"dkm", "network"}
    for name in ("train", "predict", "latency"):
        spread = result[f"{name}_ratio_spread"]
        order = [spread["min"], spread["quantile25"], spread["quantile75"], spread["max"]]
        assert 0 < order[0] <= result[f"{name}_ratio"] <= order[-1]
        assert order == sorted(order)
        assert set(result[f"{name}_seconds"]) == both
    assert set(result["gemm_share"]) == set(result["memory_bytes"]) == both
    flops = {f"{name}_{kind}" for name in both for kind in ("train", "predict")}
    assert set(result["flops"]) == flops
    for key in ("gemm_gflops", "gemm_share", "memory_bytes", "flops", "train_seconds"):
        assert min(numbers(result[key])) > 0, key


def test_parts_add_up(bench):
    result, _ = bench
    parts = result["parts"]
    assert tuple(parts) == PARTS
    assert sum(part["flops"] for part in parts.values()) == result["flops"]["dkm_train"]
    for name in ("kernel", "convolution", "products with data", "inducing chain", "likelihood"):
        assert parts[name]["seconds_forward"] > 0
        assert parts[name]["seconds_backward"] > 0
    assert parts["whitening"]["flops"] == 2 * 2 * 3072**2
    assert parts["optimiser"]["seconds_backward"] > 0
    for name in ("convolution", "products with data", "inducing chain"):
        assert parts[name]["flops"] > 0
    seconds = sum(part["seconds_forward"] + part["seconds_backward"] for part in parts.values())
    assert 0.3 < seconds / result["train_seconds"]["dkm"] < 3  # other processes may be in the way


def test_text_and_plot(bench):
    result, plot = bench
    text = as_text(result)
    for words in ("DKM", "network", "ratio", "training step", "one image", "GFLOP/s", *PARTS):
        assert words in text
    assert "100 MB" in text
    assert "part of" not in as_text({**result, "parts": {}, "memory_bytes": {}})
    assert plot.read_bytes()[:6] == PNG


def test_text_goes_to_standard_output(capsys, monkeypatch, bench):
    monkeypatch.setattr("benchmarks.benchmark.run_bench", lambda *_, **__: bench[0])
    assert main([*TINY]) == 0
    assert "training step" in capsys.readouterr().out


def test_memory_is_that_of_the_other_process():
    ballast = torch.ones(3 * 10**8)  # 1.2 GB, which a child's ru_maxrss would show
    assert 50e6 < memory_of_training("network", (16, 32, 64), 2, 1) < 1e9
    assert ballast[-1] == 1


def test_a_failing_memory_process_says_why(monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "out of memory\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(RuntimeError, match="out of memory"):
        memory_of_training("dkm", (16, 32, 64), 2, 1)


def test_patches_are_undone():
    before = [vars(owner)[name] for owner, name, _ in WRAPPED]
    subject = NetworkSubject((16, 16, 16))
    step_totals(subject, subject.batch(2), lambda: 0.0)
    with patched(Ledger(lambda: 0.0)):
        assert [vars(owner)[name] for owner, name, _ in WRAPPED] != before
    assert [vars(owner)[name] for owner, name, _ in WRAPPED] == before
    with pytest.raises(ZeroDivisionError), patched(Ledger(lambda: 0.0)):
        _ = 1 / 0
    assert [vars(owner)[name] for owner, name, _ in WRAPPED] == before


def test_a_ledger_charges_the_inner_part():
    readings = iter([0, 1, 3, 6, 10, 15, 100])
    ledger = Ledger(lambda: next(readings))
    with ledger.part("outer"), ledger.part("inner"):
        pass
    with ledger.paused():
        pass
    assert ledger.totals == {
        ("other", "forward"): 1 + 5,
        ("outer", "forward"): 2 + 4,
        ("inner", "forward"): 3,
    }


def test_backward_belongs_to_the_part_that_made_the_node():
    x = torch.ones(3, requires_grad=True)
    count = [0]

    def clock() -> int:
        count[0] += 1
        return count[0]

    ledger = Ledger(clock)
    with ledger.part("squares"):
        squares = x.square()
    loss = squares.sum()
    with ledger.paused():
        ledger.follow(loss)
        ledger.phase = "backward"
    loss.backward()
    assert ledger.totals["squares", "backward"] == 1
    assert ledger.totals["other", "backward"] > 0


def test_functions_take_turns():
    calls = []
    functions = {name: lambda name=name: calls.append(name) for name in ("network", "dkm")}
    in_turns("x", functions, repeats=2, calls=2)
    assert calls == ["network", "network", "dkm", "dkm"] * 5


def test_ratios_are_those_of_the_turns(monkeypatch):
    clock = iter([0, 1, 1, 3, 3, 5, 5, 11, 11, 14, 14, 17])  # network 1 2 3, dkm 2 6 3
    monkeypatch.setattr(bench_run, "WARM_UPS", 0)
    monkeypatch.setattr(bench_run.time, "perf_counter", lambda: next(clock))
    found = in_turns("x", {"network": int, "dkm": int}, repeats=3)
    assert found["x_ratio"] == 2.0
    assert found["x_seconds"] == {"dkm": 3.0, "network": 2.0}
    spread = {"min": 1.0, "quantile25": 1.5, "quantile75": 2.5, "max": 3.0}
    assert found["x_ratio_spread"] == spread


def test_threads_are_set_for_a_while():
    before = torch.get_num_threads()
    with num_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_the_models_learn():
    for build in (NetworkSubject, DKMSubject):
        subject = build((16, 16, 16))
        batch = subject.batch(4)
        before = subject.loss(batch).item()
        for _ in range(3):
            subject.step(batch)
        assert subject.loss(batch).item() < before


def test_help(capsys):
    assert main(["--help"]) == 0
    assert "--width" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--width", "0"], "--width: "),
        (["--batch", "0"], "--batch: "),
        (["--repeats", "0"], "--repeats: "),
        (["--threads", "0"], "--threads: "),
        (["--width", "wide"], "wide"),
        (["--plot", "x.png", "--skip_parts"], "--skip_parts leaves out"),
    ],
)
def test_bad_options(capsys, words, message):
    assert main(list(words)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
