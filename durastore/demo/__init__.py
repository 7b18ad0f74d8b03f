"""The main job on embedded parts: a real model, a real S3 server, one command."""

from durastore.demo.report import DemoReport
from durastore.demo.run import DemoOptions, run_demo

__all__ = ["DemoOptions", "DemoReport", "run_demo"]
