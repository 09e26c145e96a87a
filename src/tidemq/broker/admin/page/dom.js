// Elements and texts. What comes from the broker becomes text nodes alone, so no name or payload is ever markup.

export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function table(caption, heads, rows, empty) {
  const head = heads.map(([text, kind]) => make("th", { scope: "col", className: kind ?? "" }, text));
  const body = rows.map((cells) =>
    make("tr", {}, ...cells.map((cell, at) => make("td", { className: heads[at][1] ?? "" }, cell ?? "–"))));
  const none = make("tr", {}, make("td", { colSpan: heads.length, className: "quiet" }, empty ?? "none"));
  const whole = make("table", {}, make("caption", {}, caption), make("thead", {}, make("tr", {}, ...head)),
    make("tbody", {}, ...(body.length ? body : [none])));
  return make("div", { className: "scrolls", tabIndex: 0, role: "region", ariaLabel: caption }, whole);
}

export function facts(entries) {
  return make("dl", { className: "facts" },
    ...entries.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value ?? "–")]));
}

export function field(text, input, kind = "") {
  return make("label", { className: kind }, text, input);
}

export function button(text, act, kind = "") {
  const made = make("button", { type: "button", className: kind }, text);
  made.addEventListener("click", async () => {
    made.disabled = true;
    try {
      await act();
    } catch (error) {
      say(error.message, true);
    } finally {
      made.disabled = false;
    }
  });
  return made;
}

export function say(text, isWrong = false) {
  const line = document.getElementById("said");
  line.className = isWrong ? "said bad" : "said";
  line.textContent = text;
}

export function confirmed(text) {
  const dialog = document.getElementById("confirm-dialog");
  document.getElementById("confirm-text").textContent = text;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

export function count(value) {
  if (value === null || value === undefined) return "–";
  return value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });
}

function scaled(value, units, step) {
  let at = 0;
  while (value >= step && at < units.length - 1) {
    value /= step;
    at += 1;
  }
  return `${value >= 100 || at === 0 ? Math.round(value) : value.toPrecision(3)} ${units[at]}`;
}

export function bytes(value) {
  return value === null || value === undefined ? "–" : scaled(value, ["B", "KiB", "MiB", "GiB", "TiB"], 1024);
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return value < 1e-3 ? `${Math.round(value * 1e6)} µs` : `${(value * 1e3).toPrecision(3)} ms`;
  if (value < 120) return `${value.toPrecision(3)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86400)} d`;
}

export function date(text) {
  return text ? new Date(text).toLocaleString("sv") : "–";
}

export function payload(message) {
  const text = message.payload ?? message.payload_base64;
  const shown = message.payload === null ? `base64: ${text}` : text;
  const whole = message.payload === null ? Math.floor((text.length * 3) / 4) : new TextEncoder().encode(text).length;
  return make("span", { className: "mono" }, shown + (whole < message.payload_bytes ? "…" : ""));
}
