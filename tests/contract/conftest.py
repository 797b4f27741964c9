import re

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """The tensors here are tiny: more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def browser():
    from .chromium import CHROMIUM, QUIET, playwright

    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """A page that asks nobody but this machine, and whose scripts raise nothing."""
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(5000)
    requested, errors = [], []
    page.on("request", lambda request: requested.append(request.url))
    page.on("websocket", lambda socket: requested.append(socket.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert not errors
    assert all(re.match(r"(http|ws|blob:http)://127\.0\.0\.1:|data:|about:blank", url) for url in requested)
