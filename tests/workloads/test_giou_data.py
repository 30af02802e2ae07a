import pytest
import torch

from steptrace.errors import ConfigError
from steptrace.workloads.giou_data import FORMS, ConcatenatedBoxes, RandomBoxes, matched
from steptrace.workloads.giou_network import GIoUNet


def batch(form, indices=range(12), **changes):
    dataset = RandomBoxes(length=64, image_size=32, max_boxes=8, form=form, **changes)
    return dataset.collate([dataset[i] for i in indices])


def test_a_sample_depends_on_seed_and_index_alone():
    first = RandomBoxes(8, image_size=32)
    again = RandomBoxes(20, image_size=32, form="list")
    for i in (5, 0, 5):
        assert all(torch.equal(a, b) for a, b in zip(first[i], again[i], strict=True))
    other = RandomBoxes(8, image_size=32, seed=1)
    assert not torch.equal(first[5][0], other[5][0])
    assert not torch.equal(first[5][0], first[4][0])


def test_boxes_lie_in_the_image_and_have_an_area():
    dataset = RandomBoxes(400, image_size=64)
    boxes = torch.cat([dataset[i][1] for i in range(len(dataset))])
    assert boxes.dtype == torch.uint8
    assert boxes.shape[1] == 4
    assert (boxes[:, 2:] > boxes[:, :2]).all()
    assert boxes.max() == 63
    assert boxes.min() == 0
    image = dataset[0][0]
    assert image.shape == (1, 64, 64)
    assert image.dtype == torch.uint8


def test_counts_follow_the_clipped_normal_distribution():
    dataset = RandomBoxes(2000, image_size=4)
    counts = torch.tensor([float(len(dataset[i][1])) for i in range(len(dataset))])
    # P(floor|N(0, 3)| = 0) is 0.261 and the mean 1.91; four standard errors of 2,000 draws.
    assert abs((counts == 0).float().mean() - 0.261) < 0.04
    assert abs(counts.mean() - 1.91) < 0.17
    few = RandomBoxes(200, image_size=4, max_boxes=3)
    assert max(len(few[i][1]) for i in range(len(few))) == 2


def test_all_forms_hold_the_same_boxes():
    images, boxes = batch("list")
    counts = tuple(len(image) for image in boxes)
    assert sum(counts) > 0
    same_images, concatenated = batch("concatenated")
    assert torch.equal(images, same_images)
    assert concatenated.counts == counts
    assert torch.equal(concatenated.boxes, torch.cat(boxes))
    _, padded = batch("padded")
    assert padded.shape == (12, 8, 4)
    for row, image in zip(padded, boxes, strict=True):
        assert torch.equal(row[: len(image)], image)
        assert not row[len(image) :].any()


def test_the_padded_form_is_as_wide_when_no_image_has_a_box():
    dataset = RandomBoxes(length=64, image_size=32, max_boxes=8)
    empty = [i for i in range(64) if len(dataset[i][1]) == 0][:3]
    _, padded = batch("padded", empty)
    assert padded.shape == (3, 8, 4)
    assert padded.dtype == torch.uint8
    assert not padded.any()


def test_each_box_is_matched_with_the_prediction_of_its_place():
    prediction = torch.arange(12 * 8 * 4).view(12, 8, 4).float()
    pairs = {form: matched(prediction, batch(form)[1]) for form in FORMS}
    for image, (ours, theirs) in enumerate(pairs["list"]):
        assert torch.equal(ours, prediction[image, : len(theirs)])
        for form in FORMS:
            assert torch.equal(pairs[form][image][0], ours)
            assert torch.equal(pairs[form][image][1], theirs)


def test_concatenated_boxes_move_as_a_whole():
    boxes = ConcatenatedBoxes(torch.zeros(3, 4), (1, 2))
    moved = boxes.to(torch.device("meta"), non_blocking=True)
    assert moved.boxes.device.type == "meta"
    assert moved.counts == (1, 2)


def test_the_edge_cases_are_those_of_a_varying_number_of_boxes():
    by_form = {form: RandomBoxes(length=4, image_size=32, max_boxes=8, form=form).edge_cases() for form in FORMS}
    counts = [[len(image) for image in boxes] for _, boxes in by_form["list"]]
    assert counts == [[0, 0], [0, 2], [7, 7], [1, 1], [2, 2]]
    flat = by_form["list"][-1][1][1].int()
    assert ((flat[:, 2] - flat[:, 0]) * (flat[:, 3] - flat[:, 1]) == 0).all()
    for form in FORMS:
        for (_, boxes), number in zip(by_form[form], counts, strict=True):
            assert [len(theirs) for _, theirs in matched(torch.zeros(2, 8, 4), boxes)] == number


@pytest.mark.parametrize(
    ("change", "named"), [({"form": "ragged"}, "data.dataset.form"), ({"image_size": 257}, "data.dataset.image_size")]
)
def test_what_a_config_gets_wrong_is_named(change, named):
    with pytest.raises(ConfigError, match=named):
        RandomBoxes(**{"length": 4, "image_size": 32, **change})


def test_the_network_has_the_article_s_sizes():
    with torch.device("meta"):
        net = GIoUNet()
        boxes = net(torch.zeros(2, 1, 256, 256, dtype=torch.uint8))
    assert [(c.in_channels, c.out_channels) for c in net.blocks] == [(1, 4), (4, 16), (16, 64), (64, 256)]
    assert (net.hidden.in_features, net.hidden.out_features) == (65536, 16384)
    assert (net.last.in_features, net.last.out_features) == (16384, 1024)
    assert boxes.shape == (2, 256, 4)


def test_the_network_takes_images_of_any_dtype_and_trains_all_its_parameters():
    net = GIoUNet(image_size=32, hidden=8, boxes=8)
    images, _ = batch("padded")
    boxes = net(images)
    assert boxes.shape == (12, 8, 4)
    assert torch.equal(boxes, net(images.float()))
    boxes.sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in net.parameters())
