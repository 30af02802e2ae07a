"""The rules by which steps are found, without a training."""

from steptrace.engine.steps import Step, StepFinder


class Optimizer:
    pass


class Program:
    """Tells a finder what a program does, in short."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.finder = StepFinder(self.steps.append)

    def backward(self) -> None:
        self.finder.backward_begins("loss")
        self.finder.backward_ends()

    def update(self, optimizer: Optimizer) -> None:
        self.finder.optimizer_begins()
        self.finder.optimizer_ends()
        self.finder.optimizer_stepped(optimizer)


def test_a_step_is_a_call_of_the_optimizer_with_what_led_to_it() -> None:
    program, optimizer = Program(), Optimizer()
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


def test_the_rarest_of_several_optimizers_counts_from_its_first_step_on() -> None:
    program, critic, generator = Program(), Optimizer(), Optimizer()
    for _ in range(3):
        for optimizer in (critic, critic, generator):
            program.backward()
            program.update(optimizer)
    assert [s.backwards for s in program.steps] == [1, 1, 1, 3, 3]
    assert [s.new_leader for s in program.steps] == [True, False, True, False, False]


def test_of_two_equally_frequent_optimizers_the_later_one_counts() -> None:
    program, first, second = Program(), Optimizer(), Optimizer()
    for _ in range(3):
        program.backward()
        program.update(first)
        program.update(second)
    assert [s.backwards for s in program.steps] == [1, 0, 1, 1]


def test_without_any_optimizer_a_backward_pass_ends_a_step_after_a_while() -> None:
    """It may make one within the first 50 yet; once one has stepped, steps are its own."""
    program, optimizer = Program(), Optimizer()
    for _ in range(53):
        program.finder.batch_loaded(1, 2)
        program.backward()
    assert [(s.backwards, s.batches, s.new_leader) for s in program.steps] == [(1, 1, False)] * 3
    for _ in range(2):
        program.backward()
        program.backward()
        program.update(optimizer)
    assert [(s.backwards, s.new_leader) for s in program.steps[3:]] == [(1, False), (1, False), (0, True), (2, False)]


def test_an_optimizer_that_is_there_is_waited_for_however_many_batches_it_adds_up() -> None:
    program, optimizer = Program(), Optimizer()
    program.finder.has_optimizer = True
    for _ in range(2):
        for _ in range(128):
            program.backward()
        program.update(optimizer)
    assert [s.backwards for s in program.steps] == [128, 128]


def test_an_optimizer_that_hardly_ever_steps_is_no_measure_of_a_step() -> None:
    program, often, seldom = Program(), Optimizer(), Optimizer()
    program.backward()
    program.update(seldom)
    for _ in range(300):
        program.backward()
        program.update(often)
    assert len(program.steps) == 1 + 201  # from the hundredth call on


def test_a_call_without_new_gradients_goes_on_with_the_step() -> None:
    program, optimizer = Program(), Optimizer()
    for _ in range(2):
        program.backward()
        for _ in range(3):
            program.update(optimizer)
    assert len(program.steps) == 2


def test_optimizers_within_a_backward_pass_end_one_step_after_it() -> None:
    program, optimizers = Program(), [Optimizer(), Optimizer()]
    for _ in range(2):
        program.finder.backward_begins()
        for optimizer in optimizers:
            program.update(optimizer)
        assert program.finder.in_backward
        program.finder.backward_ends()
    assert len(program.steps) == 2


def test_an_optimizer_inside_another_one_ends_no_step() -> None:
    program, outer, inner = Program(), Optimizer(), Optimizer()
    for _ in range(2):
        program.backward()
        program.finder.optimizer_begins()
        program.update(inner)
        program.finder.optimizer_ends()
        program.finder.optimizer_stepped(outer)
    assert len(program.steps) == 2
    assert [count for _, count in program.finder.optimizers] == [2]


def test_a_skipped_step_is_a_step_with_the_loss_before_it_was_scaled() -> None:
    program, optimizer = Program(), Optimizer()
    program.finder.loss_scaled("unscaled")
    program.backward()
    program.finder.optimizer_stepped(optimizer, skipped=True)
    assert [(s.skipped, s.losses) for s in program.steps] == [(True, ["unscaled"])]


def test_a_program_that_says_its_steps_knows_better() -> None:
    program, optimizer = Program(), Optimizer()
    program.backward()
    program.finder.step_marked()
    program.backward()
    program.update(optimizer)
    program.finder.step_marked()
    assert [s.backwards for s in program.steps] == [1, 1]


def test_a_step_that_the_optimizer_has_ended_before_the_program_says_so_is_one_step() -> None:
    program, optimizer = Program(), Optimizer()
    for _ in range(3):
        program.backward()
        program.update(optimizer)
        program.finder.step_marked()
    assert [len(s.losses) for s in program.steps] == [1, 1, 1]


def test_optimizers_are_counted_where_the_program_says_its_steps_too() -> None:
    program, critic, generator = Program(), Optimizer(), Optimizer()
    for number in range(4):
        program.backward()
        program.update(critic)
        if number:
            program.update(generator)
        program.finder.step_marked()
    program.backward()
    program.finder.optimizer_stepped(critic, skipped=True)
    program.finder.step_marked()
    assert [count for _, count in program.finder.optimizers] == [5, 3]
    assert program.finder.live_optimizers == [critic, generator]
    assert [step.skipped for step in program.steps] == [False] * 4 + [True]


def test_a_program_that_makes_a_new_optimizer_each_step_is_no_endless_beginning() -> None:
    program, optimizers = Program(), [Optimizer() for _ in range(50)]
    for optimizer in optimizers:
        program.backward()
        program.update(optimizer)
    assert [step.new_leader for step in program.steps] == [True] * 20 + [False] * 30


def test_an_optimizer_that_is_gone_is_no_longer_held_and_has_stepped_all_the_same() -> None:
    program, second = Program(), Optimizer()
    program.backward()
    program.update(Optimizer())
    assert (program.finder.live_optimizers, program.finder.optimizers) == ([], [("Optimizer", 1)])
    program.backward()
    program.update(second)
    assert program.finder.live_optimizers == [second]
    assert len(program.steps) == 2


def test_once_settled_no_other_optimizer_ends_a_step() -> None:
    program, first, second = Program(), Optimizer(), Optimizer()
    program.backward()
    program.update(first)
    program.finder.settle()
    for optimizer in (first, second, first, second):
        program.backward()
        program.update(optimizer)
    assert len(program.steps) == 3
