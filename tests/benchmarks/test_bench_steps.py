import pytest

from benchmarks import steps


@pytest.mark.parametrize("name", steps.STEPS)
def test_each_step_runs_both_ways(name, monkeypatch):
    monkeypatch.setattr(steps, "BATCH", 2)
    steps.forward_and_backward(name)()


def test_the_table_names_the_steps(capsys):
    steps.measure(["output"], seconds=0.01).print()
    assert "output" in capsys.readouterr().out
