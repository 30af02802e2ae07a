"""Whether a variant computes the same answer as its study's reference.

    main        a variant of a study against the float64 reference: the command line
    reference   the reference, and the comparison of a variant with it
    outputs     what a variant computes on one batch
    programs    two programs of a study of commands, by what they have recorded
    tolerance   how far two outputs may be apart
    verdict     cases, and the content of equivalence.json

`programs`, `tolerance` and `verdict` import no torch.
"""
