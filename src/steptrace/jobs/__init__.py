"""Starts, follows and ends processes: the trainings and checks of a study, and the programs that `steptrace` starts.

    process         one process: its start, what it tells, its limits, its end
    devices         locks on GPUs and on the processor
    launch          a program of the user's in the foreground, with the probe in it
    supervise       jobs in the background, some at once, each with a status.json
    variant         what a variant of a study starts, and what its run leaves
    command_checks  predictions and comparisons of a study of commands
    forked          checks in forks of a process that has imported PyTorch

None of them imports PyTorch.
"""
