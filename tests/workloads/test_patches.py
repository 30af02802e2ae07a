import pytest
import torch

from steptrace.workloads.patches import PatchNet, RandomImages


def test_an_image_becomes_a_token_of_every_patch_of_eight_by_eight_and_a_logit_per_class():
    net = PatchNet(in_channels=3, width=32, blocks=1, heads=4, classes=5)
    seen = []
    net.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape))
    assert net(torch.zeros(2, 3, 16, 24)).shape == (2, 5)
    assert seen == [(2, 2 * 3, 32)]


def test_every_token_attends_to_every_other():
    torch.manual_seed(0)
    net = PatchNet(width=32, blocks=1).eval()
    image = torch.randn(1, 3, 32, 32)
    other = image.clone()
    other[..., -1, -1] += 10.0
    seen = []
    net.blocks[0].register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
    net(image)
    net(other)
    (tokens, mixed), (tokens_of_other, mixed_of_other) = seen
    far = 0  # the stem's convolutions do not reach from one corner into the other
    assert not torch.allclose(tokens[0, -1], tokens_of_other[0, -1])
    assert not torch.allclose(mixed[0, far] - tokens[0, far], mixed_of_other[0, far] - tokens_of_other[0, far])


def test_a_sample_depends_on_seed_and_index_alone():
    one, other = RandomImages(4, 8, seed=3), RandomImages(4, 8, seed=3)
    for i in (2, 0, 3, 1):
        assert torch.equal(one[i][0], other[i][0])
        assert one[i][1] == other[i][1]
    assert not torch.equal(one[0][0], RandomImages(4, 8, seed=4)[0][0])
    assert {RandomImages(64, 8, classes=3)[i][1] for i in range(64)} == {0, 1, 2}


def test_a_size_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="no multiple of 8"):
        RandomImages(4, 12)
