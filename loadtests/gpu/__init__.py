"""A real vLLM prefill/decode pair on GPUs behind the gateway: answers, handoff, fabric, hybrid models.

`python -m loadtests.gpu --help`; docs/benchmarks.md has the commands and the results. With `--simulated` the
workers are simulated ones: that tries the scripts, and measures nothing.
"""
