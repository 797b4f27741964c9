"""The playground in a real browser: every control, both arms, numbers against the script, restarts, strangers.

The server without a browser is tested in tests/unit/test_playground_server.py.
"""

from __future__ import annotations

import http.server
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holonom.playground.methods import METHODS
from holonom.playground.presets import PRESETS
from holonom.playground.settings import ARM_CONTROLS, CONTROLS, Choice, Number

from .chromium import needs_browser, playwright

pytestmark = needs_browser

PATIENCE = 60_000  # milliseconds, on a busy machine
SMALL = "#data=xor&points=40&scale=1&depth=2&width=6&batch=10&seed=3&A=sgd&B=c_od"


class Server:
    """``holonom play`` in another process, which can be killed and started again at the same address."""

    def __init__(self, folder: Path) -> None:
        self.port = 0
        self.environment = {**os.environ, "XDG_CACHE_HOME": str(folder)}
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "holonom", "play", "--no-browser", "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                        env=self.environment)  # fmt: skip
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.port = int(self.url.split(":")[2].split("/")[0])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("cache"))
    yield server
    server.kill()


@pytest.fixture
def small(page: Any, server: Server) -> Any:
    """The page with a small network, at rest."""
    return visit(page, server, SMALL)


def visit(page: Any, server: Server, fragment: str = "") -> Any:
    page.set_default_timeout(PATIENCE)
    page.emulate_media(reduced_motion="reduce")  # it then waits for Play
    page.goto("about:blank")
    page.goto(server.url + fragment)
    until(page, "document.body.dataset.step !== undefined")  # connected; a click before that does nothing
    if page.locator("#play .word").text_content() == "Pause":
        page.locator("#play").click()
    playwright.expect(page.locator("#play")).to_have_text("Play", timeout=PATIENCE)
    if fragment:
        page.locator("#reset").click()
        until(page, "document.body.dataset.step === '0'")
    settled(page)
    return page


def until(page: Any, expression: str, arg: Any = None, patience: float = PATIENCE) -> None:
    """Wait until a JavaScript expression or function of ``arg``, holds. The page's policy forbids playwright's way."""
    end = time.monotonic() + patience / 1000
    while not page.evaluate(expression, arg):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(20)


def settled(page: Any) -> int:
    """Wait until all numbers are those of the present step; returns it."""
    until(page, "document.body.dataset.settled === 'true'")
    return int(page.evaluate("document.body.dataset.step"))


def setting(page: Any, name: str) -> str | None:
    """A setting as the link has it, which the page takes from the server."""
    found = page.evaluate("name => new URLSearchParams(location.hash.slice(1)).get(name)", name)
    return None if found is None else str(found)


def expect_setting(page: Any, name: str, value: str) -> None:
    until(page, "([name, value]) => new URLSearchParams(location.hash.slice(1)).get(name) === value", arg=[name, value])


def move(page: Any, control: str, name: str, key: str = "ArrowRight") -> None:
    """Move a slider by the keyboard and see the server take it up."""
    before = setting(page, name)
    slider = page.locator(f'[data-name="{control}"] input[type=range]')
    slider.press(key if slider.evaluate("slider => slider.value !== slider.max") else "ArrowLeft")
    until(
        page, "([name, value]) => new URLSearchParams(location.hash.slice(1)).get(name) !== value", arg=[name, before]
    )


# ── controls ─────────────────────────────────────────────────────────────────────────────────────


def test_every_shared_control(small: Any) -> None:
    for name, control in CONTROLS.items():
        if name in ("data", "seed", "replicas"):
            continue
        if name in ("turns", "waves"):
            small.locator("#data-input").select_option({"turns": "spirals", "waves": "waves"}[name])
            expect_setting(small, "data", {"turns": "spirals", "waves": "waves"}[name])
        if isinstance(control, Choice):
            other = next(choice for choice in control.among if choice != setting(small, name))
            small.locator(f"[id='{name}-input']").select_option(other)
            expect_setting(small, name, other)
        else:
            move(small, name, name)
    for choice in CONTROLS["data"].among:  # type: ignore[union-attr]
        small.locator("#data-input").select_option(choice)
        expect_setting(small, "data", choice)
    small.locator("#data-input").select_option("circles")
    small.locator("#replicas-input").select_option("16")
    expect_setting(small, "replicas", "16")
    small.get_by_label("spread").check()
    exact = small.get_by_label("Width, as a number")
    exact.fill("11")
    exact.press("Enter")
    expect_setting(small, "width", "11")
    small.locator("#seed").fill("42")
    small.locator("#seed").press("Enter")
    expect_setting(small, "seed", "42")
    small.locator("#new-seed").click()
    until(small, "!location.hash.includes('seed=42&')")
    small.get_by_label("Show test points").check()
    small.get_by_label("Two arms").uncheck()
    until(small, "!location.hash.includes('&B=')")
    playwright.expect(small.locator("[data-arm=B]")).to_be_hidden()
    small.get_by_label("Two arms").check()
    expect_setting(small, "B", "c_od")
    small.locator("#replicas-input").select_option("1")
    expect_setting(small, "replicas", "1")


@pytest.mark.parametrize("method", METHODS)
def test_every_control_of_every_method(small: Any, method: str) -> None:
    arm = small.locator("[data-arm=A]")
    arm.locator("select").first.select_option(method)
    expect_setting(small, "A", method)
    playwright.expect(arm.locator(".about")).not_to_be_empty()
    small.locator("#step").click()
    until(small, "document.body.dataset.step === '1'")
    names = list(METHODS[method].settings)
    if "space" in names:
        arm.locator("[data-name='arms.0.space'] select").select_option("circles")
        expect_setting(small, "A.space", "circles")
        arm.get_by_label("Word", exact=True).fill("baoab")
        arm.get_by_label("Word", exact=True).press("Enter")
        arm.get_by_label("Word", exact=True).fill("OBABO")
        arm.get_by_label("Word", exact=True).press("Enter")
        expect_setting(small, "A.scheme", "OBABO")
        small.locator("#step").click()
        until(small, "document.body.dataset.step === '1'")
    for name in names:
        if isinstance(ARM_CONTROLS[name], Number):
            move(small, f"arms.0.{name}", f"A.{name}")
            # What acts at once keeps the run, anything else begins it anew.
            expected = "1" if ARM_CONTROLS[name].live and "every" not in names[: names.index(name)] else None
            if expected:
                assert small.evaluate("document.body.dataset.step") == expected
    assert small.locator("#problem").is_hidden()


def test_transport_by_mouse_and_keyboard(small: Any) -> None:
    small.locator("#step").click()
    until(small, "document.body.dataset.step === '1'")
    small.locator("h1").click()
    small.keyboard.press("s")
    until(small, "document.body.dataset.step === '2'")
    small.locator("#speed").select_option("25")
    small.locator("h1").click()
    small.keyboard.press(" ")
    playwright.expect(small.locator("#play")).to_have_text("Pause")
    until(small, "Number(document.body.dataset.step) >= 10")
    small.keyboard.press(" ")
    playwright.expect(small.locator("#play")).to_have_text("Play")
    step = settled(small)
    small.wait_for_timeout(300)
    assert settled(small) == step
    small.keyboard.press("r")
    until(small, "document.body.dataset.step === '0'")
    small.locator("#speed").select_option("")
    assert small.locator("#said").text_content() == "Begun again."


def test_presets_begin_and_play(page: Any, server: Server) -> None:
    visit(page, server)
    assert page.locator(".chips button").count() == 6
    for name, preset in PRESETS.items():
        chip = page.locator(f"[data-preset={name}]")
        chip.click()
        playwright.expect(chip).to_have_attribute("aria-pressed", "true")
        playwright.expect(page.locator("#preset-text")).to_have_text(preset.text)
        until(page, "Number(document.body.dataset.step) > 2")
        for number, arm in enumerate(preset.settings.arms):
            expect_setting(page, "AB"[number], arm.method)
    page.locator("#play").click()
    move(page, "width", "width")
    playwright.expect(page.locator("#preset-text")).to_contain_text("Settings of your own")
    assert page.locator(".chips [aria-pressed=true]").count() == 0


# ── what is shown ────────────────────────────────────────────────────────────────────────────────


def test_both_arms_advance(page: Any, server: Server) -> None:
    small = visit(
        page, server, "#data=circles&points=60&scale=1&depth=1&width=12&batch=20&seed=2&A=adam&A.lr=0.05&B=c_ud"
    )

    def seen() -> list[list[str]]:
        return [
            [
                arm.locator("[data-number=train_loss]").text_content(),
                arm.locator("canvas").evaluate("c => c.toDataURL()"),
            ]
            for arm in small.locator("[data-arm]").all()
        ]

    before = seen()
    assert before[0][0] == before[1][0]  # the same network, whose weights are inside their circles
    small.locator("#play").click()
    until(small, "Number(document.body.dataset.step) > 60")
    small.locator("#play").click()
    settled(small)
    after = seen()
    assert len(after) == 2
    for old, new in zip(before, after, strict=True):
        assert old[0] != new[0]
        assert old[1] != new[1]
    assert after[0] != after[1]
    for chart in ("loss", "accuracy", "line", "weights-a", "weights-b", "residuals", "curvatures", "temperatures"):
        assert inked(small, chart), chart


def test_charts_make_sense_before_the_first_step(small: Any) -> None:
    small.locator("[data-arm=A] select").first.select_option("baoab")
    expect_setting(small, "A", "baoab")
    assert settled(small) == 0
    words = small.evaluate(
        """() => {
            const write = CanvasRenderingContext2D.prototype.fillText, words = {};
            CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
                (words[this.canvas.closest("[data-chart]")?.dataset.chart] ??= []).push(text);
                return write.call(this, text, ...place);
            };
            dispatchEvent(new Event("resize"));
            CanvasRenderingContext2D.prototype.fillText = write;
            return words;
        }"""
    )
    assert words["temperatures"] == ["nothing is read yet"]
    assert {"0", "1"} <= set(words["loss"])
    assert not [text for text in words["loss"] + words["curvatures"] if "e-" in text]


def test_small_losses_keep_digits(small: Any) -> None:
    write = "async value => (await import('./format.js')).loss(value)"
    assert [small.evaluate(write, value) for value in (0.69315, 5e-4, 2.13e-5, 0, None)] == [
        "0.6932", "0.0005", "2.1e-5", "0.0000", "–",
    ]  # fmt: skip


def inked(page: Any, chart: str) -> bool:
    """Whether an arm's colour is on a chart."""
    colours = page.evaluate(
        "['--arm-a', '--arm-b'].map(n => getComputedStyle(document.documentElement).getPropertyValue(n).trim())"
    )
    wanted = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in colours]
    return bool(
        page.locator(f"[data-chart={chart}] canvas").evaluate(
            """(canvas, wanted) => {
                const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
                for (let i = 0; i < data.length; i += 4) {
                    if (data[i + 3] > 100 && wanted.some((c) => c.every((v, j) => Math.abs(v - data[i + j]) < 12)))
                        return true;
                }
                return false;
            }""",
            wanted,
        )
    )


@pytest.mark.parametrize(
    "fragment",
    [
        "#data=spirals&turns=1&points=60&scale=1&depth=2&width=8&batch=6&seed=5&A=adlala&B=o_ud",
        "#data=circles&points=60&scale=1&depth=1&width=5&replicas=16&batch=30&seed=1&A=s_ud&B=multirate",
    ],
)
def test_the_script_prints_the_numbers_on_the_screen(page: Any, server: Server, tmp_path: Path, fragment: str) -> None:
    visit(page, server, fragment)
    page.locator("#play").click()
    until(page, "Number(document.body.dataset.step) > 20")
    move(page, "arms.0.lr", "A.lr")
    move(page, "batch", "batch")
    until(page, "Number(document.body.dataset.step) > 40")
    page.locator("#play").click()
    playwright.expect(page.locator("#play")).to_have_text("Play")
    step = settled(page)
    with page.expect_download() as download:
        page.locator("#save-script").click()
    path = tmp_path / "run.py"
    download.value.save_as(path)
    printed = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True).stdout
    blocks = re.findall(r"^\S.*\n(?: .*\n)+", printed, flags=re.M)
    assert len(blocks) == 2
    for letter, block in zip("AB", blocks, strict=True):
        assert f"after {step:,} steps" in block
        said = dict(re.findall(r"^  (\w+ \w+|\w+) +(\S+)$", block, flags=re.M))
        # Half a last digit: JavaScript and Python write 81.25 % as 81.3 and 81.2.
        for name, scale, half in (
            ("test accuracy", 100, 0.05),
            ("train accuracy", 100, 0.05),
            ("test loss", 1, 0.00005),
            ("train loss", 1, 0.00005),
        ):
            shown = page.locator(f"[data-arm={letter}] [data-number={name.replace(' ', '_')}]").text_content()
            found = float(shown.split(" ± ")[0].removesuffix(" %"))
            assert found == pytest.approx(scale * float(said[name]), abs=1.001 * half), (letter, name)
        for name in ("residual", "curvature"):
            shown = page.locator(f"[data-arm={letter}] [data-number={name}]").text_content()
            digits = 0.05 if name == "residual" else 0.005
            value = float(said[name])
            assert (shown == "–") == (value != value)
            assert shown == "–" or float(shown) == pytest.approx(value, rel=digits)


def test_every_word_is_explained_on_hover_and_on_focus(small: Any) -> None:
    small.locator("[data-arm=A] select").first.select_option("word")
    expect_setting(small, "A", "word")
    tip = small.locator("#tip")
    terms = small.locator("[data-term]:visible")
    assert terms.count() > 40
    for term in terms.all():
        term.scroll_into_view_if_needed()
        small.mouse.move(2, 2)
        term.hover()
        playwright.expect(tip).to_be_visible()
        name = term.get_attribute("data-term")
        sentence = tip.locator("p").first.text_content()
        assert len(sentence) > 20, name
        assert len(re.findall(r"[.](?= [A-Z0-9]|$)", sentence)) == 1, name
        assert tip.locator(".equation").text_content(), name
        box = tip.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= small.viewport_size["width"]
    small.evaluate("dispatchEvent(new Event('scroll'))")  # a late report of a scroll that is over
    playwright.expect(tip).to_be_visible()
    small.evaluate("scrollBy(0, -40)")
    playwright.expect(tip).to_be_hidden()
    small.locator("#save-script").focus()
    small.keyboard.press("Escape")
    playwright.expect(tip).to_be_hidden()
    small.locator("#step").focus()
    while small.evaluate("document.activeElement.dataset.term") is None:
        small.keyboard.press("Tab")
    playwright.expect(tip).to_be_visible()
    assert small.evaluate("document.activeElement.getAttribute('aria-describedby')") == "tip"
    small.keyboard.press("Escape")
    playwright.expect(tip).to_be_hidden()


def test_words_of_sliders_are_explained_by_keyboard_and_click(small: Any) -> None:
    """The click that a label passes on to its slider does not hide what the label explains."""
    tip = small.locator("#tip")
    small.locator("label[for='width-input']").click()
    playwright.expect(tip).to_contain_text("Units in every hidden layer")
    assert small.evaluate("document.activeElement.id") == "width-input"
    small.mouse.move(2, 2)
    playwright.expect(tip).to_be_hidden()
    small.locator("#width-input").focus()
    small.keyboard.press("Shift+Tab")
    small.keyboard.press("Shift+Tab")
    assert small.evaluate("document.activeElement.id") == "depth-input"
    playwright.expect(tip).to_contain_text("Layers of hidden units")
    box, slider = tip.bounding_box(), small.locator("#depth-input").bounding_box()
    assert box["y"] >= slider["y"] + slider["height"] or box["y"] + box["height"] <= slider["y"]
    small.keyboard.press("Escape")
    playwright.expect(tip).to_be_hidden()


def test_words_are_explained_by_a_tap(browser: Any, server: Server) -> None:
    context = browser.new_context(has_touch=True, viewport={"width": 390, "height": 800})
    page = visit(context.new_page(), server, SMALL)
    page.locator("label[for='arms.0.lr-input']").tap()
    playwright.expect(page.locator("#tip")).to_contain_text("time step")
    page.locator("h1").tap()
    playwright.expect(page.locator("#tip")).to_be_hidden()
    context.close()


def test_a_run_that_diverges_says_so_and_the_other_goes_on(page: Any, server: Server) -> None:
    hot = "A=sgd&B=baoab&B.lr=2&B.temperature=1&depth=6&width=20&scale=3&batch=25"
    small = visit(page, server, "#data=spirals&points=100&seed=0&" + hot)
    small.locator("#play").click()
    stopped = small.locator("[data-arm=B] .stopped")
    playwright.expect(stopped).to_contain_text(
        "the loss is not finite any more. Choose a smaller step size, then Reset."
    )
    assert "Arm B: Stopped" in small.locator("#said").text_content()
    until(small, "Number(document.body.dataset.step) > 40")
    small.locator("#play").click()
    settled(small)
    assert small.get_by_role("alert").is_hidden()
    assert small.locator("[data-arm=A] .stopped").is_hidden()
    for name in ("test_loss", "test_accuracy"):
        assert small.locator(f"[data-arm=B] [data-number={name}]").text_content() == "–"


SHOWN = """(() => {
    const arc = CanvasRenderingContext2D.prototype.arc, places = new Set();
    CanvasRenderingContext2D.prototype.arc = function (x, y, ...rest) {
        if (this.canvas.closest("[data-arm=A]")) places.add(`${x.toFixed(1)} ${y.toFixed(1)}`);
        return arc.call(this, x, y, ...rest);
    };
    dispatchEvent(new Event("resize"));
    CanvasRenderingContext2D.prototype.arc = arc;
    return places.size;
})()"""  # the number of points drawn in A's plane, test points included


def test_points_are_painted_by_hand_while_the_run_goes(small: Any) -> None:
    small.locator("#data-input").select_option("painted")
    expect_setting(small, "data", "painted")
    playwright.expect(small.locator("[data-arm=A] .stopped")).to_contain_text("Paint")
    plane = small.locator("[data-arm=A] canvas")
    plane.scroll_into_view_if_needed()
    box = plane.bounding_box()

    def click(x: float, y: float) -> None:
        small.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])

    click(0.2, 0.2)
    until(small, "location.hash.includes('painted=')")
    click(0.3, 0.3)
    settled(small)
    small.locator("#play").click()
    until(small, "Number(document.body.dataset.step) > 5")
    small.get_by_role("radio", name="class 0").check()
    plane.scroll_into_view_if_needed()
    box = plane.bounding_box()
    small.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.6 * box["height"])
    small.mouse.down()
    small.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 0.9 * box["height"], steps=8)
    small.mouse.move(box["x"] + 4.0 * box["width"], box["y"] + 0.5 * box["height"], steps=3)  # out of the plane
    small.mouse.up()
    until(small, "new URLSearchParams(location.hash.slice(1)).get('painted').split('*').length >= 5")
    plane.focus()
    for key in ("ArrowLeft", "ArrowUp", "Enter"):
        plane.press(key)
    until(small, "new URLSearchParams(location.hash.slice(1)).get('painted').endsWith('*-0.065_0.065_0')")
    points = [point.split("_") for point in setting(small, "painted").split("*")]
    assert [float(x) for x in points[0][:2]] == pytest.approx([-0.6 * 1.3, 0.6 * 1.3], abs=0.02)
    assert {point[2] for point in points} == {"0", "1"}
    assert max(abs(float(x)) for point in points for x in point[:2]) <= 1.3
    assert small.get_by_role("alert").is_hidden()
    until(small, SHOWN + f" === {len(points)}")
    assert int(small.evaluate("document.body.dataset.step")) > 5  # the run went on
    small.locator("#clear-paint").click()
    until(small, "!location.hash.includes('painted=0') && !location.hash.includes('painted=-')")
    small.locator("#save-script").click()
    playwright.expect(small.get_by_role("alert")).to_have_text("There are no points yet: paint at least two.")


def test_painting_is_heard(small: Any) -> None:
    """What is read aloud of a plane and its charts is not that of the run before."""
    plane = small.locator("[data-arm=A] canvas")
    playwright.expect(plane).to_have_attribute("aria-label", re.compile("of new points lie on their side"))
    small.locator("#data-input").select_option("painted")
    playwright.expect(plane).to_have_attribute("aria-label", re.compile("there are no points yet.*Enter paints"))
    loss = small.locator("[data-chart=loss] canvas")
    playwright.expect(loss).to_have_attribute("aria-label", "Loss. nothing to show yet")
    plane.focus()
    plane.press("ArrowLeft")
    playwright.expect(small.locator("#said")).to_have_text("Cross at -0.05, 0.")
    plane.press("Enter")
    playwright.expect(small.locator("#said")).to_have_text("Painted at -0.05, 0.")
    small.locator("#clear-paint").click()


def test_bad_settings_are_explained_and_marked(small: Any) -> None:
    width = small.get_by_label("Width, as a number")
    width.fill("500")
    width.press("Enter")
    expect_setting(small, "width", "500")
    depth = small.get_by_label("Hidden layers, as a number")
    depth.fill("8")
    depth.press("Enter")
    playwright.expect(small.get_by_role("alert")).to_contain_text("too many for the page")
    playwright.expect(small.locator("[data-name=width]")).to_have_class(re.compile("wrong"))
    assert setting(small, "depth") == "2"
    width.fill("8")
    width.press("Enter")
    expect_setting(small, "width", "8")
    playwright.expect(small.get_by_role("alert")).to_be_hidden()
    arm = small.locator("[data-arm=B]")
    arm.locator("select").first.select_option("word")
    expect_setting(small, "B", "word")
    word = arm.get_by_label("Word", exact=True)
    word.fill("ABOBA")
    word.press("Enter")
    playwright.expect(small.get_by_role("alert")).to_contain_text("begins and ends inside its drift")
    playwright.expect(word).to_have_attribute("aria-invalid", "true")
    step = arm.get_by_label("Step size h, as a number")
    for text in ("abc", "0,05", "1e999"):
        step.fill(text)
        step.press("Enter")
        playwright.expect(small.get_by_role("alert")).to_have_text(f"Step size h must be a number, got '{text}'")
    coupling = arm.get_by_label("Coupling ε, as a number")
    coupling.fill("strong")
    coupling.press("Enter")
    playwright.expect(small.get_by_role("alert")).to_have_text("Coupling ε must be a number, got 'strong'")
    small.goto(f"{small.url.split('#')[0]}#A=newton")
    playwright.expect(small.get_by_role("alert")).to_contain_text("no method 'newton'")


@pytest.mark.parametrize(
    ("fragment", "reason"),
    [
        ("A=newton", "there is no method 'newton'; there are sgd, "),
        ("A=sgd&points=1e9", "Points must be a whole number from 20 to 1,000; got 1,000,000,000"),
        ("A=sgd&A.lr.x=2", "SGD has no setting 'lr.x'"),
        ("A=sgd&arms=3", "there is no setting 'arms'"),
        ("A=sgd&B.lr=1", "it names no method of arm B, such as B=sgd"),
        ("data=spirals&turns=3", "it names no method of arm A, such as A=sgd"),
        ("%E0%A4%A", "it names no method of arm A, such as A=sgd"),
    ],
)
def test_a_link_that_is_not_one_is_explained(page: Any, server: Server, fragment: str, reason: str) -> None:
    said = re.compile("^" + re.escape(f"The settings of this link were not taken up: {reason}"))
    page.emulate_media(reduced_motion="reduce")
    page.goto("about:blank")
    page.goto(f"{server.url}#{fragment}")
    playwright.expect(page.get_by_role("alert")).to_have_text(said)
    chip = page.locator("[data-preset=goldilocks]")
    chip.click()
    playwright.expect(chip).to_have_attribute("aria-pressed", "true")
    playwright.expect(page.get_by_role("alert")).to_be_hidden()
    page.evaluate("text => { location.hash = text; }", fragment)
    playwright.expect(page.get_by_role("alert")).to_have_text(said)


# ── sharing ──────────────────────────────────────────────────────────────────────────────────────


def test_links_and_files(small: Any, tmp_path: Path) -> None:
    small.locator("#step").click()
    until(small, "document.body.dataset.step === '1'")
    link = small.url
    small.context.grant_permissions(["clipboard-read", "clipboard-write"])
    small.locator("#copy-link").click()
    playwright.expect(small.locator("#copy-link")).to_have_text("Copied")
    assert small.evaluate("navigator.clipboard.readText()") == link
    for chosen, start in (("#save-png", b"\x89PNG"), ("#save-csv", b"# holonom ")):
        with small.expect_download() as download:
            small.locator(chosen).click()
        path = tmp_path / download.value.suggested_filename
        download.value.save_as(path)
        assert path.read_bytes().startswith(start)
        assert path.stat().st_size > 200
    comment, head, *_ = path.read_text().splitlines()
    assert head.startswith("step,A SGD: train_loss")
    read = "link => [...new URLSearchParams(link.replace(/.*#/, ''))].map(([name, x]) => [name, Number(x) || x])"
    assert small.evaluate(read, comment[2:]) == small.evaluate(read, link)
    other = small.context.new_page()
    other.goto(link.replace("width=6", "width=9"))
    expect_setting(small, "width", "9")  # everybody who has the address sees the same run
    expect_setting(other, "width", "9")
    other.close()


def test_a_link_means_the_same_whatever_was_played_before(small: Any, server: Server) -> None:
    """What a link does not name has its default, not what the server has at the moment."""
    small.locator("#replicas-input").select_option("16")
    expect_setting(small, "replicas", "16")
    move(small, "noise", "noise")
    visit(small, server, SMALL)
    expect_setting(small, "replicas", "1")
    expect_setting(small, "noise", "0.02")
    small.evaluate("link => { location.hash = link; }", SMALL.replace("width=6", "width=7"))
    expect_setting(small, "width", "7")


def test_nothing_is_lost_on_a_slow_line(small: Any) -> None:
    """Points and sliders that are sent before the page has heard of the last ones add up."""
    small.locator("#data-input").select_option("painted")
    expect_setting(small, "data", "painted")
    plane = small.locator("[data-arm=A] canvas")
    plane.focus()
    # All in one task of the page: no message of the server comes in between.
    small.evaluate(
        """() => {
            const canvas = document.querySelector("[data-arm=A] canvas");
            const press = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
            for (let i = 0; i < 5; i++) ["Enter", "ArrowLeft"].forEach(press);
            for (const [name, value] of [["lr", "0.02"], ["momentum", "0.5"]]) {
                const input = document.querySelector(`[data-name="arms.0.${name}"] .exact`);
                input.value = value;
                input.dispatchEvent(new Event("change"));
            }
        }"""
    )
    expect_setting(small, "A.momentum", "0.5")
    expect_setting(small, "A.lr", "0.02")
    assert len(setting(small, "painted").split("*")) == 5
    small.locator("#clear-paint").click()


# ── the connection ───────────────────────────────────────────────────────────────────────────────


def test_the_page_goes_on_when_the_server_is_started_again(page: Any, tmp_path: Path) -> None:
    server = Server(tmp_path)
    try:
        visit(page, server, SMALL)
        move(page, "width", "width")
        width = setting(page, "width")
        page.locator("#play").click()
        until(page, "Number(document.body.dataset.step) > 3")
        server.kill()
        playwright.expect(page.locator("#offline")).to_be_visible(timeout=PATIENCE)
        url = server.url
        server.start()
        assert server.url == url
        playwright.expect(page.locator("#offline")).to_be_hidden(timeout=PATIENCE)
        expect_setting(page, "width", str(width))
        until(page, "Number(document.body.dataset.step) > 3")
        playwright.expect(page.locator("#play")).to_have_text("Pause")
    finally:
        server.kill()


OPEN = """url => new Promise((done) => {
    const socket = new WebSocket(url);
    socket.onopen = () => done("open");
    socket.onerror = () => done("refused");
})"""


def test_strangers_are_refused(browser: Any, server: Server, tmp_path: Path) -> None:
    address = server.url.replace("http", "ws") + "live"
    handler = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as elsewhere:
        threading.Thread(target=elsewhere.serve_forever, daemon=True).start()
        stranger = browser.new_page()
        stranger.goto(f"http://127.0.0.1:{elsewhere.server_port}/")
        assert stranger.evaluate(OPEN, address) == "refused"
        assert stranger.evaluate(f"fetch('{server.url}numbers.csv').then(() => 'read', () => 'refused')") == "refused"
        elsewhere.shutdown()
    stranger.goto(server.url)
    assert stranger.evaluate(OPEN, address) == "open"
    token = server.url.rstrip("/").rsplit("/", 1)[1]
    assert stranger.evaluate(OPEN, address.replace(token, "0" * 32)) == "refused"
    answer = stranger.goto(server.url.replace(token, "0" * 32))
    assert answer.status == 403
    assert "open the address that holonom play printed" in answer.text()
    stranger.close()


def test_a_hundred_connections_are_opened_and_dropped(small: Any, browser: Any, server: Server) -> None:
    address = server.url.replace("http", "ws") + "live"
    other = browser.new_page(reduced_motion="reduce")
    other.goto(server.url)
    opened = other.evaluate(
        f"""async url => {{
            const open = {OPEN.replace("socket.onopen", "(window.kept ??= []).push(socket); socket.onopen")};
            const found = await Promise.all(Array.from({{ length: 100 }}, () => open(url)));
            return found.filter((x) => x === "open").length;
        }}""",
        address,
    )
    assert opened == 100
    other.close()  # all of them at once, without a word
    small.locator("#play").click()
    until(small, "Number(document.body.dataset.step) > 20")
    small.locator("#play").click()
    settled(small)


# ── for everybody ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1360])
def test_everything_fits_and_can_be_read(page: Any, server: Server, width: int, scheme: str) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)
    visit(page, server, SMALL)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ratios = page.evaluate(
        """() => {
            const light = (text) => {
                const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map((v) => {
                    const c = v / 255;
                    return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
                });
                return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            };
            const ground = (element) => {
                for (let e = element; e; e = e.parentElement) {
                    const colour = getComputedStyle(e).backgroundColor;
                    if (!/, 0\\)$|^transparent$|^color/.test(colour)) return colour;
                }
                return "rgb(255, 255, 255)";
            };
            return [...document.querySelectorAll("p, label, h1, h2, dt, dd, button, .legend")]
                .filter((e) => e.offsetParent && e.textContent.trim() && !e.closest(".unseen"))
                .map((e) => {
                    const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x);
                    return [(a + 0.05) / (b + 0.05), e.textContent.slice(0, 40)];
                });
        }"""
    )
    assert len(ratios) > 40
    assert min(ratios)[0] >= 4.5, min(ratios)


def test_on_a_phone_only_the_buttons_stay_in_view(page: Any, server: Server) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    visit(page, server, SMALL)
    page.evaluate("scrollTo(0, 1200)")
    assert page.locator(".bar").bounding_box()["y"] == pytest.approx(0, abs=1)
    assert page.locator(".bar").bounding_box()["height"] < 60
    playwright.expect(page.locator("#seed")).not_to_be_in_viewport()


def test_pictures_have_names_from_the_start(page: Any, server: Server) -> None:
    """Those who do not see them hear what they are before the first description of what is on them."""
    page.goto(server.url)
    until(page, "document.querySelectorAll('[data-arm] canvas').length > 0")
    names = page.evaluate("[...document.querySelectorAll('canvas')].map((canvas) => canvas.ariaLabel)")
    assert all(names), names


def test_everything_has_a_name_and_can_be_reached(small: Any) -> None:
    unnamed = small.evaluate(
        """() => [...document.querySelectorAll("button, input, select, a, canvas")]
            .filter((e) => e.offsetParent)
            .filter((e) => !(e.labels?.length || e.getAttribute("aria-label") || e.textContent.trim()))
            .map((e) => e.outerHTML)"""
    )
    assert unnamed == []
    until(
        small,
        "[...document.querySelectorAll('canvas')].filter((c) => c.offsetParent).every((c) => c.ariaLabel?.length > 20)",
    )
    expected = small.evaluate(
        """() => [...document.querySelectorAll("button, input, select, a")]
            .filter((e) => e.offsetParent && !e.disabled && !(e.type === "radio" && !e.checked)).length"""
    )
    small.evaluate("document.activeElement.blur()")
    seen = set()
    for _ in range(expected + 3):
        small.keyboard.press("Tab")
        small.evaluate("document.activeElement.dataset.visited ??= String(Math.random())")
        seen.add(small.evaluate("document.activeElement.dataset.visited"))
    assert len(seen) >= expected
