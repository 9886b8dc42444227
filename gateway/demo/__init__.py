"""`kvgateway demo`: a gateway and two simulated workers on this machine, and a tour of what that gives."""

from gateway.demo.command import add_arguments, run

__all__ = ["add_arguments", "run"]
