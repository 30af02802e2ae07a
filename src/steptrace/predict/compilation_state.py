"""What a prediction knows of the code that the program compiles. `steptrace.predict.compiled` fills it."""

from typing import Any

from steptrace.documents.compiled import FIRST_CALL, RUNS_UNCOMPILED, CompiledCode, CompiledStep
from steptrace.predict.guards import CompiledKinds


class CompilationState:
    """The compiled code of a followed program.

    Attributes:
        is_followed: whether kernels and graph breaks of compiled code are found.
        compiles_modules: whether modules are followed as if the program compiled them, beside its step as it is.
        codes: the code that the program compiles.
        stance: the program's stance on compiling, as PyTorch notes it; None as long as it has set none.
        originals: PyTorch's attributes as they are without a prediction, by owner and name.
        code_state: which sizes and numbers of compiled code have varied so far, in PyTorch's own form; None for none.
        specialized_numbers: Dynamo's names of numbers that it has found to be constants.
        guarded_code: what each piece of code was compiled for, by its code object and settings.
    """

    def __init__(self) -> None:
        self.is_followed = False
        self.compiles_modules = False
        self.codes: list[CompiledCode] = []
        self.stance: Any = None
        self.originals: dict[tuple[Any, str], Any] = {}
        self.code_state: Any = None
        self.specialized_numbers: frozenset[str] = frozenset()
        self.guarded_code: dict[object, CompiledKinds] = {}
        self._calls = 0

    def next_call(self) -> int:
        """A number for a call of compiled code."""
        self._calls += 1
        return self._calls

    def set_stance(self, stance: Any) -> Any:
        """Set the program's stance on compiling, and return the one before."""
        before = self.stance
        self.stance = stance
        return before

    def pass_of(self, region: Any, *, is_backward: bool) -> tuple[int, int | None] | None:
        """The forward or backward pass of compiled code that an operator belongs to, for `OperatorLog.add`.

        Args:
            region: the call of compiled code; None outside of any.
            is_backward: whether the operator is one of the call's backward pass.

        Returns:
            The number of this pass, and the one that stands for it in a queue, None if its kernels are not known. None
            if the operator runs uncompiled.
        """
        if region is None or region.code is None:
            return None
        code = self.codes[region.code]
        if code.unlowered in RUNS_UNCOMPILED:
            return None
        number = 2 * region.serial + is_backward
        return number, None if code.kernels is None else FIRST_CALL - 2 * region.code - is_backward

    def step(self, *, queue: tuple[int, ...], fused_queue: tuple[int, ...]) -> CompiledStep | None:
        """The followed steps with compiled code; None where nothing was compiled, or compiled code is not followed.

        Args:
            queue: calls and syncs in their order, with calls of compiled code (`OperatorLog.compiled_queue`).
            fused_queue: the same for code without known kernels (`OperatorLog.fused_queue`).
        """
        if not self.codes:
            return None
        is_whole = all(code.is_known for code in self.codes)
        return CompiledStep(
            codes=tuple(self.codes),
            queue=queue,
            fused_queue=() if is_whole else fused_queue,
            is_asked=self.compiles_modules,
            recompilations=sum(guard.recompilations for code in self.codes for guard in code.recompilations),
        )

    def forget(self) -> None:
        """Forget what code was compiled for, as PyTorch does where a program asks for it. What was found stays."""
        self.guarded_code.clear()
        self.code_state = None
        self.specialized_numbers = frozenset()
