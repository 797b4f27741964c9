// The page: takes what the server sends, sends what the user wants.

import { ArmCard } from "./arms.js";
import { watchColours } from "./colours.js";
import { labelOf, makeControl, typed } from "./controls.js";
import { explain } from "./explain.js";
import { count, short } from "./format.js";
import { Live } from "./live.js";
import { Measurements } from "./measurements.js";
import { compose } from "./picture.js";
import { copy, fromFragment, save, toFragment } from "./share.js";

const $ = (id) => document.getElementById(id);
const DATA = ["data", "turns", "waves", "noise", "scale", "points"];
const NETWORK = ["depth", "width", "activation", "start", "replicas", "batch"];
const ONLY_FOR = { turns: ["spirals"], waves: ["waves"], noise: ["spirals", "waves", "circles", "xor"], points: ["spirals", "waves", "circles", "xor"] };
const SEND_EVERY = 60; // milliseconds, while a slider moves
const DESCRIBE_EVERY = 2000;
const BOUND = 1.3; // of the plane, in units of the scale
const REFUSED = "The settings of this link were not taken up";
const ADDRESS_EVERY = 400; // milliseconds; browsers refuse a page that changes its address more often

let catalogue = null, state = null, plane = null, frame = null;
let session = null; // of the server that this page knows
let linked = false; // whether the settings sent last are those of a link
let unreadable = ""; // why a link was not sent, until something else is asked
let wanted = settingsOfLink(); // settings that the server has not taken up yet
let other = null; // the second arm while only one is shown
let shared = {}, cards = [];
const measurements = new Measurements($("charts"));

// ── what the server says ────────────────────────────────────────────────────────────────────────

const live = new Live({
  hello(message) {
    $("offline").hidden = true;
    const again = session !== null && session !== message.session;
    if (again && state) {
      wanted = state.settings;
      linked = false;
    } // the server was started anew: go on with what was shown
    const played = again && state?.playing;
    const first = session === null;
    session = message.session;
    if (!catalogue) build(message);
    greet = { first, played };
  },

  state(message) {
    const before = state;
    state = message;
    if (wanted) {
      const settings = completed(wanted);
      wanted = null;
      live.send({ do: "set", settings });
    }
    if (greet) {
      const { first, played } = greet;
      greet = null;
      const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
      if (played || (first && message.untouched && !calm)) live.send({ do: "play" });
    }
    if (before && before.run !== state.run) $("problem").hidden = true;
    showSettings();
    if (unreadable) showProblem(unreadable); // also where the run is another one by what was asked before
  },

  problem({ name, text }) {
    const own = name.split(".").pop();
    const said = text.startsWith(`${own} `) ? labelOf(own) + text.slice(own.length) : text; // as it is called here
    showProblem(linked ? `${REFUSED}: ${said}` : said);
    showSettings();
    control(name)?.mark(true);
  },

  plane(message) {
    plane = {
      run: message.run, bound: message.bound,
      train: message.train === undefined ? null : message.arrays[message.train],
      test: message.test === undefined ? null : message.arrays[message.test],
    };
    if (frame && frame.run !== plane.run) frame = null;
    redraw();
  },

  frame(message) {
    if (!state || message.run !== state.run) return;
    frame = message;
    redraw();
  },

  lost() {
    $("offline").hidden = false;
    $("rate").textContent = "not connected";
    document.body.classList.add("lost");
  },
});
let greet = null;

// ── building ────────────────────────────────────────────────────────────────────────────────────

function build(message) {
  catalogue = message;
  $("version").textContent = message.version;
  for (const [names, place] of [[DATA, "data-controls"], [NETWORK, "network-controls"]]) {
    for (const name of names) {
      shared[name] = makeControl(name, name, catalogue.controls[name], (value, done) => set({ [name]: value }, done));
      $(place).append(shared[name]);
    }
  }
  catalogue.speeds.forEach((speed) => {
    $("speed").append(new Option(speed === null ? "as fast as it can" : `${speed} a second`, speed ?? ""));
  });
  for (const preset of catalogue.presets) {
    const chip = document.createElement("button");
    chip.type = "button";
    chip.textContent = preset.title;
    chip.dataset.preset = preset.name;
    chip.addEventListener("click", () => {
      set(preset.settings, true);
      live.send({ do: "play" });
      say(`${preset.title}. ${preset.text}`);
    });
    document.querySelector(".chips").append(chip);
  }
}

// ── settings ────────────────────────────────────────────────────────────────────────────────────

/** Settings of the page's address; a fragment that holds none is explained when the page is there. */
function settingsOfLink() {
  unreadable = "";
  try {
    const settings = fromFragment(location.hash);
    linked = settings !== null;
    return settings;
  } catch (error) {
    unreadable = `${REFUSED}: ${error.message}`;
    return null;
  }
}

let pending = null, timer = 0;

/** Send settings: at once when a control is let go, and from time to time while it moves. */
function set(changes, done) {
  $("problem").hidden = true;
  linked = false;
  unreadable = "";
  pending = { ...pending, ...changes };
  const flush = () => {
    clearTimeout(timer);
    timer = 0;
    if (pending) live.send({ do: "set", settings: pending });
    pending = null;
  };
  if (done) flush();
  else if (!timer) timer = setTimeout(flush, SEND_EVERY);
}

/** The settings of a link: what it does not name is the default, whatever the server has now. */
const completed = (settings) => ({ ...catalogue.defaults, ...settings });

function control(name) {
  const [place, number, own] = name.split(".");
  return place === "arms" ? cards[number]?.controls[own] : shared[name];
}

function showSettings() {
  if (!catalogue || !state) return;
  const { settings, playing } = state;
  document.body.classList.remove("lost");
  while (cards.length < settings.arms.length) addCard();
  cards.forEach((card, number) => {
    card.card.hidden = number >= settings.arms.length;
    if (!card.card.hidden) card.setSettings(settings.arms[number]);
    card.setPainting(settings.data === "painted");
    Object.values(card.controls).forEach((each) => each.mark(false));
  });
  $("fields").classList.toggle("single", settings.arms.length < 2);
  for (const [name, each] of Object.entries(shared)) {
    each.set(settings[name]);
    each.mark(false);
    each.hidden = name in ONLY_FOR && !ONLY_FOR[name].includes(settings.data);
  }
  $("paint").hidden = settings.data !== "painted";
  $("show-test").parentElement.hidden = settings.data === "painted"; // all painted points are shown
  $("view").hidden = settings.replicas === 1;
  $("two-arms").checked = settings.arms.length === 2;
  if (document.activeElement !== $("seed")) $("seed").value = settings.seed;
  $("speed").value = state.speed ?? "";
  $("play").classList.toggle("playing", playing);
  $("play").querySelector(".word").textContent = playing ? "Pause" : "Play";
  if (state.problem) showProblem(state.problem);
  const preset = catalogue.presets.find((each) => same(each.settings, settings));
  for (const chip of document.querySelectorAll(".chips button")) {
    chip.setAttribute("aria-pressed", chip.dataset.preset === preset?.name);
  }
  $("preset-text").textContent = preset?.text ?? "Settings of your own. The address of this page holds them; a preset above replaces them.";
  if (!addressTimer) addressTimer = setTimeout(writeAddress, Math.max(0, addressWritten + ADDRESS_EVERY - Date.now()));
  redraw();
}

let addressTimer = 0, addressWritten = 0;

function writeAddress() {
  clearTimeout(addressTimer);
  addressTimer = 0;
  addressWritten = Date.now();
  history.replaceState(null, "", toFragment(state.settings));
}

/** An alert is read aloud whenever it changes, so the same one is not written again. */
function showProblem(text) {
  if ($("problem").textContent !== text) $("problem").textContent = text;
  $("problem").hidden = false;
}

/** Whether settings differ at most in what acts at once. */
function same(preset, settings) {
  const fixed = ({ arms, batch, painted, seed, ...rest }) => JSON.stringify([rest, arms.map(({ method, ...values }) =>
    [method, Object.keys(values).filter((name) => !catalogue.arm_controls[name].live).map((name) => values[name])])]);
  return fixed(preset) === fixed(settings);
}

function addCard() {
  const number = cards.length;
  const card = new ArmCard(number, catalogue, {
    say,
    change: (name, value, done) => set({ [name]: value }, done),
    paint: (x, y) => {
      const bound = BOUND * state.settings.scale, label = Number(document.querySelector("input[name=brush]:checked").value);
      const place = [x, y].map((value) => Number((value * bound).toFixed(3)));
      set({ more_painted: [[...place, label]] }, true);
    },
  });
  cards.push(card);
  $("fields").append(card.card);
}

// ── drawing ─────────────────────────────────────────────────────────────────────────────────────

function redraw() {
  if (!state || !plane || plane.run !== state.run) return;
  const options = {
    view: document.querySelector("input[name=view]:checked").value,
    showTest: $("show-test").checked,
    rings: state.settings.data === "painted", // what was painted is seen at once
  };
  const shown = cards.filter(({ card }) => !card.hidden);
  if (!plane.train) {
    shown.forEach((card) => card.clear(options));
    measurements.clear();
    $("steps").textContent = "0";
    $("unit").textContent = "steps";
    return;
  }
  if (!frame || frame.run !== state.run || frame.arms.length !== shown.length) return;
  shown.forEach((card, i) => card.show(frame.arms[i], frame, plane, options));
  measurements.show(frame, shown.length);
  $("steps").textContent = count(frame.step);
  $("unit").textContent = frame.step === 1 ? "step" : "steps";
  $("rate").textContent = state.playing ? `${short(Math.round(frame.rate))} a second` : "";
  document.body.dataset.step = frame.step;
  document.body.dataset.settled = frame.settled;
}

setInterval(() => {
  cards.forEach((card) => card.describe());
  measurements.describe();
}, DESCRIBE_EVERY);

// ── the user ────────────────────────────────────────────────────────────────────────────────────

const say = (text) => { $("said").textContent = text; };
const ask = (what, text) => () => {
  linked = false;
  unreadable = "";
  say(live.send({ do: what() }) ? text() : "Not connected: nothing was changed. Try again.");
};
const playOrPause = ask(() => (state.playing ? "pause" : "play"), () => (state.playing ? "Paused." : "Playing."));
const step = ask(() => "step", () => "One step.");
const reset = ask(() => "reset", () => "Begun again.");

$("play").addEventListener("click", playOrPause);
$("step").addEventListener("click", step);
$("reset").addEventListener("click", reset);
$("speed").addEventListener("change", () => live.send({ do: "speed", value: $("speed").value ? Number($("speed").value) : null }));
$("seed").addEventListener("change", () => set({ seed: typed($("seed").value) }, true));
$("new-seed").addEventListener("click", () => set({ seed: Math.floor(Math.random() * 10000) }, true));
$("two-arms").addEventListener("change", () => {
  const { arms } = state.settings;
  if ($("two-arms").checked) set({ arms: [arms[0], other ?? { method: "sgd", ...catalogue.methods.sgd.settings }] }, true);
  else {
    other = arms[1];
    set({ arms: [arms[0]] }, true);
  }
});
$("clear-paint").addEventListener("click", () => set({ painted: [] }, true));
$("show-test").addEventListener("change", redraw);
for (const view of document.querySelectorAll("input[name=view]")) view.addEventListener("change", redraw);
addEventListener("resize", redraw);
addEventListener("hashchange", () => {
  const settings = settingsOfLink();
  if (unreadable) showProblem(unreadable);
  if (settings) live.send({ do: "set", settings: completed(settings) });
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, button, a, [role=application]")) return;
  const act = { " ": playOrPause, s: step, r: reset }[event.key.toLowerCase()];
  if (!act || !state) return;
  event.preventDefault();
  act();
});
$("copy-link").addEventListener("click", async () => {
  writeAddress();
  const link = location.href;
  const done = await copy(link);
  say(done ? "The link is copied." : "Copy the address of this page.");
  $("copy-link").textContent = done ? "Copied" : "See the address bar";
  setTimeout(() => { $("copy-link").textContent = "Copy link"; }, 2000);
});
/** Whether there is something to save; else the page says why not. */
function isEmpty() {
  const empty = !plane?.train;
  if (empty) showProblem("There are no points yet: paint at least two.");
  return empty;
}
for (const id of ["save-csv", "save-script"]) {
  $(id).addEventListener("click", (event) => { if (isEmpty()) event.preventDefault(); });
}
$("save-png").addEventListener("click", () => {
  if (isEmpty()) return;
  if (!frame) return;
  writeAddress();
  const shown = cards.filter(({ card }) => !card.hidden);
  compose(shown, measurements.cards, frame.step, location.hash.slice(1)).toBlob((blob) => save("holonom-run.png", blob));
});

watchColours(redraw);
explain($("tip"));
