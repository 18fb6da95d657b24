"""Pictures from text and numbers, for pictures.sh.

pictures.py terminal TITLE COLUMNS FILE
    The screen of a terminal, with its colours, from the standard input.

pictures.py page FILE
    Makes a picture smaller that a browser has drawn.

pictures.py dashboard DASHBOARD PROMETHEUS BEGIN END SCRAPE_S FILE
    A dashboard of Grafana, drawn without Grafana: its layout, titles, units and legends from its file, its data from
    Prometheus' answers to its queries.
"""

import io
import json
import math
import re
import sys
import urllib.parse
import urllib.request


def terminal(title, columns, path):
    # Here, because the other picture needs none of it.
    from rich.console import Console
    from rich.terminal_theme import SVG_EXPORT_THEME
    from rich.text import Text

    console = Console(record=True, width=int(columns), file=io.StringIO(), force_terminal=True)
    screen = sys.stdin.read().rstrip("\n")
    console.print(Text.from_ansi(screen, no_wrap=True), crop=False)
    picture = console.export_svg(title=title, theme=SVG_EXPORT_THEME, unique_id="terminal")
    # The picture must not ask a server for its font.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    picture = picture.replace("Fira Code", "DejaVu Sans Mono, Menlo, Consolas")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(line.rstrip() for line in picture.splitlines()) + "\n")


# --- The dashboard ---------------------------------------------------------------------------------------------------

# Columns of Grafana's grid, and inches: one of its squares here, the gap between panels, a line of a legend.
GRID_COLUMNS = 24
SQUARE = (0.62, 0.36)
GAP, LINE = 0.06, 0.115
BACKGROUND, PANEL, GRID, TEXT, DIM = "#111217", "#181b1f", "#2c3235", "#d8d9da", "#8e9297"
COLOURS = [
    "#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#5bd0c5", "#fade2a", "#37872d", "#e0b400",
    "#8ab8ff", "#c4162a", "#ca95e5", "#fa6400", "#96d98d",
]


def quantity(value, steps, suffixes):
    for step, suffix in zip(steps, suffixes):
        if abs(value) >= step:
            return f"{value / step:.3g} {suffix}"
    return f"{value / steps[-1]:.3g} {suffixes[-1]}" if value else "0"


def shown(value, unit):
    """A value as its unit asks for."""
    if unit == "s":
        if value >= 60:
            return f"{value / 60:.3g} min"
        return quantity(value, [1, 1e-3, 1e-6], ["s", "ms", "µs"])
    if unit == "Bps":
        return quantity(value, [1e9, 1e6, 1e3, 1], ["GB/s", "MB/s", "kB/s", "B/s"])
    if unit == "iops":
        return quantity(value, [1e6, 1e3, 1], ["M io/s", "K io/s", "io/s"])
    if unit == "percentunit":
        return f"{value * 100:.3g}%"
    if unit == "none":
        return quantity(value, [1e6, 1e3, 1], ["M", "K", ""]).strip()
    sys.exit(f"the dashboard has a unit that cannot be drawn: {unit}")


class Prometheus:
    def __init__(self, url, begin, end, scrape_s):
        self.url, self.begin, self.end, self.scrape_s = url, int(begin), int(end), int(scrape_s)

    def ask(self, query):
        """The series of a query: their labels and their points."""
        # What Grafana takes for so short a range.
        query = query.replace("$__rate_interval", f"{4 * self.scrape_s}s")
        parameters = {"query": query, "start": self.begin, "end": self.end, "step": self.scrape_s}
        url = f"{self.url}/api/v1/query_range?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            found = json.load(answer)["data"]["result"]
        if not found:
            sys.exit(f"Prometheus has nothing for {query}")
        points = lambda series: [(time - self.begin, float(value)) for time, value in series["values"]]
        return [(series["metric"], points(series)) for series in found]


def series_of(panel, prometheus):
    for target in panel["targets"]:
        for labels, points in prometheus.ask(target["expr"]):
            name = re.sub(r"\{\{(\w+)\}\}", lambda match: labels[match[1]], target["legendFormat"])
            yield name, points


def draw_stat(axes, panel, series, unit):
    value = next(points[-1][1] for _, points in series)
    axes.text(0.5, 0.42, shown(value, unit), color=COLOURS[0], fontsize=22, ha="center", va="center")
    axes.set_xticks([])
    axes.set_yticks([])


def draw_lines(axes, panel, series, unit, columns):
    for place, (name, points) in enumerate(series):
        axes.plot(*zip(*points), label=name, color=COLOURS[place % len(COLOURS)], linewidth=1.1)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: shown(value, unit))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f} s")
    axes.locator_params(axis="y", nbins=5)
    axes.grid(color=GRID, linewidth=0.6)
    axes.tick_params(colors=DIM, labelsize=6.5, length=0)
    axes.legend(
        loc="upper left", bbox_to_anchor=(-0.13, 0, 1.15, 0), bbox_transform=axes.transAxes, borderaxespad=2.2,
        ncol=columns, fontsize=6, frameon=False, labelcolor=TEXT, handlelength=1, labelspacing=0.2, columnspacing=1,
    )


class Place:
    """Where a panel is, in inches from the lower left corner of the picture."""

    def __init__(self, panel, rows):
        grid = panel["gridPos"]
        self.left, self.wide = grid["x"] * SQUARE[0], grid["w"] * SQUARE[0]
        self.bottom, self.high = (rows - grid["y"] - grid["h"]) * SQUARE[1], grid["h"] * SQUARE[1]

    def inside(self, left, bottom, right, top):
        """What is left of it without these margins."""
        return self.left + left, self.bottom + bottom, self.wide - left - right, self.high - bottom - top


def draw_panel(figure, panel, place, series):
    from matplotlib.patches import Rectangle

    width, height = figure.get_size_inches()
    part = lambda left, bottom, wide, high: (left / width, bottom / height, wide / width, high / height)
    left, bottom, wide, high = part(*place.inside(GAP, GAP, GAP, GAP))
    frame = Rectangle((left, bottom), wide, high, facecolor=PANEL, edgecolor=GRID, linewidth=0.8, zorder=-1)
    figure.add_artist(frame)
    left, top = place.left + 0.16, place.bottom + place.high - 0.28
    figure.text(left / width, top / height, panel["title"], color=TEXT, fontsize=8.5)
    unit = panel["fieldConfig"]["defaults"]["unit"]
    if panel["type"] == "stat":
        axes = figure.add_axes(part(*place.inside(0.1, 0.1, 0.1, 0.4)))
        draw_stat(axes, panel, series, unit)
    else:
        columns = 3 if len(series) > 4 else 2
        legend = 0.35 + LINE * math.ceil(len(series) / columns)
        axes = figure.add_axes(part(*place.inside(0.85, legend, 0.25, 0.42)))
        draw_lines(axes, panel, series, unit, columns)
    axes.set_facecolor(PANEL)
    for spine in axes.spines.values():
        spine.set_visible(False)


def dashboard(path, url, begin, end, scrape_s, picture):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with open(path, encoding="utf-8") as file:
        panels = json.load(file)["panels"]
    prometheus = Prometheus(url, begin, end, scrape_s)
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = plt.figure(figsize=(GRID_COLUMNS * SQUARE[0], rows * SQUARE[1]), facecolor=BACKGROUND)
    for panel in panels:
        draw_panel(figure, panel, Place(panel, rows), list(series_of(panel, prometheus)))
    figure.savefig(picture, dpi=90, facecolor=BACKGROUND)
    few_colours(picture)


def few_colours(path):
    """Makes a PNG small: what is drawn here has few colours."""
    from PIL import Image

    with Image.open(path) as picture:
        picture.convert("RGB").quantize(200, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    {"terminal": terminal, "page": few_colours, "dashboard": dashboard}[sys.argv[1]](*sys.argv[2:])
