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

/**
 * Settings of a fragment, or null if it is empty or a place of the page. Throws an Error where it names no method of an
 * arm or `arms`, which are the letters here. The server checks everything else.
 */
export function fromFragment(text) {
  const given = text.replace(/^#/, "");
  if (given === "" || document.getElementById(given)) return null;
  const pairs = new URLSearchParams(given), settings = { arms: [] };
  const part = (name) => (ARMS.some((arm) => name.startsWith(`${arm}.`)) ? name.slice(2) : undefined);
  for (const arm of ARMS) {
    const named = [...pairs.keys()].some((name) => name.startsWith(`${arm}.`));
    if (!pairs.has(arm) && (arm === "A" || named)) throw Error(`it names no method of arm ${arm}, such as ${arm}=sgd`);
  }
  for (const [name, given] of pairs) {
    const own = part(name), place = own === undefined ? ARMS.indexOf(name) : ARMS.indexOf(name[0]);
    if (place < 0) {
      if (/^arms\b/.test(name)) throw Error(`there is no setting '${name}'`);
      settings[name] = name === "painted"
        ? given.split("*").map((point) => point.split("_").map(Number))
        : name === "data" || name === "activation" || name === "start" ? given : value(given);
    } else if (own === undefined) settings.arms[place] = { ...settings.arms[place], method: given };
    else settings.arms[place] = { ...settings.arms[place], [own]: own === "scheme" || own === "space" ? given : value(given) };
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
