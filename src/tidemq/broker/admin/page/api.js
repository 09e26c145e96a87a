// Requests to the admin API. The token is in this module's memory, and nowhere else.

let token = "";
let asking = null; // the answer of the dialog, while it is open

export class ApiError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

function askForToken(isWrong) {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById("token-dialog");
    const input = document.getElementById("token");
    document.getElementById("token-wrong").textContent = isWrong ? "This token is wrong." : "";
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.addEventListener("close", () => {
      token = input.value.trim();
      input.value = "";
      asking = null;
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

async function request(method, path, body, signal) {
  for (;;) {
    const sent = token;
    const headers = sent ? { Authorization: `Bearer ${sent}` } : {};
    if (body !== undefined || method === "POST") headers["Content-Type"] = "application/json";
    const text = body === undefined ? undefined : JSON.stringify(body);
    const response = await fetch(path, { method, headers, body: text, signal, cache: "no-store" });
    if (response.status !== 401) return response;
    if (token === sent) await askForToken(sent !== "");
  }
}

async function checked(response) {
  if (response.ok) return response;
  let text = `${response.status} ${response.statusText}`;
  try {
    const problem = await response.json();
    text = problem.detail ?? problem.error ?? text;
  } catch {
    // no JSON: the status says it
  }
  throw new ApiError(response.status, text);
}

export function path(...parts) {
  return parts.map(encodeURIComponent).join("/");
}

export async function ask(method, where, { query = {}, body } = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = given.length ? `?${new URLSearchParams(given)}` : "";
  const response = await checked(await request(method, where + text, body));
  return response.status === 204 ? null : response.json();
}

export async function* events(where, signal) {
  const response = await checked(await request("GET", where, undefined, signal));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const whole = (waiting + value).split("\n\n");
    waiting = whole.pop();
    for (const event of whole) {
      if (event.startsWith("data: ")) yield JSON.parse(event.slice(6));
    }
  }
}
