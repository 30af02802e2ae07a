"""Threads that a program starts find the virtual device, and their syncs stand at their lines."""

import _thread
import inspect
import itertools
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

import pytest
import torch
from torch import nn
from torch.nn.parallel import parallel_apply

from steptrace.predict import predict_syncs, threads


def load():
    return torch.ones(4, 8).to(device="cuda", dtype=torch.bfloat16)


class Loader(threading.Thread):
    def run(self):
        self.loaded = load()


def by_thread():
    thread = Loader()
    thread.start()
    thread.join()
    return thread.loaded


def by_executor():
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(load).result()


def by_pool():
    with ThreadPool(1) as pool:
        return pool.apply(load)


def by_plain_thread():
    loaded = queue.Queue()
    _thread.start_new_thread(lambda: loaded.put(load()), ())
    return loaded.get()


def by_a_thread_s_thread():
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(by_thread).result()


@pytest.mark.parametrize("start", [by_thread, by_executor, by_pool, by_plain_thread, by_a_thread_s_thread])
def test_a_thread_copies_to_the_device_at_its_own_line(start):
    with predict_syncs() as syncs:
        loaded = start()
    assert loaded.device == torch.device("cuda:0")
    assert [(site.kind, site.count, site.function, site.phase) for site in syncs.sites] == [
        ("h2d_copy", 1, "load", "data")
    ]


def test_work_of_no_line_of_its_own_stands_where_it_was_given_away():
    with predict_syncs() as syncs, ThreadPoolExecutor(1) as pool:
        pool.submit(torch.Tensor.cuda, torch.ones(2)).result()
        line = inspect.currentframe().f_lineno - 1
    (site,) = syncs.sites
    assert (site.file, site.line, site.program_file) == (__file__, line, None)


def test_a_pool_of_before_is_followed_and_forgets_the_device_afterwards():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        with predict_syncs() as syncs:
            assert pool.submit(load).result().is_cuda
        assert syncs.total == 1
        with predict_syncs() as again:
            assert pool.submit(load).result().is_cuda
        assert again.total == 1
        with pytest.raises((AssertionError, RuntimeError)):
            pool.submit(load).result()


def test_a_thread_that_goes_on_after_the_prediction_works_on_the_cpu():
    go_on = threading.Event()
    results = []

    def work():
        results.append(load())
        go_on.wait()
        results.append(torch.ones(2) + 1)

    with predict_syncs() as syncs:
        thread = threading.Thread(target=work)
        thread.start()
        while not results:
            time.sleep(0.001)
    go_on.set()
    thread.join()
    assert syncs.total == 1
    assert results[1].tolist() == [2, 2]


def test_a_backward_pass_in_another_thread_is_mapped_to_the_forward_line():
    with predict_syncs() as syncs:
        weight = nn.Parameter(torch.ones(4, 4, device="cuda"))
        picked = weight[weight > 0]
        line = inspect.currentframe().f_lineno - 1
        syncs.reset()
        thread = threading.Thread(target=picked.sum().backward)
        thread.start()
        thread.join()
    assert weight.grad is not None
    assert [(site.line, site.phase) for site in syncs.sites] == [(line, "backward")]


def test_replicas_run_in_threads_in_the_forward_pass():
    with predict_syncs() as syncs:
        model = nn.Linear(8, 8).cuda()
        results = parallel_apply([model] * 2, [(torch.ones(1, 8, device="cuda"),)] * 2, devices=[0, 0])
        syncs.reset()
        sum(results).sum().item()
    assert [site.phase for site in syncs.sites] == ["forward"]


def test_labels_are_those_of_a_thread():
    with predict_syncs() as syncs, torch.profiler.record_function("outer"):
        by_executor()
        load()
    assert {site.label: site.count for site in syncs.sites} == {None: 1, "outer": 1}


def test_a_thread_begins_with_the_first_gpu(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with predict_syncs(), ThreadPoolExecutor(1) as pool:
        assert torch.cuda.current_device() == pool.submit(torch.cuda.current_device).result() == 1
        torch.cuda.set_device(1)
        assert torch.cuda.current_device() == 1
        assert pool.submit(torch.cuda.current_device).result() == 0
        pool.submit(torch.cuda.set_device, 1).result()
        assert pool.submit(load).result().device == torch.device("cuda:1")


def test_a_step_waits_for_the_batch_that_a_thread_makes_meanwhile():
    batches = queue.Queue(2)

    def produce():
        while True:
            time.sleep(0.02)  # reads from a disk
            batches.put(load())

    with predict_syncs() as syncs:
        threading.Thread(target=produce, daemon=True).start()
        totals = []
        for _ in range(4):
            batches.get()
            syncs.settle()
            totals.append(syncs.total)
        assert [after - before for before, after in itertools.pairwise(totals)] == [1, 1, 1]


def test_a_thread_that_never_waits_is_waited_for_once(monkeypatch):
    monkeypatch.setattr(threads, "_MOST_S", 0.01)
    stop = threading.Event()

    def act():
        while not stop.is_set():
            load()

    with predict_syncs() as syncs:
        thread = threading.Thread(target=act)
        thread.start()
        while not syncs.total:
            time.sleep(0.001)
        syncs.settle()
        monkeypatch.setattr(threads, "_MOST_S", 1000)
        syncs.settle()
        stop.set()
        thread.join()
        syncs.settle()
    assert syncs.total


def test_counts_of_several_threads_are_all_there():
    with predict_syncs() as syncs, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: load(), range(200)))
    assert syncs.total == 200
    assert len(syncs.sites) == 1
