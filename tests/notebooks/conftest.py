"""The checks are programs for the kernels of the notebooks, not modules."""

collect_ignore_glob = ["checks/*"]
