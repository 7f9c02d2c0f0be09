"""How the page looks in a real browser: widths, dark and light, contrast, labels, keyboard."""

from __future__ import annotations

from pathlib import Path

import pytest

from heteroplace.report.html.page import _asset
from tests.browser import see
from tests.unit.report.pages import write_full_page

DARK = "--blink-settings=preferredColorScheme=0"
OPENED = """
all("details").forEach((node) => { node.open = true; });
$("#what-if button").click();
$("#tasks button.link").click();
await wait(50);
"""
LAYOUT = (
    OPENED
    + """
const isShown = (node) => node.getClientRects().length > 0
  && !node.closest('[aria-hidden="true"] svg, defs');
const within = (box) => box.left >= -1 && box.right <= innerWidth + 1;
const overlaps = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
  && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2;
const crossing = all("svg[role=img]").flatMap((picture) => {
  const texts = [...picture.querySelectorAll("text")].filter(isShown);
  return texts.flatMap((one, i) => texts.slice(i + 1)
    .filter((other) => overlaps(one.getBoundingClientRect(), other.getBoundingClientRect()))
    .map((other) => `${one.textContent} / ${other.textContent}`));
});
const outside = all("svg[role=img] text").filter(isShown).filter((text) => {
  const own = text.getBoundingClientRect(), box = text.closest("svg").getBoundingClientRect();
  return own.left < box.left - 1 || own.right > box.right + 1;
}).map((text) => text.textContent);
const whole = "h1, h2, h3, p, .caption, .times li, .about dd, button, summary, .lane-box, input";
const cut = all(whole).filter(isShown)
  .filter((node) => !node.closest(".scroll, .picture, #ask-list"))
  .filter((node) => !within(node.getBoundingClientRect()) || node.scrollWidth > node.clientWidth + 1
    && node.clientWidth > 0 && getComputedStyle(node).display !== "inline")
  .map((node) => node.innerText);
const labels = all("td .unbroken, .legend .unbroken").filter(isShown)
  .filter((node) => node.querySelector(".swatch"));
const broken = labels.filter((node) => node.getClientRects().length > 1).length;
return { scroll: document.documentElement.scrollWidth, width: innerWidth, crossing, outside, cut,
  labels: labels.length, broken,
  verdict: parseFloat(getComputedStyle($("#verdict")).fontSize),
  bars: all("#times .fill").map((bar) => bar.getBoundingClientRect().width) };
"""
)
CONTRAST = (
    OPENED
    + """
const parse = (text) => {
  const numbers = text.match(/[\\d.]+/g).map(Number);
  const unit = text.startsWith("color(") ? 255 : 1;
  return [...numbers.slice(0, 3).map((value) => value * unit), numbers[3] ?? 1];
};
const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
const back = (node) => {
  if (!node) return [255, 255, 255];
  const own = parse(getComputedStyle(node).backgroundColor);
  return own[3] === 1 ? own.slice(0, 3) : over(own, back(node.parentElement));
};
const light = (colour) => colour.map((value) => value / 255)
  .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
  .reduce((sum, value, i) => sum + value * [0.2126, 0.7152, 0.0722][i], 0);
const ratio = (a, b) => {
  const [high, low] = [light(a), light(b)].sort((x, y) => y - x);
  return (high + 0.05) / (low + 0.05);
};
const isText = (node) => node.getClientRects().length > 0
  && [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
const texts = all("body *")
  .filter((node) => isText(node) && !node.closest("script, .node, #probe"));
const weak = texts.filter((node) => {
  const style = getComputedStyle(node);
  const own = parse(node instanceof SVGElement ? style.fill : style.color);
  const below = back(node instanceof SVGElement ? node.closest("svg") : node);
  return ratio(over(own, below), below) < 4.5;
}).map((node) => `${node.tagName} ${node.textContent.slice(0, 40)}`);
return { count: texts.length, weak };
"""
)
NAMED = """
const name = (node) => node.getAttribute("aria-label") || node.innerText.trim();
const buttons = all("button");
return { buttons: buttons.length, unnamed: buttons.filter((node) => !name(node)).length,
  unreached: buttons.filter((node) => node.tabIndex < 0).length,
  canvases: all("canvas").map((node) => [node.tabIndex, Boolean(node.getAttribute("aria-label"))]),
  pictures: all("svg[role=img], svg[role=group]").filter((node) =>
    !node.getAttribute("aria-label")).length,
  tables: all("table").filter((node) => !node.getAttribute("aria-label")).length,
  headings: all("main section").filter((node) =>
    !document.getElementById(node.getAttribute("aria-labelledby"))).length };
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("layout") / "page.html"
    write_full_page(path)
    return path


@pytest.mark.costly
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_nothing_overlaps_or_is_cut_at_any_width(page: Path, width: int, scheme: str) -> None:
    seen = see(page, LAYOUT, *([DARK] if scheme == "dark" else []), width=width)
    result = seen.found
    assert seen.console == ()
    assert result["width"] == width
    assert result["scroll"] <= width
    assert result["crossing"] == []
    assert result["outside"] == []
    assert result["cut"] == []
    assert result["labels"] > 5
    assert result["broken"] == 0
    assert result["verdict"] >= 26
    assert len(result["bars"]) == 3
    assert min(result["bars"]) > 20


@pytest.mark.costly
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_background(page: Path, scheme: str) -> None:
    result = see(page, CONTRAST, *([DARK] if scheme == "dark" else [])).found
    assert result["count"] > 200
    assert result["weak"] == []


@pytest.mark.costly
def test_everything_has_a_name_and_buttons_are_reached_by_keyboard(page: Path) -> None:
    result = see(page, NAMED).found
    assert result["buttons"] > 30
    assert result["unnamed"] == result["unreached"] == 0
    assert result["canvases"] == [[0, True], [0, True]]
    assert result["pictures"] == result["tables"] == result["headings"] == 0


@pytest.mark.parametrize(
    ("selector", "mark"),
    [(".predicted .fill", "repeating-linear-gradient"), ('[aria-pressed="true"]::before', "2713")],
)
def test_no_colour_alone_tells_a_predicted_bar_or_a_pressed_button(
    selector: str, mark: str
) -> None:
    rule = next(line for line in _asset("page.css").splitlines() if selector in line)
    assert mark in rule
