"""A table that is printed row by row, aligned or as Markdown."""

from typing import NamedTuple


class Column(NamedTuple):
    """The heading of a column, and its width."""

    head: str
    width: int
    is_number: bool = False


class Table:
    """A table. Its heading is printed when it is created."""

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
