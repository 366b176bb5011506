"""docs/LADDER.md: every test that it names exists, and the rungs that are tested nowhere else."""

import ast
import re
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gramian import SKR, ConvDKM, ConvDKMConfig, DenseDKM, DenseDKMConfig, NormChoice
from gramian.gram.exact_gp import ExactGP
from gramian.gram.full_blocks import pool_inducing
from gramian.nn.full_rank.full_rank_config import FullRankConfig
from gramian.nn.full_rank.full_rank_dkm import FullRankConvDKM, FullRankDKM
from gramian.nn.steps.kernels import Jitter
from gramian.train.lbfgs import maximise_
from tests.samples import generator, random_

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "LADDER.md").read_text()
FULL = FullRankConfig(kernel="squared_exponential", bias_var=None)


def test_every_test_that_the_page_names_exists():
    named = re.findall(r"(tests/[\w/]+\.py)::(\w+)", PAGE)
    assert len(set(named)) > 15
    for path, test in named:
        tree = ast.parse((ROOT / path).read_text())
        assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, test


def test_every_file_that_the_page_links_exists():
    for link in re.findall(r"\]\(([^)#:]+)\)", PAGE):
        assert (ROOT / "docs" / link).exists(), link


# ---- NNGP → full rank: what is learned, for large ν ----


def rows(n, features=10, seed=0):
    return torch.randn(n, features, generator=generator(seed), dtype=torch.float64)


def images(n, seed=0):
    return torch.randn(n, 20, 3, 3, generator=generator(seed), dtype=torch.float64)


@pytest.mark.parametrize("x", [rows(8), images(3)], ids=["dense", "conv"])
def test_the_trained_gram_matrix_tends_to_the_kernel_like_one_over_nu(x):
    """At the optimum ν/2 (K⁻¹ − G⁻¹) = dℓ/dG, ℓ the log evidence: G ≈ K + (2/ν) K (dℓ/dG) K."""
    y, build = rows(len(x), 2, seed=1), FullRankDKM if x.ndim == 2 else FullRankConvDKM
    errors = []
    for nu in (30.0, 300.0):
        model = build(x, y, replace(FULL, nu=nu))
        model.initialise_()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("raw_factor" in name)
        maximise_(model, tol=0.0)
        with torch.no_grad():
            state = model.inducing_chain().layers["layer1"]
        K = state.K_ii.clone().requires_grad_()
        top = model.kernel.inducing(pool_inducing(K, model.num_pixels))
        ExactGP.condition(top, y, model.likelihood.noise_var).log_evidence.backward()
        first_order = 2 * K @ (K.grad + K.grad.mT) / 2 @ K
        error = nu * (state.ii - state.K_ii) - first_order
        errors.append((error.norm() / first_order.norm()).item())
    assert errors[1] < 0.03
    assert errors[0] / errors[1] == pytest.approx(10, rel=0.3)


@pytest.mark.parametrize("num_layers", [0, 1])
def test_kernel_jitter_is_white_noise_of_each_point(num_layers):
    """A new point that is a copy of a training point has a jitter of its own."""
    x, y = rows(6), rows(6, 2, seed=1)
    config = replace(FULL, num_layers=num_layers, nu=1.0, weight_var=None)

    def build(jitter, noise_var):
        config_ = replace(config, kernel_jitter=Jitter(0.0, jitter), noise_var=noise_var)
        model = FullRankDKM(x, y, config_)
        model.initialise_()
        return model

    if num_layers == 0:  # exactly: jitter j is noise σ² + j, and j more variance for a new point
        q, expected = build(0.05, 0.1).predict(x), build(0.0, 0.15).predict(x)
        torch.testing.assert_close(q.mean, expected.mean)
        torch.testing.assert_close(q.var, expected.var + 0.05)
        return
    for jitter in (0.0, 0.05):  # in a layer: rows of G are those of the originals, or are not
        model = build(jitter, 0.1)
        chain = model.inducing_chain()
        state = chain.layers["layer1"]
        G = model.layers["layer1"].data(model.first_gram(x, chain), state)
        same = torch.eye(6, dtype=torch.float64)
        torch.testing.assert_close(G.ti[:, 0], state.ii - jitter * same)
        torch.testing.assert_close(G.tt[:, 0, 0], state.ii.diagonal())


# ---- inducing points → SKR ----

DENSE = DenseDKMConfig(num_features=10, num_inducing=6, num_layers=2)
CONV = ConvDKMConfig(
    image_shape=(20, 3, 3),
    num_outputs=2,
    num_inducing=(6,),
    blocks_per_stage=1,
    strides=(1,),
    whitening=False,
    norm=NormChoice.off(),
)
both = pytest.mark.parametrize(
    ("build", "config", "x"),
    [(DenseDKM, DENSE, rows(9)), (ConvDKM, CONV, images(9))],
    ids=["dense", "conv"],
)


def started(build, config, x, skr):
    """With SKR and without, the same parameters away from G = K."""
    model, plain = (build.from_config(replace(config, skr=s)).double() for s in (skr, SKR.off()))
    plain.initialise_(x, generator(1))
    model.load_state_dict(random_(plain).state_dict())
    return model, plain


def numbers(result):
    """Predictions and KL terms."""
    kl = torch.stack(list(result.kl.values()))
    return torch.cat([result.marginals.mean, result.marginals.var], 1).flatten(), kl


@both
def test_skr_is_the_inducing_model_as_gamma_grows(build, config, x):
    """Its noise vanishes like 1/√γ, around the model without it."""
    n, spreads = 20, []
    for fraction in (100.0, 10_000.0):
        model, plain = started(build, config, x, SKR(fraction, jitter=0.0))
        draw = generator(2)
        samples = [numbers(model(x, model.draw_noise(draw))) for _ in range(n)]
        predictions, kl = (torch.stack(parts).detach() for parts in zip(*samples, strict=True))
        expected, expected_kl = numbers(plain(x))
        assert torch.equal(kl[:, 0], expected_kl[:1].detach().expand(n))  # of G without noise
        noise = torch.cat([predictions - expected, (kl - expected_kl)[:, 1:]], 1).detach()
        spreads.append(noise.std(0))
    ratio = (spreads[0] / spreads[1]).median()  # 10; of 1/γ it would be 100
    assert 6 < ratio < 16
    z = noise.mean(0) / (spreads[1] / n**0.5)
    assert z.abs().max() < 4


@both
def test_skr_without_jitter_is_the_inducing_model_in_evaluation(build, config, x):
    model, plain = started(build, config, x, SKR(0.25, jitter=0.0))
    for ours, theirs in zip(numbers(model.eval()(x)), numbers(plain.eval()(x)), strict=True):
        assert torch.equal(ours, theirs)


# ---- the picture ----


def test_the_example_runs_and_its_models_leave_the_kernel_as_nu_falls(tmp_path, capsys):
    main = runpy.run_path(str(ROOT / "examples" / "ladder.py"))["main"]
    path = tmp_path / "ladder.png"
    words = ["--points", "14", "--nu", "inf", "30", "10", "--output", str(path)]
    nngp, *learned = rungs = main(words)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert nngp.distance == 0
    assert abs(nngp.kl) < 1e-9
    for before, after in zip(rungs, learned, strict=False):
        assert after.objective > before.objective
        assert after.distance > before.distance
        assert after.kl > before.kl
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| ∞", "| 30", "| 10"]
    assert "not converged" not in lines[-1]


def test_the_table_on_the_page_has_the_columns_of_the_example():
    table = runpy.run_path(str(ROOT / "examples" / "ladder.py"))["table"]
    assert table([]) in PAGE
