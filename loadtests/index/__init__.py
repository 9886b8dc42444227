"""The prefix index beside Dynamo's radix tree: lookups, raw events, memory. `python -m loadtests.index`."""
