"""A table: a title, column heads and rows of text, in the forms people paste elsewhere.

The columns stand in order of weight: a narrow terminal shows the first ones, every file shows all.
"""

import csv
import io
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MINUS = "−"
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", MINUS: "$-$", "×": r"$\times$",
    "‖": r"$\|$", "√": r"$\surd$", "λ": r"$\lambda$", "σ": r"$\sigma$",
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A title, column heads, and rows of text. The first `words` columns are words, the rest are numbers."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    words: int = 1

    def markdown(self) -> str:
        rule = [*["---"] * self.words, *["---:"] * (len(self.head) - self.words)]
        body = [[_one_line(cell).replace("|", r"\|") for cell in cells] for cells in (self.head, *self.rows)]
        lines = ["| " + " | ".join(cells) + " |" for cells in (body[0], rule, *body[1:])]
        return "\n".join([*lines, *(["", self.note] if self.note else [])])

    def csv(self) -> str:
        text = io.StringIO()
        csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([self.head, *self.rows])
        return text.getvalue()

    def latex(self) -> str:
        """A floating table in the style of the package booktabs."""
        columns = "l" * self.words + "r" * (len(self.head) - self.words)
        body = [" & ".join(_latex(cell) for cell in cells) + r" \\" for cells in (self.head, *self.rows)]
        caption = _latex(f"{self.title}. {self.note}".strip())
        return "\n".join(
            [
                r"\begin{table}", r"  \centering", rf"  \caption{{{caption}}}", rf"  \begin{{tabular}}{{{columns}}}",
                r"    \toprule", f"    {body[0]}", r"    \midrule", *(f"    {line}" for line in body[1:]),
                r"    \bottomrule", r"  \end{tabular}", r"\end{table}",
            ]
        )  # fmt: skip


def spread(values: Sequence[float], form: str) -> str:
    """The mean, and with several seeds the standard deviation and their number."""
    if len(values) == 1:
        return f"{values[0]:{form}}"
    return f"{statistics.mean(values):{form}} ± {statistics.stdev(values):{form}} (n={len(values)})"


def difference(values: Sequence[float], published: str | float | None, form: str) -> str:
    """The mean less the published value (of which a spread after ± is left out), signed; "-" where none is known."""
    if published is None or published == "-":
        return "-"
    base = float(published.split("±")[0]) if isinstance(published, str) else published
    return f"{statistics.mean(values) - base:+{form}}".replace("-", MINUS, 1)


def _one_line(cell: str) -> str:
    return " ".join(cell.split())


def _latex(cell: str) -> str:
    text = "".join(LATEX.get(letter, letter) for letter in _one_line(cell))
    text = re.sub(r"(\$-\$|\+)?(\d\.\d+)e([+-])0*(\d+)", _power_of_ten, text)
    return text


def _power_of_ten(found: re.Match) -> str:
    sign = {"$-$": "-", "+": "+", None: ""}[found[1]]
    return rf"${sign}{found[2]} \times 10^{{{'-' if found[3] == '-' else ''}{found[4]}}}$"
