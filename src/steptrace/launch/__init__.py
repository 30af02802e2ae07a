"""The probe inside a started program, which measures the program or predicts its syncs, and the files that it leaves.

    inject/    a `sitecustomize` that puts the probe into a process once PyTorch is imported
    install    inside the program: chooses the mode
    probe      inside the program: runs a mode step by step
    modes      inside the program: measure, capture, outputs
    predict    inside the program: the mode that predicts, on the virtual device
    hooks      inside the program: wraps PyTorch's functions
    memory_history   inside the program: snapshots of PyTorch's history of GPU memory
    events     inside the program: tells the launcher what happens
    settings   what the launcher asks of the probe
    result     beside the program: its records as the files of a run, or why there are none
    capture    requests of `steptrace capture`, and the listener inside the program

The modules inside the program need PyTorch and the standard library only, so they work in any environment.
`steptrace.jobs` starts the programs.
"""
