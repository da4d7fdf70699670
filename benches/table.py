"""A table that is printed as its rows come, aligned or as Markdown."""

from typing import NamedTuple


class Column(NamedTuple):
    """What stands above a column, and how wide it is."""

    head: str
    width: int
    is_number: bool = False


class Table:
    """Prints its head when it is made."""

    def __init__(self, columns, is_markdown=False):
        self.columns = columns
        self.is_markdown = is_markdown
        self.add(*(column.head for column in columns))
        if is_markdown:
            self.add(*("--:" if column.is_number else "---" for column in columns))
        else:
            self.add(*("-" * column.width for column in columns))

    def add(self, *cells):
        """Prints a row."""
        if self.is_markdown:
            line = f"| {' | '.join(cells)} |"
        else:
            line = "  ".join(
                cell.rjust(column.width) if column.is_number else cell.ljust(column.width)
                for cell, column in zip(cells, self.columns, strict=True)).rstrip()
        print(line, flush=True)
