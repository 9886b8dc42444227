"""The gateway beside its peers, measured in the same run. `python -m loadtests.scorecard`."""
