import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from steptrace.errors import TrainError
from steptrace.workloads import images as module
from steptrace.workloads.images import CLASSES, ImageClassifier, Images, image_files, made_image, png_name

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("images"))


def images(folder, **changes):
    return Images(**{"length": 12, "image_size": 32, "crop": 8, "folder": folder, **changes})


def test_a_sample_is_the_same_from_files_and_from_the_array(folder):
    files = images(folder)
    array = images(folder, stored="array")
    assert len(files) == len(array) == 12
    for index in range(12):
        image, label = files[index]
        other, _ = array[index]
        assert (image.shape, image.dtype, label) == ((3, 8, 8), torch.float32, index % CLASSES)
        assert torch.equal(image, other)
        assert torch.equal(image, files[index][0])


def test_a_seed_augments_otherwise_but_writes_nothing_new(folder):
    one, other = images(folder, seed=1), images(folder, seed=2)
    assert not torch.equal(one[0][0], other[0][0])
    assert one.files == other.files


def test_the_files_are_the_same_wherever_they_are_written(folder, tmp_path):
    first, second = images(folder).files, images(str(tmp_path)).files
    for index in (0, 7):
        assert (first / png_name(index)).read_bytes() == (second / png_name(index)).read_bytes()
    pixels = np.asarray(Image.open(first / png_name(7)))
    assert np.array_equal(pixels, made_image(7, 32))
    assert pixels.std() > 20  # a picture, not a grey square


def test_those_who_come_together_write_one_folder(tmp_path):
    threads = [threading.Thread(target=image_files, args=(4, 16, tmp_path)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.name for path in tmp_path.iterdir()] == ["4x16-v1"]
    assert len(list((tmp_path / "4x16-v1").glob("*.png"))) == 4


def test_what_is_half_written_is_not_taken_for_images(tmp_path):
    (tmp_path / "2x16-v1").mkdir()
    (tmp_path / "2x16-v1" / "left over").touch()
    with pytest.raises(TrainError, match="images cannot be written"):
        image_files(2, 16, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["2x16-v1"]


def test_files_lie_in_the_working_folder_s_results_and_are_written_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = Images(length=2, image_size=16, crop=8)
    assert first.files == tmp_path / "results/.cache/images/2x16-v1"
    monkeypatch.setattr(module, "_write_images", lambda *_: pytest.fail("written again"))
    assert Images(length=2, image_size=16, crop=8, seed=5).files == first.files
    settings = yaml.safe_load((ROOT / "config/data/images.yaml").read_text(encoding="utf-8"))
    assert settings["dataset"]["folder"] == module.FOLDER
    assert "rm -rf results " in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_a_full_disk_is_an_error_and_not_the_end_of_the_process(tmp_path, monkeypatch):
    # What stores into a mapped file on a full disk is killed by a signal.
    monkeypatch.setattr(np, "memmap", lambda *_, **__: pytest.fail("mapped for writing"))
    monkeypatch.setattr(np.lib.format, "open_memmap", lambda *_, **__: pytest.fail("mapped for writing"))
    image_files(2, 16, tmp_path)
    monkeypatch.undo()
    assert np.load(tmp_path / "2x16-v1/images.npy").shape == (2, 16, 16, 3)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(TrainError, match="No space left on device") as caught:
        image_files(3, 16, tmp_path)
    assert "free space" in caught.value.next_step
    assert [path.name for path in tmp_path.iterdir()] == ["2x16-v1"]


def test_mistakes_are_errors(folder, tmp_path):
    with pytest.raises(TrainError, match="png or array"):
        images(folder, stored="jpeg")
    (tmp_path / "file").touch()
    with pytest.raises(TrainError, match=r"set data\.dataset\.folder"):
        images(str(tmp_path / "file"))


def test_a_worker_maps_the_array_itself(folder):
    array = images(folder, stored="array")
    expected = array[3][0]
    sent = pickle.dumps(array)
    assert len(sent) < 2_000
    assert torch.equal(pickle.loads(sent)[3][0], expected)


def test_the_network_makes_a_logit_per_class():
    model = ImageClassifier(width=4, layers=2, halvings=1)
    logits = model(torch.zeros(5, 3, 8, 8))
    assert logits.shape == (5, CLASSES)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
