"""What to write instead: texts for single lines of a program, by codes.

    replacements   of operations that make the host wait
    compiled       of code that breaks a graph of torch.compile, or is compiled again

Findings and `steptrace predict` show these texts. The modules import no rules, so that a prediction needs none.
"""
