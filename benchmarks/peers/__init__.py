"""The engines: one module per engine, one function per case, with the same names in all modules.

A function takes the table's folder and further arguments, imports and prepares, and returns the job
that is measured (see `benchmarks.measure`). An engine has no function for a case that it does not
support. `build` writes the table. The jobs do the same work as far as the engines allow; where an
engine has several ways, the fastest known one is used.
"""


def warm(case):
    """Mark a case whose job takes a query number and is called several times."""
    case.warm = True
    return case
