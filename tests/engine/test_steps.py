"""The rules by which steps are found, without a training."""

import pytest

from steptrace.engine.steps import Step, StepFinder


class Optimizer:
    pass


class Program:
    """Tells a finder what a program does, in short."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.finder = StepFinder(self.steps.append)
        self.optimizers = {name: Optimizer() for name in "123"}

    def backward(self) -> None:
        self.finder.backward_begins("loss")
        self.finder.backward_ends()

    def update(self, optimizer: Optimizer) -> None:
        self.finder.optimizer_begins()
        self.finder.optimizer_ends()
        self.finder.optimizer_stepped(optimizer)

    def do(self, actions: str) -> None:
        """A letter each: `b` a backward pass, `1` to `3` an optimizer's update, `m` a call of `steptrace.step()`.

        `(` and `)` begin and end a backward pass.
        """
        others = {
            "b": self.backward,
            "m": self.finder.step_marked,
            "(": self.finder.backward_begins,
            ")": self.finder.backward_ends,
        }
        for action in actions:
            if action in self.optimizers:
                self.update(self.optimizers[action])
            else:
                others[action]()


def test_a_step_is_a_call_of_the_optimizer_with_what_led_to_it() -> None:
    program = Program()
    optimizer = Optimizer()
    for _ in range(3):
        program.finder.batch_loaded(10, 4)
        program.finder.batch_loaded(5, 4)
        program.backward()
        program.backward()
        program.update(optimizer)
    assert [(s.backwards, s.batches, s.samples, s.wait_ns, len(s.losses)) for s in program.steps] == [
        (2, 2, 8, 15, 2)
    ] * 3
    assert [s.new_leader for s in program.steps] == [True, False, False]


@pytest.mark.parametrize(
    ("actions", "backwards"),
    [
        pytest.param("b1b1b2" * 3, [1, 1, 1, 3, 3], id="the rarest of several optimizers counts from its first step"),
        pytest.param("b12" * 3, [1, 0, 1, 1], id="of two equally frequent optimizers the later one counts"),
        pytest.param("b111" * 2, [1, 1], id="a call without new gradients goes on with the step"),
        pytest.param("(12)" * 2, [1, 1], id="optimizers within a backward pass end one step after it"),
        pytest.param("bmb1m", [1, 1], id="a program that says its steps knows better"),
        pytest.param("b1m" * 3, [1, 1, 1], id="a step that the optimizer has ended before the mark is one step"),
    ],
)
def test_steps_end_where_the_program_s_own_do(actions: str, backwards: list[int]) -> None:
    program = Program()
    program.do(actions)
    assert [step.backwards for step in program.steps] == backwards


def test_an_optimizer_that_begins_to_step_later_leads_from_then_on() -> None:
    program = Program()
    program.do("b1b1b2" * 3)
    assert [step.new_leader for step in program.steps] == [True, False, True, False, False]


def test_without_any_optimizer_a_backward_pass_ends_a_step_after_a_while() -> None:
    """It may make one within the first 50 yet; once one has stepped, steps are its own."""
    program = Program()
    for _ in range(53):
        program.finder.batch_loaded(1, 2)
        program.backward()
    assert [(s.backwards, s.batches, s.new_leader) for s in program.steps] == [(1, 1, False)] * 3
    program.do("bb1" * 2)
    assert [(s.backwards, s.new_leader) for s in program.steps[3:]] == [(1, False), (1, False), (0, True), (2, False)]


def test_an_optimizer_that_is_there_is_waited_for_however_many_batches_it_adds_up() -> None:
    program = Program()
    program.finder.has_optimizer = True
    program.do(2 * (128 * "b" + "1"))
    assert [s.backwards for s in program.steps] == [128, 128]


def test_an_optimizer_that_hardly_ever_steps_is_no_measure_of_a_step() -> None:
    program = Program()
    program.do("b2" + 300 * "b1")
    assert len(program.steps) == 1 + 201  # from the hundredth call on


def test_an_optimizer_inside_another_one_ends_no_step() -> None:
    program = Program()
    outer = Optimizer()
    inner = Optimizer()
    for _ in range(2):
        program.backward()
        program.finder.optimizer_begins()
        program.update(inner)
        program.finder.optimizer_ends()
        program.finder.optimizer_stepped(outer)
    assert len(program.steps) == 2
    assert [count for _, count in program.finder.optimizers] == [2]


def test_a_skipped_step_is_a_step_with_the_loss_before_it_was_scaled() -> None:
    program = Program()
    optimizer = Optimizer()
    program.finder.loss_scaled("unscaled")
    program.backward()
    program.finder.optimizer_stepped(optimizer, skipped=True)
    assert [(s.skipped, s.losses) for s in program.steps] == [(True, ["unscaled"])]


def test_optimizers_are_counted_where_the_program_says_its_steps_too() -> None:
    program = Program()
    critic = program.optimizers["1"]
    generator = program.optimizers["2"]
    program.do("b1m" + 3 * "b12m" + "b")
    program.finder.optimizer_stepped(critic, skipped=True)
    program.finder.step_marked()
    assert [count for _, count in program.finder.optimizers] == [5, 3]
    assert program.finder.live_optimizers == [critic, generator]
    assert [step.skipped for step in program.steps] == [False] * 4 + [True]


def test_a_program_that_makes_a_new_optimizer_each_step_is_no_endless_beginning() -> None:
    program = Program()
    optimizers = [Optimizer() for _ in range(50)]
    for optimizer in optimizers:
        program.backward()
        program.update(optimizer)
    assert [step.new_leader for step in program.steps] == [True] * 20 + [False] * 30


def test_an_optimizer_that_is_gone_is_no_longer_held_and_has_stepped_all_the_same() -> None:
    program = Program()
    program.backward()
    program.update(Optimizer())
    assert (program.finder.live_optimizers, program.finder.optimizers) == ([], [("Optimizer", 1)])
    program.do("b2")
    assert program.finder.live_optimizers == [program.optimizers["2"]]
    assert len(program.steps) == 2


def test_once_settled_no_other_optimizer_ends_a_step() -> None:
    program = Program()
    program.do("b1")
    program.finder.settle()
    program.do("b1b2" * 2)
    assert len(program.steps) == 3


def test_the_replay_of_a_graph_with_an_optimizer_s_step_ends_a_step() -> None:
    """Three steps before the capture, the capture, and the replays, the first of which begins anew."""
    program = Program()
    program.do("b1b1b1b1")
    for _ in range(3):
        program.finder.graph_replayed(1, [program.optimizers["1"]])
    assert [step.new_leader for step in program.steps] == [True, False, False, False, True, False, False]
    assert all(step.backwards == 1 for step in program.steps)
