"""Whether a variant computes the same answer as its study's reference.

    main        the command line: compares a variant of a study with the float64 reference
    reference   the reference, and the comparison of a variant with it
    outputs     the outputs of a variant on one batch
    programs    the comparison of two programs of a study of commands, by their records
    tolerance   how far two outputs may be apart
    verdict     the compared cases, and the content of equivalence.json

`programs`, `tolerance` and `verdict` import no torch.
"""
