"""A fleet of simulated workers that can be killed and frozen, and a client that checks every answer."""
