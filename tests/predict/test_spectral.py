"""Fourier transforms of 16-bit numbers, and views that stand for conjugates."""

import pytest
import torch

from steptrace.predict import predict_syncs

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
FUNCTIONS = [
    f"{back}{kind}fft{axes}" for axes in ("", "2", "n") for kind in ("", "r", "h") for back in ("", "i")
]  # fmt: skip
#: Normalisation, and how many elements of the last axes are taken.
OPTIONS = [(None, None), ("ortho", 16), ("forward", 4)]


def _values(name: str, dtype: torch.dtype) -> torch.Tensor:
    """Values of which all axes of the transform have powers of two, as cuFFT wants them of 16-bit numbers."""
    to_real = name.startswith(("irfft", "hfft"))
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 8, 9 if to_real else 8, dtype=dtype, generator=generator) / 16


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("norm", "length"), OPTIONS)
def test_transforms_of_16_bit_numbers_are_those_of_32_bits(name, norm, length):
    function = getattr(torch.fft, name)
    sizes = {} if length is None else {"s": (8, length)} if name[-1] in "2n" else {"n": length}
    for dtype in (torch.float32, torch.complex64):
        if dtype.is_complex and name.startswith(("rfft", "ihfft")):
            continue
        with predict_syncs() as syncs:
            values = _values(name, dtype).to("cuda", non_blocking=True)
            narrow = values.to(torch.complex32 if dtype.is_complex else torch.float16)
            made = function(narrow, norm=norm, **sizes)
            expected = function(values, norm=norm, **sizes)
            assert made.dtype is (torch.complex32 if expected.is_complex() else torch.float16)
            assert syncs.total == 0
            made, expected = (result.cpu().resolve_conj().to(expected.dtype) for result in (made, expected))
        torch.testing.assert_close(made, expected, atol=0.02, rtol=0.02)


def test_transforms_of_16_bit_numbers_have_gradients_and_are_made_of_the_operators_of_32_bits():
    gradients = []
    operators = []
    for dtype in (torch.float32, torch.float16):
        with predict_syncs() as syncs:
            values = torch.linspace(-1, 1, 32).view(4, 8).cuda().requires_grad_()
            torch.fft.irfft2(torch.fft.rfft2(values.to(dtype), norm="ortho"), norm="ortho").float().norm().backward()
            gradients.append(values.grad.cpu())
            operators.append([call.name for call in syncs.operators if "fft" in call.name])
    torch.testing.assert_close(gradients[1], gradients[0], atol=0.01, rtol=0.01)
    assert operators[0] == operators[1]


def test_16_bit_numbers_of_other_lengths_are_refused_as_by_cufft():
    with predict_syncs(), pytest.raises(RuntimeError, match="powers of two when computing in half precision"):
        torch.fft.rfft(torch.ones(6, dtype=torch.float16, device="cuda"))


def test_short_time_transforms_take_16_bit_numbers():
    with predict_syncs():
        window = torch.hann_window(16, device="cuda", dtype=torch.float16)
        parts = torch.stft(torch.ones(64, device="cuda").half(), 16, window=window, return_complex=True)
        assert parts.dtype is torch.complex32


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_transforms_of_conjugates_are_right_in_each_mode(mode):
    values = torch.complex(torch.arange(8.0), torch.arange(8.0))
    with predict_syncs() as syncs, mode():
        made = torch.fft.hfft(values.cuda())
        assert [call.name for call in syncs.operators][1:] == ["aten.clone.default", "aten._fft_c2r.default"]
        made = made.cpu()
    assert made.equal(torch.fft.hfft(values))


def test_conjugate_views_are_marked_and_resolved_by_a_copy():
    values = torch.complex(torch.arange(3.0), torch.ones(3))
    with predict_syncs() as syncs:
        there = values.cuda()
        view = there.conj()
        assert view.is_conj()
        assert view.imag.is_neg()
        resolved = torch.view_as_real(view.resolve_conj())
        assert syncs.operators[-1].name == "aten.clone.default"
        assert resolved.cpu().equal(torch.view_as_real(values.conj().resolve_conj()))
        product = (view * there).cpu()
        assert torch.fft.hfft(there).cpu().equal(torch.fft.hfft(values))
    assert product.equal(values.conj() * values)
