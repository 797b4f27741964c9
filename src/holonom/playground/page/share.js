// The settings as a link fragment that people can read: data=spirals&turns=2&A=adlala&A.lr=0.25&B=adam&…

const ARMS = ["A", "B"];

export function toFragment(settings) {
  const pairs = new URLSearchParams();
  for (const [name, value] of Object.entries(settings)) {
    if (name !== "arms" && name !== "painted") pairs.set(name, value);
  }
  settings.arms.forEach(({ method, ...values }, number) => {
    pairs.set(ARMS[number], method);
    for (const [name, value] of Object.entries(values)) pairs.set(`${ARMS[number]}.${name}`, value === null ? "derived" : value);
  });
  if (settings.painted.length) {
    pairs.set("painted", settings.painted.map((point) => point.join("_")).join("*"));
  }
  return `#${pairs}`;
}

const value = (text) => (text === "derived" ? null : text !== "" && !Number.isNaN(Number(text)) ? Number(text) : text);

/** Settings of a fragment, or null if it has none. The server checks what they are. */
export function fromFragment(text) {
  const pairs = new URLSearchParams(text.replace(/^#/, ""));
  if (!pairs.has("A")) return null;
  const settings = { arms: [] };
  for (const [name, given] of pairs) {
    const [arm, part] = name.split(".");
    const place = ARMS.indexOf(arm);
    if (place < 0) {
      settings[name] = name === "painted"
        ? given.split("*").map((point) => point.split("_").map(Number))
        : name === "data" || name === "activation" || name === "start" ? given : value(given);
    } else if (part === undefined) settings.arms[place] = { ...settings.arms[place], method: given };
    else settings.arms[place] = { ...settings.arms[place], [part]: part === "scheme" || part === "space" ? given : value(given) };
  }
  settings.arms = settings.arms.filter(Boolean);
  settings.painted ??= [];
  return settings;
}

export function save(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** Puts text on the clipboard; false where the browser does not allow it. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
