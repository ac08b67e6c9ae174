"""What experiments share: seeds and intervals, tables, plots, checks, pages."""
