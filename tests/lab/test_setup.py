import multiprocessing
import sys

import pytest
import torch

from steptrace.errors import ConfigError, TrainError
from steptrace.lab.precision import NumberFormats
from steptrace.lab.setup import _drawn_on, build_dataset, load_config, training
from steptrace.workloads.segmentation import RandomMasks


def inputs_of(config, seed, count):
    with training(config, seed) as parts:
        return [next(parts.batches)[0] for _ in range(count)]


def test_a_seed_decides_weights_and_data(make_config):
    def start(seed):
        with training(make_config(), seed) as parts:
            return parts.model.first.weight.detach().clone(), next(parts.batches)[0]

    weight, batch = start(7)
    same_weight, same_batch = start(7)
    other_weight, other_batch = start(8)
    assert torch.equal(weight, same_weight)
    assert torch.equal(batch, same_batch)
    assert not torch.equal(weight, other_weight)
    assert not torch.equal(batch, other_batch)


def test_the_data_set_s_own_seed_gives_way_to_the_run_s(make_config):
    image, _ = build_dataset(make_config(), 8)[0]
    assert torch.equal(image, RandomMasks(6, 8, seed=8)[0][0])
    unseeded = {"_target_": "torch.utils.data.StackDataset", "values": [1, 2]}
    assert len(build_dataset(make_config({"data.dataset": unseeded}), 8)) == 2


def test_batches_go_on_after_the_last_epoch_and_are_reshuffled(make_config):
    batches = inputs_of(make_config(), 7, 7)  # three batches an epoch
    first, second = torch.cat(batches[:3]), torch.cat(batches[3:6])
    assert not torch.equal(first, second)
    assert sorted(first.sum((1, 2, 3)).tolist()) == sorted(second.sum((1, 2, 3)).tolist())


def test_only_whole_batches_are_used(make_config):
    assert [len(batch) for batch in inputs_of(make_config({"data.batch_size": 4}), 7, 3)] == [4, 4, 4]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("persistent_workers", [True, False])
def test_workers_give_the_same_data_and_are_gone_afterwards(make_config, persistent_workers):
    workers = {"data.num_workers": 2, "data.persistent_workers": persistent_workers}
    for alone, helped in zip(inputs_of(make_config(), 7, 3), inputs_of(make_config(workers), 7, 3), strict=True):
        assert torch.equal(alone, helped)
    assert multiprocessing.active_children() == []


def test_a_pool_is_the_loader_s_first_batches_again_and_again(make_config):
    with training(make_config(), 7) as parts:
        wanted = [next(parts.batches) for _ in range(2)]
    with training(make_config({"data.pool": 2}), 7) as parts:
        batches = [next(parts.batches) for _ in range(5)]
    for index, (inputs, targets) in enumerate(batches):
        assert torch.equal(inputs, wanted[index % 2][0])
        assert torch.equal(targets, wanted[index % 2][1])


without_gpu_alone = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data.batch_size": 7}, "less than one batch of 7"),
        pytest.param({"device": "cuda"}, "no GPU", marks=without_gpu_alone),
    ],
)
def test_what_the_machine_or_the_data_lacks_is_one_message(make_config, change, message):
    with pytest.raises(TrainError, match=message), training(make_config(change), 7):
        pass


def test_the_config_sets_the_number_of_threads(make_config):
    with training(make_config({"scale.threads": 1}), 7):
        assert torch.get_num_threads() == 1


@pytest.mark.parametrize("text", [None, "", "- a list", "a: [unclosed"])
def test_an_unreadable_config_is_named(tmp_path, text):
    path = tmp_path / "config.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        load_config(path)


@pytest.mark.parametrize("tf32", [True, False])
def test_tf32_is_set_for_convolutions_and_products_alike(make_config, tf32):
    NumberFormats.from_config(make_config({"precision.tf32": tf32}).precision, "cuda").apply()
    assert torch.backends.cudnn.allow_tf32 is tf32
    assert torch.backends.cuda.matmul.allow_tf32 is tf32


class OwnGenerator:
    """Stands for a model of a user."""


def test_a_model_is_made_on_its_device_and_on_the_cpu_only_if_it_must(make_config, monkeypatch):
    """`meta` stands for a GPU: what is made there has been neither drawn nor copied."""
    made = []
    monkeypatch.setattr(torch.nn.Linear, "__init__", watched(torch.nn.Linear.__init__, made))
    config = make_config({"model": {"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 2}})
    assert _drawn_on(torch.device("meta"), config, 7).weight.device.type == "meta"
    assert made == ["meta"]
    assert _drawn_on(torch.device("cpu"), config, 7).weight.device.type == "cpu"
    assert made == ["meta", "cpu"]


def watched(make, made):
    def init(self, *arguments, **options):
        make(self, *arguments, **options)
        made.append(self.weight.device.type)

    return init


def test_a_model_that_cannot_be_made_on_the_device_has_the_seed_s_weights_all_the_same(make_config, monkeypatch):
    class OnlyOnCPU(torch.nn.Linear):
        def __init__(self):
            torch.rand(3, device="cpu")  # drawn in vain at the first try
            if torch.empty(0).device.type != "cpu":
                raise RuntimeError("Expected a 'cpu' device type for generator")
            super().__init__(2, 2)

    monkeypatch.setattr(sys.modules[__name__], "OwnGenerator", OnlyOnCPU)
    config = make_config({"model": {"_target_": f"{__name__}.OwnGenerator"}})
    placed = []
    monkeypatch.setattr(OnlyOnCPU, "to", lambda model, device: placed.append(device.type) or model)
    on_gpu = _drawn_on(torch.device("meta"), config, 7)
    on_cpu = _drawn_on(torch.device("cpu"), config, 7)
    assert torch.equal(on_gpu.weight, on_cpu.weight)
    assert placed == ["meta", "cpu"]
