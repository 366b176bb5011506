"""Explanations: that they add up, whose similarities they are, and that learning changes them."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from gramian import (
    SKR,
    Bandwidth,
    ConvDKM,
    ConvDKMConfig,
    DenseDKM,
    DenseDKMConfig,
    Jitter,
    NetworkConfig,
    NormChoice,
    fit,
)
from gramian.nn.explain import LayerFeatures, contributions, input_shares, pixel_shares
from gramian.train.data import load
from gramian.train.pretrained import PretrainedError
from tests.samples import generator, random_
from tests.train.tiny import digits_predictor

CONV = ConvDKMConfig(
    image_shape=(1, 8, 8), num_outputs=3, num_inducing=(6, 8), strides=(1, 2), blocks_per_stage=1,
    whitening=False, num_samples=5, mixing_start="near_identity", output_start="kernel",
)  # fmt: skip
DENSE = DenseDKMConfig(num_features=4, num_outputs=2, num_inducing=6, num_layers=2)
IMAGES = torch.randn(7, 1, 8, 8, generator=generator(1), dtype=torch.float64)
ROWS = torch.randn(9, 4, generator=generator(2), dtype=torch.float64)


def build(kind, dtype=torch.float64, **changes):
    conv = kind == "conv"
    config = replace(CONV if conv else DENSE, **changes)
    model = (ConvDKM if conv else DenseDKM).from_config(config).to(dtype)
    x = (IMAGES if conv else ROWS).to(dtype)
    model.initialise_(x, generator())
    random_(model)
    return model.eval(), x


FORMS = [
    ("conv", {}),
    ("conv", {"pooling": "nystrom"}),
    ("conv", {"unexplained": "dropped", "bandwidth": Bandwidth(3.0, True)}),
    ("conv", {"centre": True}),
    ("dense", {}),
    ("dense", {"kernel": "squared_exponential"}),
]


@pytest.mark.parametrize(("kind", "changes"), FORMS, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_contributions_add_up_to_the_mean(kind, changes, dtype, tolerance):
    model, x = build(kind, dtype, **changes)
    shares, K_ti = contributions(model, x)
    assert shares.shape == (len(x), len(model.output.q_mean), model.num_outputs)
    assert K_ti.shape == shares.shape[:2]
    size = shares.abs().sum(1)  # shares of both signs cancel: rounding is relative to these
    assert ((model.predict(x).mean - shares.sum(1)).abs() / size).max() < tolerance


@pytest.mark.parametrize(
    ("kind", "changes"), [form for form in FORMS if form[0] == "conv"], ids=str
)
def test_pixel_shares_add_up_to_the_difference_from_the_reference(kind, changes):
    model, x = build(kind, **changes)
    shares, reference = pixel_shares(model, x[:3], x[3:])
    assert shares.shape == (3, 4, 4, 3)
    found = shares.sum((1, 2)) + reference
    torch.testing.assert_close(found, model.predict(x[:3]).mean, rtol=1e-7, atol=1e-7)
    again, _ = pixel_shares(model, x[1:2], x[3:])
    torch.testing.assert_close(again[0], shares[1])  # others change nothing
    assert all(parameter.grad is None for parameter in model.parameters())


def test_shares_are_refused_where_the_batch_is_part_of_a_prediction():
    model, x = build("conv", norm=NormChoice(statistics="batch"))
    with pytest.raises(ValueError, match="running statistics"):
        pixel_shares(model, x[:2], x[3:])
    with pytest.raises(ValueError, match="running statistics"):
        input_shares(model, x[:2], x[3], torch.zeros(2, dtype=torch.int64))


def test_input_shares_of_images_with_channels_add_up_one_by_one():
    model, _ = build("conv")
    colour = ConvDKM.from_config(replace(CONV, image_shape=(3, 8, 8))).double()
    x = torch.randn(7, 3, 8, 8, generator=generator(4), dtype=torch.float64)
    colour.initialise_(x, generator())
    random_(colour)
    colour.eval()
    outputs, reference = torch.tensor([0, 2]), x[6]
    shares = input_shares(colour, x[:2], reference, outputs)
    assert shares.shape == (2, 8, 8)
    f, f0 = colour.predict(x[:2]).mean, colour.predict(x[6:]).mean[0]
    expected = f.gather(1, outputs[:, None])[:, 0] - f0[outputs]
    torch.testing.assert_close(shares.sum((1, 2)), expected, rtol=0.02, atol=1e-5)
    with pytest.raises(ValueError, match="images"):
        input_shares(colour, IMAGES[:2], IMAGES[6], outputs)
    with pytest.raises(ValueError, match="images"):
        contributions(model, x)


def test_an_image_of_reference_pixels_has_no_shares():
    model, x = build("conv")
    shares, _ = pixel_shares(model, x[:1], x[:1])
    assert shares.abs().max() < 1e-12


@pytest.mark.parametrize("num_layers", [0, 1, 2])
def test_similarities_of_inducing_points_are_their_gram_matrices(num_layers):
    """Seen by themselves, the inducing points miss nothing: φ φᵀ = G_ii, at every layer."""
    jitter = Jitter(0.0, 0.0)
    model, _ = build(
        "dense", num_layers=num_layers, kernel_jitter=jitter, kernel="squared_exponential",
        skr=SKR.off(),
    )  # fmt: skip
    chain = model.inducing_chain({})
    features = LayerFeatures(model)(model.inputs.inducing_points.detach())
    torch.testing.assert_close(features["input"] @ features["input"].mT, chain.input_ii.detach())
    assert list(features) == ["input", *model.layers, "output"]
    for name, state in chain.layers.items():
        G = features[name] @ features[name].mT
        torch.testing.assert_close(G, state.ii.detach(), rtol=1e-6, atol=1e-6)
    K = features["output"] @ features["output"].mT
    torch.testing.assert_close(K, chain.top_ii.detach(), rtol=1e-6, atol=1e-6)


def test_features_by_a_plain_formula():
    model, x = build("conv")
    chain = model.inducing_chain({})
    gram = model.first_gram(x, chain)
    gram, _ = model.layers["stem"].data(gram, chain.layers["stem"])
    means, ii = gram.ti.mean((1, 2)), chain.layers["stem"].ii
    phi = LayerFeatures(model)(x)["stem"]
    expected = means @ torch.linalg.inv(ii) @ means.mT
    torch.testing.assert_close(phi @ phi.mT, expected.detach(), rtol=1e-7, atol=1e-7)


def test_features_do_not_follow_the_model():
    model, x = build("conv")
    features = LayerFeatures(model.train())
    before = features(x)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    for name, value in features(x).items():
        assert torch.equal(value, before[name])
    assert not torch.equal(LayerFeatures(model)(x)["stem"], before["stem"])
    assert model.training


@pytest.fixture(scope="module")
def digits():
    data = load("digits")
    return data, digits_predictor()


def test_shares_of_the_images_own_pixels_add_up(digits):
    data, predictor = digits
    x, reference, classes = data.test.x[:20], data.train.x[:50], data.test.y[:20]
    shares = predictor.input_shares(x, reference, classes, batch_size=8)
    assert shares.shape == (20, 8, 8)
    mean = predictor._inputs(reference).mean(0, keepdim=True)
    logits = predictor.latent(x).mean.gather(1, classes[:, None])[:, 0]
    change = logits - predictor.model.predict(mean).mean[0, classes]
    torch.testing.assert_close(shares.sum((1, 2)), change, rtol=0.02, atol=0.02)


def test_the_share_of_a_pixel_is_that_of_its_change(digits):
    """Where an image differs from the reference in one pixel, that pixel has all of it."""
    data, predictor = digits
    reference = data.train.x[:1]
    x = reference.clone()
    x[0, 0, 3, 4] = 255 - x[0, 0, 3, 4]
    shares = predictor.input_shares(x, reference, torch.tensor([3]))[0]
    change = (predictor.latent(x).mean - predictor.latent(reference).mean)[0, 3]
    assert shares[3, 4].item() == pytest.approx(change.item(), rel=0.02, abs=0.01)
    shares[3, 4] = 0
    assert shares.abs().max() == 0


def test_an_image_is_most_similar_to_itself_and_then_to_its_class(digits):
    data, predictor = digits
    x, y = data.train.x[:300], data.train.y[:300]
    places, values = predictor.similar(x[:20], x, k=3)
    assert torch.equal(places[:, 0], torch.arange(20))
    torch.testing.assert_close(values[:, 0], torch.ones(20, dtype=torch.float64))
    assert (values.diff(dim=1) <= 0).all()
    agreement = {}
    for layer in ("input", "output"):
        places, _ = predictor.similar(data.test.x[:200], x, k=3, layer=layer)
        agreement[layer] = (y[places] == data.test.y[:200, None]).float().mean().item()
    assert agreement["output"] > 0.75
    assert agreement["output"] > agreement["input"] + 0.3


def test_explanations_depend_on_what_was_learned(digits):
    """With other weights, other similar images, other contributions and other pixels."""
    data, predictor = digits
    other = replace(predictor, model=copy.deepcopy(predictor.model))
    with torch.no_grad():
        for parameter in other.dkm.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator(3)))
    x, among = data.test.x[:30], data.train.x[:300]
    mine, others = (p.similar(x, among, k=5)[0] for p in (predictor, other))
    shared = [len(set(a) & set(b)) for a, b in zip(mine.tolist(), others.tolist(), strict=True)]
    assert np.mean(shared) < 2.5
    for explain in (
        lambda p: p.contributions(x).flatten(1),
        lambda p: p.pixel_shares(x, among[:50]).flatten(1).double(),
        lambda p: p.input_shares(x, among[:50], data.test.y[:30]).flatten(1).double(),
    ):
        a, b = explain(predictor), explain(other)
        correlation = torch.nn.functional.cosine_similarity(a, b).abs().mean()
        assert correlation < 0.6


def test_a_predictor_explains_in_batches_what_the_model_says(digits):
    data, predictor = digits
    x = data.test.x[:10]
    shares = predictor.contributions(x, batch_size=3)
    latent = predictor.latent(x).mean
    size = shares.abs().sum(1)
    assert ((shares.sum(1) - latent).abs() / size).max() < 1e-6
    parts, whole = predictor.features(x, batch_size=3), predictor.features(x)
    torch.testing.assert_close(parts["output"], whole["output"], rtol=1e-3, atol=1e-5)
    calibrated = predictor.calibrate(data.test.x[:100], data.test.y[:100])
    assert torch.equal(calibrated.contributions(x), predictor.contributions(x))


def test_what_cannot_be_explained(digits):
    data, predictor = digits
    x = data.test.x[:4]
    with pytest.raises(ValueError, match=r"layer must be one of input, stem, .*, got 'last'"):
        predictor.similar(x, x, k=2, layer="last")
    with pytest.raises(ValueError, match="k must be between 1 and the 4 data points, got 5"):
        predictor.similar(x, x)
    rows, _ = build("dense")
    with pytest.raises(ValueError, match="this model is for rows"):
        pixel_shares(rows, ROWS, ROWS)
    network = fit(NetworkConfig(widths=(4,), strides=(2,), blocks_per_stage=1), x, np.arange(4) % 2,
                  max_epochs=1)  # fmt: skip
    for explain in (network.contributions, network.features):
        with pytest.raises(PretrainedError, match="but the model is a Network"):
            explain(x)
