"""The engines: one module each, one function a case, the same names in all.

A function takes the table's folder (and arguments), imports and prepares, and returns the job that
is measured; see `benchmarks.measure`. What an engine cannot do it has no function for. `build`
writes the table. What is compared is as near to one thing as the engines allow, and where there
are several ways the fastest that was found is taken.
"""


def warm(case):
    """The job takes the number of a question and is asked several."""
    case.warm = True
    return case
