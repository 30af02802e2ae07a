"""The Python side of the Snakemake workflow: the plan as its rules see it, checks of variants, records of results."""
