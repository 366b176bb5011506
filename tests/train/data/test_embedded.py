import torch

from gramian.train.data import available, digits, load, sine
from tests.parity.fixture import load as load_fixture


def test_sine_reproduces_the_authors_draws():
    arrays = load_fixture("sine_toy")
    data = sine(int(arrays["data_seed"])).train
    x = torch.cat([arrays["x_ind"], arrays["x_train"]])
    y = torch.cat([arrays["y_ind"], arrays["y_train"]])
    torch.testing.assert_close(data.x, x, atol=1e-12, rtol=0)
    assert torch.equal(data.y, y.long())


def test_sine_is_standardised_balanced_and_seeded():
    state = torch.get_rng_state()
    splits = sine()
    assert (len(splits.train), len(splits.test)) == (356, 178)
    assert splits.train.y.bincount().tolist() == [178, 178]
    assert splits.test.y.bincount().tolist() == [89, 89]
    torch.testing.assert_close(splits.train.x.std(0), torch.ones(2).double())
    assert torch.equal(splits.test.x, sine(0).test.x)
    assert not torch.equal(splits.test.x, sine(1).test.x)
    assert torch.equal(state, torch.get_rng_state())


def test_digits_are_uint8_images_in_a_fixed_split():
    splits = digits()
    assert splits.train.x.shape == (1347, 1, 8, 8)
    assert splits.test.x.shape == (450, 1, 8, 8)
    assert splits.train.x.unique().tolist() == [round(v * 255 / 16) for v in range(17)]
    assert splits.test.y.bincount().min() >= 43
    assert splits.train.class_names == tuple("0123456789")
    assert torch.equal(splits.test.x, load("digits").test.x)
    info = next(info for info in available() if info.name == "digits")
    assert info.shape == splits.train.x.shape[1:]
