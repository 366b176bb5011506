import numpy as np
import pytest
import torch

from gramian.train.data import Augmentation, DataError, random_crop, random_flip
from tests.samples import generator


def images(count=50, dtype=torch.uint8, shape=(3, 7, 5)):
    numbers = torch.randint(1, 256, (count, *shape), generator=generator(9))
    return numbers.to(dtype)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
@pytest.mark.parametrize("padding", [1, 4])
def test_crop_equals_a_loop(dtype, padding):
    x = images(dtype=dtype)
    cropped = random_crop(x, padding, generator(3))
    assert cropped.dtype == dtype
    _, _, H, W = x.shape
    places = torch.randint(0, 2 * padding + 1, (2, len(x)), generator=generator(3)).numpy()
    margin = [(0, 0), (padding, padding), (padding, padding)]
    for image, result, top, left in zip(x.numpy(), cropped.numpy(), *places, strict=True):
        padded = np.pad(image, margin)
        np.testing.assert_array_equal(result, padded[:, top : top + H, left : left + W])


def test_every_place_is_drawn():
    x = torch.zeros(2000, 1, 3, 3)
    x[:, :, 1, 1] = 1
    cropped = random_crop(x, 1, generator())
    counts = cropped.sum((0, 1))
    assert counts.sum() == 2000
    assert (counts > 150).all()  # 222 expected at each of the nine places


def test_flip_mirrors_about_half_of_the_images():
    x = images(400)
    flipped = random_flip(x, generator())
    mirrored = (flipped == x.flip(-1)).flatten(1).all(1)
    same = (flipped == x).flatten(1).all(1)
    assert (mirrored ^ same).all()
    assert 150 < mirrored.sum() < 250


def test_augmentation_is_seeded_and_leaves_its_input_and_the_global_state_alone():
    x = images()
    before, state = x.clone(), torch.get_rng_state()
    one, two, three = (Augmentation()(x, generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(one, two)
    assert not torch.equal(one, three)
    assert torch.equal(x, before)
    assert torch.equal(state, torch.get_rng_state())
    draw = generator()
    assert not torch.equal(Augmentation()(x, draw), Augmentation()(x, draw))


def test_augmentation_can_be_switched_off():
    x = images()
    assert Augmentation(crop_padding=0, flip=False)(x, generator()) is x
    crop_only = Augmentation(flip=False)(x, generator(5))
    assert torch.equal(crop_only, random_crop(x, 4, generator(5)))


def test_negative_padding_is_refused():
    with pytest.raises(DataError, match="got -1"):
        Augmentation(crop_padding=-1)
    with pytest.raises(DataError, match="got -1"):
        random_crop(images(), -1, generator())
