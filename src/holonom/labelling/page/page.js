// Shows one image at a time and sends the pressed digit. The server stores the progress.
"use strict";

const $ = (id) => document.getElementById(id);
let state = null; // the server's last answer
let busy = false; // a request is under way
let seen = false; // the image to label is on the screen; nothing is labelled before that

const parts = ["welcome", "task", "end"];
const show = (part) => parts.forEach((id) => { $(id).hidden = id !== part; });

const keys = Array.from({ length: 10 }, (_, digit) => {
  const key = document.createElement("button");
  key.type = "button";
  key.textContent = digit;
  key.addEventListener("click", () => label(digit));
  return key;
});
$("keys").append(...keys.slice(1), keys[0]); // 1 to 9, then 0, as on a keyboard

function person() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return "";
  }
}

async function send(path, body) {
  const options = body && {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ person: person(), ...body }),
  };
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error("The server does not answer, nothing was saved. Start it again, then press once more.");
  }
  const content = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(content.error), { status: answer.status });
  return content;
}

const where = () => `state?person=${encodeURIComponent(person())}`;

// All requests to the server go through here, one at a time.
async function turn(path, body) {
  if (busy) return false;
  setBusy(true);
  try {
    await draw(await send(path, body));
    $("problem").hidden = true;
    return true;
  } catch (error) {
    const behind = error.status === 409; // the same person labelled on another page
    if (behind) await send(where()).then(draw).catch(() => {});
    $("problem").textContent = behind ? "This page was behind another one; here is where you are." : error.message;
    $("problem").hidden = false;
    $("problem").scrollIntoView({ block: "nearest" });
    return false;
  } finally {
    setBusy(false);
  }
}

function setBusy(value) {
  busy = value;
  $("task").setAttribute("aria-busy", value);
}

async function draw(answer) {
  state = answer;
  const { total, done, image, last } = state;
  $("person").textContent = state.person;
  $("count").textContent = `${Math.min(done + 1, total)} of ${total}`;
  $("progress").value = done / total;
  $("undo").disabled = last === null;
  $("last").textContent = last === null ? "" : ` ${last.label}`;
  $("total").textContent = total;
  show(image === null ? "end" : "task");
  if (image === null) return;
  const picture = $("image");
  seen = false;
  picture.src = `image/${image}`;
  try {
    await picture.decode();
  } catch {
    throw new Error("The image cannot be shown. Press any digit to try again.");
  }
  seen = true;
}

async function label(digit) {
  if (busy || !state || state.image === null) return;
  if (!seen) {
    await turn(where());
    return;
  }
  keys[digit].classList.add("pressed");
  setTimeout(() => keys[digit].classList.remove("pressed"), 150);
  if (await turn("label", { image: state.image, label: digit })) say(`Labelled ${digit}.`);
}

async function undo() {
  if (!state || !state.last) return;
  const { image, label } = state.last;
  if (await turn("undo", { image })) say(`Took back ${label}.`);
}

function say(what) {
  $("said").textContent = state.image === null ? `${what} All done.` : `${what} Image ${$("count").textContent}.`;
}

async function enter() {
  state = null;
  if (person() === "") {
    show("welcome");
    $("name").focus();
  } else if (!(await turn(where()))) {
    show("welcome");
    $("name").value = person();
  }
}

$("undo").addEventListener("click", undo);
$("back").addEventListener("click", undo);
$("welcome").addEventListener("submit", (event) => {
  event.preventDefault();
  const name = encodeURIComponent($("name").value.trim());
  if (location.hash === `#${name}`) enter();
  else location.hash = name;
});
document.addEventListener("keydown", (event) => {
  if (event.repeat || event.ctrlKey || event.metaKey || event.altKey || $("welcome").hidden === false) return;
  if (/^[0-9]$/.test(event.key)) label(Number(event.key));
  else if (event.key === "Backspace") undo();
  else return;
  event.preventDefault();
});
window.addEventListener("hashchange", enter);
enter();
