import pytest
import torch

from steptrace.workloads.segmentation import RandomMasks, SegmentationNet


def test_the_article_s_network_has_twelve_convolutions_and_keeps_the_image_s_size():
    net = SegmentationNet()
    convolutions = [module for module in net.modules() if isinstance(module, torch.nn.Conv2d)]
    channels = [(c.in_channels, c.out_channels) for c in convolutions]
    assert channels == [(3, 10)] + 10 * [(10, 10)] + [(10, 10)]
    assert net(torch.zeros(2, 3, 5, 7)).shape == (2, 10, 5, 7)


def test_the_logits_are_not_clipped_but_every_hidden_layer_is():
    net = SegmentationNet(in_channels=1, hidden=2, layers=1, classes=3)
    seen = []
    for layer in (*net.hidden, net.last):
        layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    logits = net(torch.randn(4, 1, 8, 8))
    assert all((x >= 0).all() for x in seen)
    assert (logits < 0).any()


def test_a_sample_depends_on_seed_and_index_alone():
    one = RandomMasks(8, 6, seed=3)
    again = RandomMasks(8, 6, seed=3)
    samples = [one[i] for i in range(8)]
    for i in reversed(range(8)):
        assert all(map(torch.equal, samples[i], again[i]))
    assert not torch.equal(samples[0][0], samples[1][0])
    for seed in (4, 3 + 2**32):
        other = RandomMasks(8, 6, seed=seed)
        assert not torch.equal(samples[0][0], other[0][0])
        assert not torch.equal(samples[1][0], other[1][0])


def test_types_shapes_and_distribution():
    image, labels = RandomMasks(1, 64, channels=2, classes=5)[0]
    assert image.shape == (2, 64, 64)
    assert image.dtype == torch.float32
    assert labels.shape == (64, 64)
    assert labels.dtype == torch.int64
    assert abs(image.mean().item()) < 0.05
    assert abs(image.std().item() - 1) < 0.05
    values, counts = labels.unique(return_counts=True)
    assert values.tolist() == [-1, 0, 1, 2, 3, 4]
    assert counts.min() > 0.8 * 64 * 64 / 6


def test_edge_cases_are_what_their_order_says():
    batches = RandomMasks(1, 8).edge_cases()
    assert all(images.shape == (2, 3, 8, 8) for images, _ in batches)
    labels = [set(target.flatten().tolist()) for _, target in batches]
    assert labels[:5] == [{9}, {1}, {-1}, {1, 9}, {0, 1}]
    assert labels[5] == set(range(9))


@pytest.mark.parametrize("kept", [0, 0.01, 0.5, 1])
def test_the_share_of_labels_that_count(kept):
    labels = torch.stack([RandomMasks(8, 64, kept=kept)[i][1] for i in range(8)])
    assert labels.min() >= -1
    assert labels.max() <= 8
    assert (labels >= 0).double().mean().item() == pytest.approx(kept, abs=0.02)


def test_a_share_of_more_than_all_is_refused():
    with pytest.raises(ValueError, match="kept"):
        RandomMasks(8, 64, kept=1.5)
