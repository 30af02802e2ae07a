"""Starts any training program, unchanged, with a probe inside that measures it or predicts its syncs, and ends it.

    main       parts of a study of commands, as the workflow starts them
    start      starts a command with the probe in its environment, and waits for its end
    result     how it ended: the probe's records as the files of a run, or why there are none
    capture    requests of `steptrace capture`, and the listener inside the program
    inject/    a `sitecustomize` that loads the probe once PyTorch is imported
    probe      inside the program: runs a mode step by step
    modes      inside the program: measure, capture, outputs
    predict    inside the program: the mode that predicts, on the virtual device
    hooks      inside the program: wraps PyTorch's functions

The modules inside the program need PyTorch and the standard library only, so they work in any environment.
"""
