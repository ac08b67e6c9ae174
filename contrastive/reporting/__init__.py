"""Pages about runs: one self-contained file each, that works from disk."""

from contrastive.reporting.page import write_report

__all__ = ["write_report"]
