"""Each message of another library that is read, as the installed library says it; and no other text of an error is."""

import ast
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_args

import hydra
import msgspec
import pytest
import torch
from hydra.errors import HydraException
from msgspec import Meta
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import nn
from torch.nn.attention import flex_attention

import steptrace
from steptrace import foreign_messages as messages
from steptrace.documents.compilations import GuardKind
from steptrace.predict import predict_syncs

SOURCES = Path(steptrace.__file__).parent


class Colour(Enum):
    """A choice."""

    RED = "red"


class Fields(msgspec.Struct, forbid_unknown_fields=True):
    """What msgspec can refuse."""

    name: str
    colour: Colour = Colour.RED
    form: Annotated[str, Meta(pattern="^[a-z]+$")] = "a"


def refused(content: object) -> str:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(content, Fields)
    return str(caught.value)


def test_hydra_says_which_name_does_not_exist_and_in_which_file(tmp_path: Path) -> None:
    (tmp_path / "loss").mkdir()
    (tmp_path / "config.yaml").write_text("defaults:\n- loss: no_such\n- _self_\n")
    with pytest.raises(HydraException) as caught, hydra.initialize_config_dir(str(tmp_path), version_base="1.3"):
        hydra.compose("config")
    text = str(caught.value)
    name = messages.HYDRA_NO_SUCH_NAME.find(text)
    file = messages.HYDRA_IN_FILE.find(text)
    assert name is not None
    assert name["name"] == "loss/no_such"
    assert file is not None
    assert file["file"] == "config"
    assert str(tmp_path) in text
    assert str(tmp_path) not in messages.HYDRA_FOLDERS.pattern.sub("", text)


def test_omegaconf_says_the_place_in_lines_of_its_own() -> None:
    with pytest.raises(OmegaConfBaseException) as caught:
        OmegaConf.to_container(OmegaConf.create({"a": {"b": "${no.such}"}}), resolve=True)
    lines = str(caught.value).splitlines()
    assert [messages.OMEGACONF_PLACE.find(line) is not None for line in lines] == [False, *[True] * (len(lines) - 1)]
    assert len(lines) > 1


def test_msgspec_names_the_field() -> None:
    unknown = messages.MSGSPEC_WRONG_NAME.find(refused({"name": "a", "nam": 1}))
    missing = messages.MSGSPEC_MISSING_FIELD.find(refused({}))
    assert unknown is not None
    assert unknown["key"] == "nam"
    assert missing is not None
    assert missing["key"] == "name"


def test_msgspec_ends_a_message_with_the_place_of_the_value() -> None:
    wrong = refused({"name": "a", "colour": "blue"})
    choice = messages.MSGSPEC_WRONG_NAME.find(messages.MSGSPEC_PLACE.pattern.sub("", wrong))
    assert choice is not None
    assert choice["value"] == "blue"
    form = messages.MSGSPEC_PLACE.pattern.sub("", refused({"name": "a", "form": "A"}))
    assert "colour" not in form
    assert "[a-z]" in form
    assert "[a-z]" not in messages.MSGSPEC_PATTERN.pattern.sub("", form)


def test_msgspec_says_that_json_ends_too_early() -> None:
    for text, ends_early in ((b'{"a": 1', True), (b'{"a": ]', False)):
        with pytest.raises(msgspec.DecodeError) as caught:
            msgspec.json.decode(text)
        assert (messages.MSGSPEC_TRUNCATED.find(caught.value) is not None) is ends_early


def test_pytorch_warns_of_flex_attention_that_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex_attention, "_WARNINGS_SHOWN", set(), raising=False)  # it warns once in a process
    tensor = torch.ones(1, 1, 2, 16)
    with pytest.warns(UserWarning, match=messages.TORCH_MISSES_CUDA.pattern):
        flex_attention.flex_attention(tensor, tensor, tensor)


def test_pytorch_cannot_swap_a_parameter_that_a_graph_holds() -> None:
    module = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    held = module.weight.expand_as(module.weight)  # the graph holds the parameters
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with pytest.raises(RuntimeError) as caught:
            module.double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
    assert messages.TORCH_CANNOT_SWAP.find(caught.value) is not None
    assert held.requires_grad


def test_pytorch_names_the_kind_of_tensors_that_an_operator_does_not_take() -> None:
    with pytest.raises(NotImplementedError) as caught:
        torch.lgamma(torch.eye(2).to_sparse())
    found = messages.TORCH_MISSES_KERNEL.find(caught.value)
    assert found is not None
    assert (found["operator"], found["kind"]) == ("lgamma", "Sparse")


class Counting(nn.Module):
    """Has an attribute that Dynamo takes for a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    torch._dynamo.graph_break()
    return y * 3


@pytest.fixture
def compilations() -> Iterator[Callable[[], list[Any]]]:
    """Returns what Dynamo has said of each compilation so far."""
    torch._dynamo.reset()
    torch._dynamo.utils.clear_compilation_metrics()
    yield torch._dynamo.utils.get_compilation_metrics
    torch._dynamo.reset()


def test_dynamo_says_that_a_function_is_not_compiled_again_and_which_guard_has_failed(
    compilations: Callable[[], list[Any]],
) -> None:
    run = torch.compile(Counting(), backend="eager")
    with torch._dynamo.config.patch(recompile_limit=2):
        for _ in range(4):
            run(torch.ones(3))
    said = compilations()
    assert any(messages.DYNAMO_LIMIT.find(one.fail_reason or "") for one in said)
    reason = next(one.recompile_reason for one in said if one.recompile_reason)
    assert messages.DYNAMO_COMPILATION.find(reason) is not None
    assert messages.DYNAMO_OF_MODULE.find(reason) is not None
    files = [line["file"] for line in messages.DYNAMO_LINE_OF_GUARD.pattern.finditer(reason)]
    assert __file__ in files


def test_dynamo_says_that_code_asks_for_a_graph_break_gives_hints_and_names_the_code_after_it(
    compilations: Callable[[], list[Any]],
) -> None:
    torch.compile(broken, backend="eager")(torch.ones(3))
    resumed = [messages.DYNAMO_RESUMED.find(one.co_name or "") for one in compilations()]
    assert [found["function"] for found in resumed if found is not None] == ["broken"]
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported) as caught:
        torch.compile(broken, backend="eager", fullgraph=True)(torch.ones(3))
    assert messages.DYNAMO_HINT.find(caught.value) is not None
    assert messages.DYNAMO_ASKED_FOR.find(caught.value.gb_type) is not None


def test_each_pattern_of_a_guard_names_a_kind_of_the_record() -> None:
    """tests/engine/test_compilations.py makes Dynamo say the guards themselves."""
    assert {kind for kind, _ in messages.DYNAMO_GUARDS} <= set(get_args(GuardKind))


def test_out_of_memory_is_seen_in_pytorch_s_own_error() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert messages.OUT_OF_MEMORY.find(caught.value) is not None
    assert messages.OUT_OF_MEMORY.find(f"{torch.OutOfMemoryError.__name__}: any text") is not None
    assert messages.OUT_OF_MEMORY.find("RuntimeError: a file of memory") is None


def test_a_gpu_that_is_missing_is_seen_in_the_words_of_pytorch_and_of_programs() -> None:
    with predict_syncs(), pytest.raises(RuntimeError) as caught:  # the one virtual GPU says it as CUDA does
        torch.ones(2, device="cuda:1")
    assert messages.GPU_IS_MISSING.find(caught.value) is not None
    with predict_syncs(), pytest.raises(RuntimeError) as caught:
        torch.cuda.set_device(7)
    assert messages.GPU_IS_MISSING.find(caught.value) is not None


@pytest.mark.parametrize(
    ("text", "is_missing"),
    [
        ("CUDA error: invalid device ordinal", True),
        ("Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cuda:1!", True),
        ("This example needs at least 2 GPUs, found 1", True),
        ("requires a GPU per rank", True),
        ("No module named 'gpustat'", False),
        ("cudaMalloc failed", False),
        ("shape '[2, 3]' is invalid for input of size 4", False),
    ],
)
def test_the_texts_that_are_about_gpus(text: str, is_missing: bool) -> None:  # noqa: FBT001 - a parameter of the test
    assert (messages.GPU_IS_MISSING.find(text) is not None) is is_missing


@pytest.mark.parametrize(
    ("line", "is_error"),
    [
        ("ValueError: no such thing", True),
        ("torch.OutOfMemoryError: CUDA out of memory", True),
        ("KeyboardInterrupt", True),
        ("error: the config cannot be read", True),
        ("main.cu:3:5: fatal error: no such file", True),
        ("  ValueError: quoted in a log", False),
        ("step 3: error 0.5", False),
    ],
)
def test_the_line_of_an_error(line: str, is_error: bool) -> None:  # noqa: FBT001 - a parameter of the test
    assert (messages.ERROR_LINE.find(line) is not None) is is_error


def _reads_text(node: ast.AST) -> bool:
    """Whether an expression asks what the text of an error says, by `in` or by a method of strings."""

    def is_text(part: ast.AST) -> bool:
        called = part.func if isinstance(part, ast.Call) else None
        return isinstance(called, ast.Name) and called.id == "str" and ast.unparse(part) in ("str(error)", "str(e)")

    if isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant):
        return any(isinstance(op, ast.In | ast.NotIn) for op in node.ops) and any(map(is_text, node.comparators))
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    asked: list[Any] = [node.func.value] if node.func.attr in ("startswith", "endswith") else []
    if node.func.attr in ("search", "match", "fullmatch"):
        asked = node.args
    return any(map(is_text, asked))


def test_no_other_module_reads_the_text_of_an_error() -> None:
    readers = [
        f"{path.relative_to(SOURCES)}:{node.lineno}"
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.expr) and _reads_text(node)
    ]
    assert readers == []
    assert _reads_text(ast.parse('"a" in str(error)', mode="eval").body)
    assert _reads_text(ast.parse('str(error).startswith("a")', mode="eval").body)
