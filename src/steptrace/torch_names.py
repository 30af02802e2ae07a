"""The names of PyTorch that steptrace uses although PyTorch does not document them.

Any release of PyTorch may rename or remove such a name. So each one has a row here: what it is used for, the releases
that were seen to have it, and what is lost without it. Modules of `steptrace.predict` get these names from `private`
alone, which returns None where PyTorch has none. A missing name then costs the feature that needs it. The answer says
so (`missing`). A prediction is refused only without a name that is `needed`.

Does not import PyTorch before it is asked for a name.
"""

import importlib
import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, Literal

#: The first and the last release that all rows were tried on; a row names its own where it differs.
OLDEST: Final = (2, 11)
NEWEST: Final = (2, 14)
#: The label that predictions give to the work of a SyncBatchNorm, for which PyTorch has no label: its function's name.
SYNC_BATCH_NORM: Final = "SyncBatchNorm.forward"

#: What uses a name: a prediction, one on several ranks, the kernels of compiled code, a measurement, or one on a GPU,
#: whose names a build for the CPU does not have.
Area = Literal["predict", "ranks", "compile", "measure", "cuda"]


@dataclass(frozen=True)
class PrivateName:
    """One name.

    Attributes:
        owner: the module, class or object that has it, from `torch` on.
        attribute: its name there.
        reason: what it is used for.
        lost: what is lost where PyTorch does not have it.
        needed: whether nothing can be predicted without it.
        area: what uses it.
        since: the first release that has it.
        until: the last release that has it.
    """

    owner: str
    attribute: str
    reason: str
    lost: str
    needed: bool = False
    area: Area = "predict"
    since: tuple[int, int] = OLDEST
    until: tuple[int, int] = NEWEST

    @property
    def path(self) -> str:
        """Owner and attribute, as Python writes them."""
        return f"{self.owner}.{self.attribute}"

    def is_expected_in(self, version: str) -> bool:
        """Whether a release should have it: all later ones than were tried should."""
        release = release_of(version)
        return self.since <= release and (release <= self.until or self.until == NEWEST)


def release_of(version: str) -> tuple[int, int]:
    """The first two numbers of a version of PyTorch, such as "2.13.0+cpu"."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _rows(reason: str, lost: str, *paths: str, **more: Any) -> tuple[PrivateName, ...]:
    """A row for each of some names that are used and lost together."""
    return tuple(PrivateName(*path.rpartition(".")[::2], reason, lost, **more) for path in paths)


_DEVICE: Final = "no device can be registered, so nothing can be predicted"
_NO_SYNCS: Final = "the counts may be wrong"
_BACKWARD_LINES: Final = "work of the backward pass is taken for work of the forward pass"

NAMES: Final[tuple[PrivateName, ...]] = (
    # The virtual device.
    *_rows(
        "the virtual device is PyTorch's spare backend, implemented in Python",
        _DEVICE,
        "torch._C._acc.PrivateUse1Hooks",
        "torch._C._acc.DeviceGuard",
        "torch._C._acc.register_python_privateuseone_hook",
        "torch._C._acc.register_python_privateuseone_device_guard",
        "torch._C._autograd.DeviceType",
        "torch.utils.backend_registration.rename_privateuse1_backend",
        needed=True,
    ),
    *_rows(
        "a tensor of the device holds one of the CPU, and its operators come by in Python",
        "no tensor can be on the device, so nothing can be predicted",
        "torch.Tensor._make_wrapper_subclass",
        "torch.utils._python_dispatch.TorchDispatchMode",
        needed=True,
    ),
    *_rows(
        "what an operator takes, returns and writes to is read from its schema",
        "no operator can be run on the device, so nothing can be predicted",
        "torch.ops.aten.detach.default._schema",
        needed=True,
    ),
    *_rows(
        "what is asked of tensors inside an operator is not the program's",
        "questions within operators take longer",
        "torch._C.DisableTorchFunction",
    ),
    *_rows(
        "functions of PyTorch see a tensor of the device as any other",
        "calls on tensors of the device take longer",
        "torch._C._disabled_torch_function_impl",
    ),
    *_rows(
        "a program makes tensors of a class of its own by calling that class",
        "such a call fails, as of torch.nn.attention.bias.causal_lower_right",
        "torch._C._DisableTorchDispatch",
    ),
    *_rows(
        "a conjugate or negative view is one for PyTorch's C++, too, which copies its values where they are needed",
        "kernels that resolve conjugate views are not counted, and view_as_real refuses such a view",
        "torch._C._set_conj",
        "torch._C._set_neg",
    ),
    *_rows(
        "the parts of a sparse tensor are checked on the CPU when a file is loaded",
        "from PyTorch 2.14 on, a program that loads a sparse tensor onto the GPU fails",
        "torch._validate_sparse_coo_tensor_args",
    ),
    *_rows(
        "whether another library has taken the spare backend",
        "a conflict with another library's device is not told in plain words",
        "torch._C._get_privateuse1_backend_name",
    ),
    *_rows(
        "PyTorch answers which accelerator it has",
        "code that asks for the accelerator may find none",
        "torch._C._get_accelerator",
        "torch._C._accelerator_getAccelerator",
    ),
    *_rows(
        "torch.accelerator answers after a prediction as before it",
        "after a prediction torch.accelerator, and with it torch.compile, may fail in a process with a real GPU",
        "torch._C._accelerator_getDeviceIndex",
        "torch._C._accelerator_setDeviceIndex",
        "torch._C._accelerator_getStream",
        "torch._C._accelerator_setStream",
        "torch._C._accelerator_synchronizeDevice",
        "torch._C._accelerator_exchangeDevice",
        "torch._C._accelerator_maybeExchangeDevice",
        "torch.cuda._exchange_device",
        "torch.cuda._maybe_exchange_device",
    ),
    *_rows(
        "answers about the accelerator that PyTorch remembers are forgotten at a prediction's ends",
        "code may get an answer about the accelerator that PyTorch gave before the prediction",
        "torch._utils._get_device_module",
        "torch.cuda._check_bf16_tensor_supported",
    ),
    *_rows(
        "launches of kernels that a program compiles itself are noted",
        "programs that compile their own kernels fail",
        "torch.cuda._compile_kernel",
    ),
    *_rows(
        "errors of a backward pass reach the program as they are",
        "a program that fails in its backward pass may end without its error",
        "torch.autograd.Variable._execution_engine",
    ),
    *_rows(
        "a tensor's device and data are read and set past its class",
        "nested and distributed tensors, and tensors that change sides, may name another device",
        "torch._C.TensorBase",
    ),
    # What is called and where.
    *_rows(
        "the running autograd node tells that a backward pass runs, and whose",
        _BACKWARD_LINES,
        "torch._C._current_autograd_node",
    ),
    *_rows(
        "the line of the forward pass is kept with each autograd node",
        "lines of the backward pass are those that called it",
        "torch.fx.traceback.format_stack",
    ),
    *_rows(
        "a batch arrives from a loader",
        "what copies a batch may be taken for the forward pass",
        "torch.utils.data.dataloader._BaseDataLoaderIter",
    ),
    *_rows(
        "the arguments of `to` are read as PyTorch reads them",
        "modules that are moved to the device may fail",
        "torch._C._nn._parse_to",
    ),
    *_rows(
        "attention, one_hot and cross_entropy take the way that they take on CUDA",
        "attention is made of plain products, one_hot compares instead of scattering, a sync of cross_entropy is lost",
        "torch._C._nn.scaled_dot_product_attention",
        "torch._C._nn.one_hot",
        "torch._C._nn.cross_entropy_loss",
    ),
    *_rows(
        "attention and encoder layers in inference launch what their fast path does",
        "attention and encoder layers in inference launch more than on CUDA",
        "torch._native_multi_head_attention",
        "torch._transformer_encoder_layer_fwd",
        "torch._transform_bias_rescale_qkv",
        "torch._masked_softmax",
        "torch._addmm_activation",
        "torch.overrides.has_torch_function",
    ),
    *_rows(
        "what a composite operator is made of runs as PyTorch's C++ makes it",
        "in inference mode some operators are made of others than on CUDA",
        "torch.ops.aten.detach.default._op_dk",
        "torch._C.DispatchKey",
    ),
    *_rows(
        "whether an operator is made of others, and whether the CPU has a kernel of it",
        "in inference mode operators that are made of others are counted as one",
        "torch._C._dispatch_has_kernel_for_dispatch_key",
    ),
    *_rows(
        "whether a transform of functions (torch.func) is running",
        "the gradients of prod and cumprod under torch.func count syncs that PyTorch does not make",
        "torch._C._are_functorch_transforms_active",
    ),
    *_rows(
        "a custom operator that is written in Python runs its own code",
        "custom operators are counted as unknown",
        "torch._library.custom_ops.OPDEFS",
        "torch._library.custom_ops.CustomOpDef",
        "torch._C._EnableTorchFunction",
    ),
    *_rows(
        "a Triton kernel within `wrap_triton` is launched as any other",
        "a launch of such a kernel outside of a trace fails",
        "torch._library.triton.is_wrap_triton_enabled",
    ),
    *_rows(
        "gradients on the host are left out where tensors have no values",
        "programs that trace with fake tensors may fail",
        "torch._subclasses.FakeTensor",
    ),
    *_rows(
        "whether two tensors share memory",
        "copies of a tensor to itself may be counted",
        "torch.UntypedStorage._cdata",
    ),
    *_rows(
        "values of sparse tensors are counted",
        "the syncs of sparse products are counted as if they were not coalesced",
        "torch.Tensor._nnz",
    ),
    *_rows(
        "whether a program that failed fails on the CPU as well",
        "a failure of the program's may be reported as steptrace's",
        "torch.utils._pytree.tree_map",
    ),
    # Modules, optimizers, storages.
    *_rows(
        "a copy to the device by torch.tensor shows as an operator",
        _NO_SYNCS + ": torch.tensor(..., device='cuda') is not counted",
        "torch._C._only_lift_cpu_tensors",
        "torch._C._set_only_lift_cpu_tensors",
    ),
    *_rows(
        "clipping of gradients and averages of weights choose their forms for lists of tensors",
        "they run a kernel for each tensor, and the estimate is too high",
        "torch._C._group_tensors_by_device_and_dtype",
    ),
    *_rows(
        "modules keep their parameters as they are moved",
        "lazy modules, and modules that are moved in inference mode, may fail",
        "torch.nn.Module._apply",
        "torch.Tensor._make_subclass",
        "torch._C._swap_tensor_impl",
        "torch.nn.parameter.UninitializedTensorMixin",
    ),
    *_rows(
        "torch.cond, while_loop, scan, associative_scan and map run as they are written",
        "programs with one of these functions fail",
        "torch._higher_order_ops.cond.cond_op",
        "torch._higher_order_ops.while_loop.while_loop_op",
        "torch._higher_order_ops.scan.scan_op",
        "torch._higher_order_ops.associative_scan.associative_scan_op",
        "torch._higher_order_ops.map.map_impl",
    ),
    *_rows(
        "flex_attention runs as it is written",
        "programs with flex_attention may fail in their backward pass",
        "torch.nn.attention.flex_attention.flex_attention_hop",
        "torch.nn.attention.flex_attention.BlockMask",
        "torch._higher_order_ops.flex_attention.sdpa_dense",
    ),
    *_rows(
        "torch.compile of a module gives a module of the same kind as without steptrace",
        "a compiled module is the module itself, without `_orig_mod` in its names",
        "torch._dynamo.eval_frame.OptimizedModule",
    ),
    *_rows(
        "code that a program compiles is found by the function to which torch.compile leaves its work",
        "compiled code counts as uncompiled",
        "torch._dynamo.optimize",
    ),
    *_rows(
        "PyTorch says whether compiling is switched off",
        "code that a setting keeps from being compiled counts as compiled",
        "torch._dynamo.eval_frame._NullDecorator",
    ),
    *_rows(
        "a program has its own stance on compiling (torch.compiler.set_stance)",
        "code counts as compiled where the program's stance forbids it, and PyTorch may compile during a prediction",
        "torch._dynamo.decorators._set_stance",
    ),
    *_rows(
        "storages move between the host and the device, as torch.save and torch.load do",
        "a checkpoint is loaded to the CPU, and what saving copies is not counted",
        "torch.storage._StorageBase",
        "torch.Tensor._reduce_ex_internal",
    ),
    # Attention, mixed precision, operators that only a GPU has.
    *_rows(
        "which form of attention is on, and in which order they are tried",
        "attention is made of plain products",
        "torch._C._get_sdp_priority_order",
        "torch._C._get_math_sdp_enabled",
        "torch._C._get_flash_sdp_enabled",
        "torch._C._get_mem_efficient_sdp_enabled",
        "torch._C._get_cudnn_sdp_enabled",
    ),
    *_rows(
        "a program asks which form of attention takes its tensors",
        "the program is told what holds without a GPU",
        "torch._C._is_flash_attention_available",
        "torch._C._can_use_flash_attention",
        "torch._C._can_use_mem_efficient_attention",
        "torch._C._can_use_cudnn_attention",
    ),
    *_rows(
        "autocast on the device casts what CUDA's casts",
        "autocast leaves all types as they are",
        "torch._C._ExcludeDispatchKeyGuard",
    ),
    *_rows(
        "autocast on the device, and nested tensors of the strided layout",
        "autocast leaves all types as they are, and programs with such nested tensors fail",
        "torch._C.DispatchKeySet",
    ),
    *_rows(
        "nested tensors of the strided layout are copied to another device as one",
        "nested tensors that are made of tensors on another device may name the wrong device",
        "torch._nested_tensor_from_tensor_list",
    ),
    *_rows(
        "the backward pass of rms_norm",
        "programs with rms_norm fail in their backward pass",
        "torch._decomp.decompositions._fused_rms_norm_backward",
    ),
    *_rows(
        "what CUDA answers where it has no deterministic algorithm",
        "a program that asks for deterministic algorithms is not stopped where CUDA has none",
        "torch._prims_common.alert_not_deterministic",
    ),
    *_rows(
        "what a build with CUDA says of itself",
        "the program is told that PyTorch was built without CUDA",
        "torch._C._has_cuda",
        "torch._C._has_cudnn",
    ),
    *_rows(
        "a program chooses a library for products and for linear algebra, as a build with CUDA lets it",
        "a program that chooses cuSOLVER or cuBLASLt ends with an error of the build for the CPU",
        "torch._C._set_blas_preferred_backend",
        "torch._C._set_linalg_preferred_backend",
    ),
    *_rows(
        "libraries call it, or PyTorch's Python where it takes CUDA to be there",
        "a program that reaches it ends with an AttributeError on a build for the CPU",
        "torch._C._cuda_getCompiledVersion",
        "torch._C._cuda_getCurrentRawStream",
        "torch._C._cuda_getDevice",
        "torch._C._cuda_getDeviceCount",
        "torch._C._cuda_get_cudnn_benchmark_limit",
        "torch._C._cuda_setDevice",
        "torch._C._cuda_set_cudnn_benchmark_limit",
        "torch._C._cuda_sleep",
        "torch._C._cuda_synchronize",
        area="cuda",
    ),
    *_rows(
        "libraries ask for the workspaces of cuBLAS",
        "a program that asks ends with an AttributeError on a build for the CPU",
        "torch._C._cuda_getCublasLtWorkspaceSize",
        "torch._C._cuda_getCublasWorkspaceSize",
        area="cuda",
        since=(2, 13),
    ),
    # Several ranks.
    *_rows(
        "ranks talk by gloo, and see the backend that they asked for",
        "programs with several ranks cannot ask for NCCL",
        "torch.distributed.distributed_c10d._new_process_group_helper",
        "torch.distributed.distributed_c10d._get_object_coll_device",
        "torch.distributed.distributed_c10d._get_default_timeout",
        "torch.distributed.distributed_c10d._get_default_group",
        "torch.distributed.distributed_c10d._world",
        "torch.distributed.ProcessGroup._get_backend_name",
        area="ranks",
    ),
    *_rows(
        "tensors of a collective live as long as NCCL holds them",
        "the memory of several ranks is too high",
        "torch._C._current_graph_task_id",
        area="ranks",
    ),
    # Measuring. An error in a watched step is a warning of the measurement, which goes on.
    *_rows(
        "the operators of a watched step come by in Python",
        "a measurement has no source lines",
        "torch.utils._python_dispatch._disable_current_modes",
        "torch.autograd._get_sequence_nr",
        area="measure",
    ),
    *_rows(
        "the operators that print a tensor are watched",
        "syncs of a function that prints a tensor of the GPU may have the line of its def",
        "torch._tensor_str._str_intern",
        area="measure",
    ),
    *_rows(
        "the operators of whole steps are counted by PyTorch's older profiler",
        "the operators of a step are not counted",
        "torch._C._autograd._enable_profiler_legacy",
        "torch._C._autograd._disable_profiler_legacy",
        "torch._C._profiler.ProfilerConfig",
        "torch._C._profiler.ProfilerState",
        "torch._C._profiler._ExperimentalConfig",
        area="measure",
    ),
    *_rows(
        "whether somebody else's profiler is on",
        "a program that profiles itself may fail while it is measured",
        "torch.autograd._profiler_enabled",
        area="measure",
    ),
    *_rows(
        "a step ends with an optimizer's step, which PyTorch wraps",
        "no step is found",
        "torch.optim.Optimizer.profile_hook_step",
        area="measure",
    ),
    *_rows(
        "a loader whose parts are timed pins batches as DataLoader does",
        "the time of pinning a batch is not measured",
        "torch.utils.data._utils.pin_memory.pin_memory",
        area="measure",
    ),
    *_rows(
        "the layers that draw random numbers are turned off for a comparison of outputs",
        "dropout of more than one dimension stays on in a comparison of outputs",
        "torch.nn.modules.dropout._DropoutNd",
        area="measure",
    ),
    *_rows(
        "the streams that DataParallel copies on belong to one prediction",
        "DataParallel may fail in a process's second prediction, with another number of GPUs",
        "torch.nn.parallel._functions",
    ),
    *_rows(
        "the buckets of DistributedDataParallel",
        "the time of all-reduces is not estimated",
        "torch.nn.parallel.DistributedDataParallel._get_ddp_logging_data",
        area="measure",
    ),
    *_rows(
        "allocations are recorded with their stacks, from the moment at which a program uses a GPU",
        "`run --memory-snapshot` writes no snapshot",
        "torch.cuda._lazy_call",
        "torch.cuda.memory._record_memory_history",
        "torch.cuda.memory._dump_snapshot",
        area="measure",
    ),
    *_rows(
        "a snapshot is written when an allocation fails",
        "`run --memory-snapshot` writes no snapshot at out of memory",
        "torch._C._cuda_attach_out_of_memory_observer",
        area="cuda",
    ),
    *_rows(
        "the memory of cuBLAS's workspaces is freed to count it",
        "cuBLAS's workspaces are not told apart in the memory that is held",
        "torch._C._cuda_clearCublasWorkspaces",
        area="cuda",
    ),
    *_rows(
        "files are named as in a trace",
        "source lines of a measurement do not match those in its trace",
        "torch.profiler.python_tracer._prefix_regex",
    ),
    *_rows(
        "Dynamo says what it has compiled, for how long, and why it compiled again",
        "compile times and recompilations of a measured program are not known",
        "torch._dynamo.utils.CompilationMetrics.create",
        area="measure",
    ),
    *_rows(
        "Dynamo says where its graphs break",
        "graph breaks of a measured program are not known",
        "torch._dynamo.symbolic_convert.InstructionTranslatorBase.log_graph_break",
        area="measure",
    ),
    *_rows(
        "Dynamo says which graph it traces, and whether that may end before its function does (`fullgraph`)",
        "steps of a measured program are not counted where it compiles its optimizer's step",
        "torch._dynamo.symbolic_convert.InstructionTranslator.current_tx",
        area="measure",
    ),
    # Compiled code.
    *_rows(
        "Dynamo follows compiled code with fake tensors, and says where its graph breaks",
        "kernels and graph breaks of compiled code are not known",
        "torch._dynamo.backends.common.aot_autograd",
        "torch._C._autograd._top_saved_tensors_default_hooks",
        "torch._C._autograd._pop_saved_tensors_default_hooks",
        "torch._dynamo.guards.CheckFunctionManager.__init__",
        "torch._dynamo.exc.Unsupported",
        "torch._dynamo.exc.TorchRuntimeError",
        "torch._dynamo.exc.RecompileError",
        "torch._dynamo.exc.FailOnRecompileLimitHit",
        "torch._dynamo.symbolic_convert.TensorifyState",
        "torch._dynamo.pgo.CodeState",
        "torch._dynamo.pgo._CODE_STATE",
        "torch._dynamo.reset_code_caches",
        "torch._dynamo.variables.tensor.TensorVariable.method_attr_device",
        "torch._dynamo.variables.tensor.TensorVariable.method_attr_is_cuda",
        "torch._dynamo.variables.base.VariableTracker.build",
        "torch._dynamo.variables.optimizer._is_static_for_cudagraphs",
        "torch.optim.optimizer._get_fused_kernels_supported_devices",
        "torch._subclasses.fake_tensor.FakeTensor",
        "torch._subclasses.fake_tensor.FakeTensorMode",
        "torch._subclasses.fake_tensor.FakeTensorMode.dispatch",
        "torch._subclasses.fake_tensor.run_fallback_kernel",
        "torch.utils._mode_utils.no_dispatch",
        "torch._subclasses.fake_tensor.UnsupportedOperatorException",
        "torch._subclasses.fake_tensor.DynamicOutputShapeException",
        "torch.utils._pytree",
        "torch._C._len_torch_function_stack",
        "torch._C._pop_torch_function_stack",
        "torch._C._push_on_torch_function_stack",
        "torch.fx.experimental.symbolic_shapes.ShapeEnv",
        "torch.fx.experimental.proxy_tensor.CONSTANT_NUMEL_LIMIT",
        "torch._ops.HigherOrderOperator",
        "torch._dynamo.config.patch",
        "torch._functorch.config.patch",
        "torch._dynamo.variables.torch.TorchInGraphFunctionVariable._get_handlers",
        "torch._dynamo.trace_rules.get_torch_obj_rule_map",
        area="compile",
        since=(2, 13),
    ),
    *_rows(
        "Inductor makes kernels of graphs for a GPU that is not there",
        "kernels of compiled code are not known",
        "torch._inductor.compile_fx.compile_fx",
        "torch._inductor.compile_fx.view_to_reshape",
        "torch._inductor.compile_fx._recursive_record_original_output_strides",
        "torch._inductor.compile_fx._recursive_post_grad_passes",
        "torch._inductor.graph.GraphLowering._update_scheduler",
        "torch._inductor.lowering.fallback_handler",
        "torch._inductor.lowering.full_like",
        "torch._inductor.lowering.lowerings",
        "torch._inductor.virtualized.V",
        "torch._inductor.debug.DebugContext",
        "torch._inductor.config.patch",
        "torch._inductor.scheduler.has_triton",
        "torch._inductor.runtime.hints.DeviceProperties",
        "torch._inductor.fx_passes.joint_graph.lazy_init",
        "torch._inductor.fx_passes.joint_graph.UniformValueConstantFolder._deduce_value",
        "torch._inductor.fx_passes.joint_graph.UniformValueConstantFolder._add_peephole_patterns",
        "torch._inductor.fx_passes.post_grad.lazy_init",
        "torch._dynamo.device_interface.CudaInterface",
        "torch._guards.TracingContext",
        "torch._C._AutoDispatchBelowAutograd",
        "torch._ops.OperatorBase",
        area="compile",
        since=(2, 13),
    ),
)
_BY_PATH: Final = {row.path: row for row in NAMES}
_ABSENT: Final = object()


def _look_up(path: str, *, is_owner: bool = False) -> Any:
    """The object of this name, `_ABSENT` where PyTorch has none. Modules that are not imported yet are.

    With `is_owner` a module comes before a function of the same name that hides it in its package.
    """
    with warnings.catch_warnings():  # what PyTorch's modules warn of where they are imported is not the program's
        warnings.simplefilter("ignore")
        return _looked_up(path, is_owner=is_owner)


def _looked_up(path: str, *, is_owner: bool) -> Any:
    first, *rest = path.split(".")
    value: Any = importlib.import_module(first)
    for number, part in enumerate(rest, 1):
        below = getattr(value, part, _ABSENT)
        is_last = number == len(rest) and not is_owner
        # A package may hide one of its modules: `torch.optim` deletes the name, others give it to a function.
        if below is _ABSENT or not (is_last or isinstance(below, ModuleType | type)):
            with suppress(ImportError):
                below = importlib.import_module(".".join((first, *rest[:number])))
        if below is _ABSENT:
            return _ABSENT
        value = below
    return value


def private(path: str) -> Any:
    """What PyTorch has by this name; None where it has nothing.

    Raises:
        KeyError: the name has no row in `NAMES`.
    """
    value = _look_up(_BY_PATH[path].path)
    return None if value is _ABSENT else value


def owner_of(path: str) -> Any:
    """What has the name as its attribute: a module, class or object.

    Raises:
        KeyError: the name has no row in `NAMES`.
    """
    return _look_up(_BY_PATH[path].owner, is_owner=True)


def has(path: str) -> bool:
    """Whether PyTorch has something by this name.

    Raises:
        KeyError: the name has no row in `NAMES`.
    """
    return _look_up(_BY_PATH[path].path) is not _ABSENT


def missing(*areas: Area) -> list[PrivateName]:
    """The rows of these areas whose names this PyTorch should have and does not."""
    torch: Any = importlib.import_module("torch")
    if not torch.distributed.is_available():  # a build without it runs on one rank alone
        areas = tuple(area for area in areas if area != "ranks")
    return [
        row
        for row in NAMES
        if row.area in areas and row.is_expected_in(torch.__version__) and _look_up(row.path) is _ABSENT
    ]


def losses_of(rows: Iterable[PrivateName]) -> list[str]:
    """A sentence on each missing name, for the answer."""
    return [f"this PyTorch has no {row.path}: {row.lost}" for row in rows]
