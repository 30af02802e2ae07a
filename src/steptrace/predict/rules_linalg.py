"""Rules of linear algebra. What cuSOLVER and MAGMA do inside is in no source to be read: it stays "may be more"."""

from steptrace.predict.rule import Call, Rule, cannot_tell, once, times

_CHECKS = "native/BatchLinearAlgebra.cpp: _linalg_check_errors reads infos.any()"
_SOLVERS = "native/cuda/linalg/BatchLinearAlgebra.cpp"
_INSIDE = "its CUDA libraries' own waits are not known"
_FAILED = "the host reads whether the factorisation failed"


def _checked(call: Call) -> int:
    return int(bool(call["check_errors"]))


LINALG: tuple[Rule, ...] = (
    Rule("_linalg_check_errors", "d2h_copy", once, _CHECKS, _FAILED),
    *(
        Rule(op, "d2h_copy", _checked, _CHECKS, "asked to check")
        for op in (
            "linalg_cholesky_ex", "linalg_inv_ex", "_linalg_solve_ex", "linalg_lu_factor_ex", "linalg_ldl_factor_ex",
        )
    ),
    Rule("_linalg_eigh", "d2h_copy", once, _CHECKS, _FAILED),
    Rule("_linalg_svd", "d2h_copy", times(2), _SOLVERS, "copies the convergence to the host, and reads the check"),
    Rule("linalg_pinv", "d2h_copy", times(2), _SOLVERS, "copies its SVD's convergence to the host, reads the check"),
    Rule("linalg_eig", "d2h_copy", times(3), _SOLVERS, "reads whether all is finite, copies infos, checks"),
    Rule("_linalg_eigvals", "d2h_copy", times(3), _SOLVERS, "reads whether all is finite, copies infos, checks"),
    Rule("linalg_lstsq", "d2h_copy", once, _CHECKS, _FAILED),
    *(
        Rule(op, "stream", cannot_tell, _SOLVERS, _INSIDE)
        for op in (
            "_linalg_eigh", "_linalg_svd", "linalg_pinv", "linalg_eig", "_linalg_eigvals", "linalg_lstsq", "linalg_qr",
        )
    ),
    Rule("linalg_matrix_exp", "d2h_copy", once, "native/LinearAlgebra.cpp", "copies the norms to the host"),
    Rule("linalg_matrix_exp", "h2d_copy", once, "native/LinearAlgebra.cpp", "copies a degree's indices to the device"),
    Rule("linalg_matrix_exp", "h2d_copy", cannot_tell, "native/LinearAlgebra.cpp", "more per degree, by the norms"),
)  # fmt: skip
