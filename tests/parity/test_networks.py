"""The residual unit, the whole ResDKM-20 and its start values."""

import re
from functools import cache

import pytest
import torch
from torch import nn

from gramian import SKR, ConvDKM, ConvDKMConfig, NormChoice, objective
from gramian.nn.likelihoods import sample
from tests.parity.fixture import (
    NETWORK,
    assert_blocks_close,
    assert_close,
    assert_gradients,
    blocks,
    functional,
    load,
    names,
    set_parameters,
)

LEAVES = {
    "C_latent": "raw_mixing",
    "V": "inducing_gram.raw_factor",
    "log_scale_i": "log_scale_inducing",
    "log_scale_t": "log_scale_data",
    "log_bias_var": "log_bias_var",
    "log_weight_var": "log_weight_var",
}


def our_unit_name(theirs: str) -> str:
    """kernel1.log_bias_var → layer1.kernel.log_bias_var, and so on."""
    *path, leaf = theirs.split(".")
    match path:
        case ["shortcut"]:
            where = "shortcut.conv"
        case ["shortcut", "norm"]:
            where = "shortcut.norm"
        case [step]:
            where = re.sub(r"(\w+)(\d)$", r"layer\2.\1", step)
        case _:
            raise KeyError(theirs)
    return f"{where}.{LEAVES[leaf]}"


def our_name(theirs: str) -> str:
    """A parameter of the published ResDKM-20 under our name."""
    if theirs == "out.mu":
        return "output.q_mean"
    if theirs == "out.V":
        return "output.q_cov.raw_factor"
    if theirs == "inducing_patches":
        return "inputs.inducing_patches"
    if match := re.fullmatch(r"block(\d)\.unit(\d)\.(.*)", theirs):
        stage, block, rest = match.groups()
        return f"layers.stage{stage}_block{block}.{our_unit_name(rest)}"
    path, leaf = theirs.rsplit(".", 1)
    path = path.replace("stem", "layers.stem").removeprefix("top.")
    return f"{path}.{LEAVES[leaf]}"


def our_noise(arrays, prefix: str) -> dict[str, torch.Tensor]:
    noise = {}
    for key, value in arrays.items():
        if not key.startswith(prefix) or key.endswith(".mc"):
            continue
        name = our_name(key.removeprefix(prefix) + ".V")
        noise[name.removeprefix("layers.").removesuffix(".inducing_gram.raw_factor")] = value
    return noise


def channels_first(name: str, value: torch.Tensor) -> torch.Tensor:
    return value.permute(0, 3, 1, 2) if name == "inducing_patches" else value


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("name", names("residual_unit_"))
def test_residual_unit(name, mode):
    arrays = load(name)
    P_out, P_in = arrays["param.conv1.C_latent"].shape[:2]
    config = ConvDKMConfig(
        nu=arrays["nu"].item(),
        skr=SKR(1 / arrays["ncol_div"].item()),
        norm=NormChoice(statistics="batch"),
    )
    unit = config.build_block(P_in, P_out, (1, 1), int(arrays["stride"])).double()
    unit.train(mode == "train")
    prefix = "param."
    theirs = [key.removeprefix(prefix) for key in arrays if key.startswith(prefix)]
    parameters = {key: unit.get_parameter(our_unit_name(key)) for key in theirs}
    assert len(parameters) == len(list(unit.parameters()))
    set_parameters({parameters[key]: arrays[prefix + key] for key in theirs})

    noise = {
        f"layer{number}.gram": arrays[f"train.noise.gram{number}"]
        for number in (1, 2)
        if mode == "train"
    }
    gram = blocks(arrays, "in_")
    state = unit.inducing(gram.ii, noise)
    out, _ = unit.data(gram, state)
    total_kl = sum(unit.kl(state).values())
    assert_blocks_close(out, arrays, f"{mode}.out_")
    assert_close(-total_kl, arrays[f"{mode}.objective"], NETWORK, "objective")
    scalar = functional(out, arrays) - total_kl
    assert_close(scalar, arrays[f"{mode}.functional_plus_objective"], NETWORK, "functional")
    assert_gradients(scalar, gram, {}, arrays, f"{mode}.grad_")
    assert_gradients(scalar, gram, parameters, arrays, f"{mode}.grad.")


@cache
def resdkm20():
    arrays = load("resdkm20")
    P = int(arrays["n_ind"])
    config = ConvDKMConfig(
        image_shape=tuple(arrays["images_nchw"].shape[1:]),
        num_outputs=int(arrays["classes"]),
        num_inducing=(P, 2 * P, 4 * P),
        nu=arrays["nu"].item(),
        skr=SKR(1 / arrays["ncol_div"].item()),
        norm=NormChoice(statistics="batch"),
        estimator="monte_carlo",
        whitening=False,
    )
    return arrays, config


def model_with_parameters(arrays, config) -> tuple[ConvDKM, dict[str, nn.Parameter]]:
    model = ConvDKM.from_config(config).double()
    theirs = [key.removeprefix("param.") for key in arrays if key.startswith("param.")]
    parameters = {key: model.get_parameter(our_name(key)) for key in theirs}
    assert len(parameters) == len(list(model.parameters()))
    set_parameters({parameters[k]: channels_first(k, arrays[f"param.{k}"]) for k in theirs})
    model.initialised.fill_(True)
    return model, parameters


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_resdkm20(mode):
    arrays, config = resdkm20()
    model, parameters = model_with_parameters(arrays, config)
    model.train(mode == "train")
    noise = our_noise(arrays, f"{mode}.noise.")
    images, labels, mc = arrays["images_nchw"], arrays["labels"], arrays[f"{mode}.noise.mc"]

    chain = model.inducing_chain(noise)
    gram = model.first_gram(images, chain)
    if mode == "eval":
        assert_blocks_close(gram, arrays, "eval.input_gram.", NETWORK)
    ends = {"stem": "stem", "stage1_block3": "block1", "stage2_block3": "block2"}
    ends["stage3_block3"] = "block3"
    for name, layer in model.layers.items():
        gram, _ = layer.data(gram, chain.layers[name])
        if name in ends:
            assert_blocks_close(gram, arrays, f"{mode}.{ends[name]}.", NETWORK)
    assert_blocks_close(model.pooling(gram), arrays, f"{mode}.pooled.", NETWORK)
    top, _ = model.top(gram, chain)
    assert_blocks_close(top, arrays, f"{mode}.top.", NETWORK)

    result = model(images, noise)
    q = result.marginals
    assert_close(q.mean, arrays[f"{mode}.mean_f"], NETWORK, "mean_f")
    assert_close(q.var, arrays[f"{mode}.var_f"], NETWORK, "var_f")
    assert sample(q, mc).shape == mc.shape
    probabilities = model.likelihood.predict(q, mc)["probabilities"]
    assert_close(probabilities, arrays[f"{mode}.pred_probs"], NETWORK, "pred_probs")
    kl = torch.stack(list(result.kl.values()))
    assert_close(-kl, arrays[f"{mode}.objective_terms"], NETWORK, "objective_terms")
    assert_close(-result.total_kl, arrays[f"{mode}.objective_sum"], NETWORK, "objective_sum")
    terms = objective(result, model.likelihood, labels, mc, int(arrays["num_datapoints"]))
    assert_close(terms.expected_log_lik, arrays[f"{mode}.ell"], NETWORK, "ell")
    assert_close(terms.total, arrays[f"{mode}.total"], NETWORK, "total")

    gradients = torch.autograd.grad(terms.total, list(parameters.values()))
    for name, gradient in zip(parameters, gradients, strict=True):
        expected = channels_first(name, arrays[f"{mode}.grad.{name}"])
        assert_close(gradient, expected, NETWORK, f"gradient of {name}")


def test_resdkm20_start_values():
    """Each Gram matrix starts at the kernel it meets, in training mode with sampling."""
    arrays, config = resdkm20()
    model, parameters = model_with_parameters(arrays, config)
    model.start_grams_(our_noise(arrays, "init.noise."))
    started = [key for key in arrays if key.startswith("init.V.")]
    assert len(started) == 19
    for key in started:
        V = parameters[key.removeprefix("init.V.") + ".V"]
        assert_close(V.tril(), arrays[key].tril(), NETWORK, key)


def test_paper_size_has_the_published_number_of_parameters():
    with torch.device("meta"):
        model = ConvDKM.from_config(ConvDKMConfig())
    assert sum(parameter.numel() for parameter in model.parameters()) == 316_442_198
