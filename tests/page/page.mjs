// The page of the admin port in a real Chromium, which is driven over its debugging pipe.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, mkdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

const DEADLINE = 60_000;
const { CHROMIUM, INFORMERD } = process.env;
const screenshots = process.argv.includes("--screenshots");
const directory = mkdtempSync(join(tmpdir(), "informerd-page-"));
const children = [];
const pause = (millis) => new Promise((done) => setTimeout(done, millis));

function start(program, args, options = {}) {
  const child = spawn(program, args, { stdio: ["ignore", "ignore", "inherit"], ...options });
  children.push(child);
  return child;
}

async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await new Promise((done) => server.once("listening", done));
  const { port } = server.address();
  await new Promise((done) => server.close(done));
  return port;
}

/** A tab, over the pipe of Chromium: messages end in a zero byte. */
class Tab {
  #next = 1;
  #waiting = new Map();
  #session;
  problems = [];

  static async open() {
    const tab = new Tab();
    const args = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe", `--user-data-dir=${join(directory, "chromium")}`];
    const browser = start(CHROMIUM, args, { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
    tab.pipe = browser.stdio[3];
    let rest = "";
    browser.stdio[4].setEncoding("utf8").on("data", (part) => {
      const messages = (rest + part).split("\0");
      rest = messages.pop();
      messages.forEach((message) => tab.#receive(JSON.parse(message)));
    });
    const { targetId } = await tab.send("Target.createTarget", { url: "about:blank" });
    tab.#session = (await tab.send("Target.attachToTarget", { targetId, flatten: true })).sessionId;
    for (const domain of ["Page", "Runtime", "Log", "Network"]) await tab.send(`${domain}.enable`);
    return tab;
  }

  #receive({ id, result, error, method, params }) {
    if (id) {
      const { done, fail } = this.#waiting.get(id);
      this.#waiting.delete(id);
      error ? fail(new Error(error.message)) : done(result);
    } else if (method === "Runtime.exceptionThrown") {
      this.problems.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
    } else if (method === "Log.entryAdded" && params.entry.level === "error" && params.entry.source !== "network") {
      this.problems.push(params.entry.text);
    } else if (method === "Network.requestWillBeSent") {
      const { host } = new URL(params.request.url);
      if (host && host !== this.host) this.problems.push(`a request to ${params.request.url}`);
    }
  }

  send(method, params = {}) {
    const id = this.#next++;
    this.pipe.write(`${JSON.stringify({ id, method, params, sessionId: this.#session })}\0`);
    return new Promise((done, fail) => {
      this.#waiting.set(id, { done, fail });
      setTimeout(() => fail(new Error(`${method}: no answer`)), DEADLINE).unref();
    });
  }

  async size(width, height, colorScheme = "light") {
    await this.send("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: width < 600 });
    await this.send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: colorScheme }] });
  }

  async run(expression) {
    const { result, exceptionDetails } = await this.send("Runtime.evaluate", { expression, returnByValue: true, awaitPromise: true });
    assert(!exceptionDetails, exceptionDetails?.exception?.description);
    return result.value;
  }

  text(query) {
    return this.run(`document.querySelector(${JSON.stringify(query)})?.innerText ?? ""`);
  }

  async until(what, expression) {
    const end = Date.now() + DEADLINE;
    for (;;) {
      const value = await this.run(expression);
      if (value) return value;
      assert(Date.now() < end, `not in time: ${what}; the page has:\n${await this.text("body")}`);
      await pause(100);
    }
  }

  /** Clicks where the element is, as a user does. */
  async click(query) {
    const at = await this.run(`(() => { const it = document.querySelector(${JSON.stringify(query)}); it.scrollIntoView({ block: "center" });
      const box = it.getBoundingClientRect(); return { x: box.x + box.width / 2, y: box.y + box.height / 2 }; })()`);
    for (const type of ["mousePressed", "mouseReleased"]) await this.send("Input.dispatchMouseEvent", { type, ...at, button: "left", clickCount: 1 });
  }

  async press(key, text = key) {
    const code = { windowsVirtualKeyCode: { Enter: 13, Escape: 27 }[key] };
    await this.send("Input.dispatchKeyEvent", { type: "keyDown", key, text: text.length === 1 ? text : undefined, ...code });
    await this.send("Input.dispatchKeyEvent", { type: "keyUp", key, ...code });
  }

  async shot(name) {
    if (!screenshots) return;
    await this.run("scrollTo(0, 0)");
    const { data } = await this.send("Page.captureScreenshot", { format: "png" });
    mkdirSync("docs/page", { recursive: true });
    writeFileSync(`docs/page/${name}.png`, Buffer.from(data, "base64"));
  }
}

function write(name, padding, n) {
  const pod = { kind: "Pod", apiVersion: "v1", metadata: { namespace: "shop", name, labels: { app: "web" } }, spec: { nodeName: "node-a" }, data: `${n}${"x".repeat(padding)}` };
  // As a whole: a file that is half written is no object.
  writeFileSync(join(directory, `.${name}`), JSON.stringify(pod));
  mkdirSync(join(directory, "pods"), { recursive: true });
  renameSync(join(directory, `.${name}`), join(directory, "pods", `${name}.json`));
}

async function test() {
  const [port, admin] = [await freePort(), await freePort()];
  for (const name of ["web-1", "web-2", "db"]) write(name, 10, 0);
  writeFileSync(join(directory, "events.jsonl"), `${JSON.stringify({ type: "ADDED", object: { metadata: { name: "e" } } })}\n`);
  const serve = (more) => start(INFORMERD, ["serve", "--listen", `127.0.0.1:${port}`, "--admin-listen", `127.0.0.1:${admin}`, "--files", `pods=${join(directory, "pods")}@Pod`, ...more]);
  const client = (...args) => start(INFORMERD, ["watch", "pods", "--server", `127.0.0.1:${port}`, "-o", "jsonl", ...args]);
  writeFileSync(join(directory, "informerd.yaml"), "admin: { bodies: true }");
  let server = serve(["--config", join(directory, "informerd.yaml")]);
  const tab = await Tab.open();
  tab.host = `127.0.0.1:${admin}`;
  const open = async () => {
    for (const end = Date.now() + DEADLINE; ; await pause(50)) {
      const answer = await fetch(`http://127.0.0.1:${admin}/readyz`).catch(() => null);
      if (answer?.ok) break;
      assert(Date.now() < end, "the server is not ready");
    }
    await tab.send("Page.navigate", { url: `http://127.0.0.1:${admin}/` });
  };

  // Quiet.
  await open();
  await tab.size(1600, 700);
  const stopped = client("-l", "app=web");
  client();
  const rows = (table) => `document.querySelectorAll("#${table} tbody tr").length`;
  await tab.until("two watches", `${rows("watches")} === 2`);
  await tab.until("quiet", `document.querySelector("#banner").innerText === "Everything is synced, and no watch is far behind."`);
  assert.match(await tab.text("#resources tbody"), /pods\s+files\s+SYNCED/);
  await tab.shot("quiet");
  await tab.size(1600, 700, "dark");
  await tab.shot("quiet-dark");
  const page = await (await fetch(`http://127.0.0.1:${admin}/`)).text();
  assert(page.length < 24_000, `${page.length} bytes`);

  // A client that has stopped while objects change: found in two clicks, and what it has of an object is explained.
  stopped.kill("SIGSTOP");
  let n = 0;
  const writing = setInterval(() => write(`web-${(n % 2) + 1}`, 400_000, (n += 1)), 50);
  await tab.until("the banner says so", `document.querySelector("#banner").innerText.includes("the slowest watch of pods is")`);
  await tab.size(1600, 700);
  await tab.click("#resources tbody button");
  await tab.until("only its watches", `!document.querySelector("#filter button").hidden`);
  const first = await tab.run(`document.querySelector("#watches tbody tr").innerText`);
  assert.match(first, /app=web/, "the one furthest behind is the first");
  assert(await tab.run(`document.querySelector("#watches tbody td.bad svg") !== null`), "its lag is marked, with its trend");
  await tab.shot("stuck");
  await tab.click("#watches tbody button");
  await tab.until("its details", `document.querySelector("#watch").open && document.querySelector("#watch dl").innerText.includes("labels=app=web")`);
  clearInterval(writing);
  await tab.run(`document.querySelector("#explain [name=namespace]").value = "shop"; document.querySelector("#explain [name=name]").value = "db"; 0`);
  await tab.run(`document.querySelector("#explain [name=name]").focus()`);
  await tab.press("Enter", "\r");
  await tab.until("an explanation", `document.querySelector("#terms").innerText.includes("The watch has this object")`);
  await tab.run(`document.querySelector("#explain [name=name]").value = "none"; 0`);
  await tab.click("#explain button");
  await tab.until("no object", `document.querySelector("#terms").innerText.includes("There is no such object")`);
  await tab.press("Escape");
  await tab.until("closed", `!document.querySelector("#watch").open`);

  // By keyboard; the end of a client with its reason.
  await tab.press("/");
  assert.equal(await tab.run(`document.activeElement.type`), "search");
  for (const key of "no such client") await tab.press(key);
  await tab.until("filtered", `document.querySelector("#watches").hidden`);
  await tab.run(`document.querySelector("#filter input").value = ""; document.querySelector("#filter input").oninput(); 0`);

  // The changes of the chosen resource as they come, of a selection, and the difference between two versions of an object.
  const changes = `document.querySelector("#changes").innerText`;
  await tab.until("its changes", `${changes}.includes("shop/web-1")`);
  await tab.run(`document.querySelector("#tail [name=labels]").value = "app!=web"; 0`);
  await tab.click("#tail button");
  await tab.until("none of them", `document.querySelector("#changes").hidden && document.querySelector("#tail p").innerText.startsWith("No change")`);
  await tab.run(`document.querySelector("#tail [name=labels]").value = ""; document.querySelector("#tail [name=object]").value = "shop/db"; 0`);
  await tab.run(`document.querySelector("#tail [name=object]").focus()`);
  await tab.press("Enter", "\r");
  write("db", 10, 1);
  await tab.until("one change", `${rows("changes")} === 1`);
  write("db", 10, 2);
  await tab.until("a change that was seen coming", `${rows("changes")} === 2 && /:/.test(document.querySelector("#changes tbody td:last-child").innerText)`);
  await tab.click("#changes tbody button");
  const difference = `document.querySelector("#difference dl").innerText`;
  await tab.until("the last change", `document.querySelector("#difference").open && /^data\\s+"1x+" "2x+"$/.test(${difference})`);
  await tab.shot("difference");
  await tab.run(`document.querySelector("#difference [name=from]").value = "0"; document.querySelector("#difference [name=from]").onchange(); 0`);
  await tab.until("both changes", `/^data\\s+"0x+" "2x+"$/.test(${difference})`);
  await tab.press("Escape");
  stopped.kill("SIGKILL");
  await tab.until("its end", `${rows("ended")} === 1`);
  assert.match(await tab.text("#ended tbody"), /the client cancelled the call or closed its connection/);

  // No server: what is shown is old, and says so. Then a stale resource, at the size of a phone.
  server.kill("SIGKILL");
  await tab.until("old figures", `document.querySelector("#banner").innerText.includes("these figures are old")`);
  server = serve(["--stream", `events=${join(directory, "events.jsonl")}`]);
  await tab.until("a stale resource", `document.querySelector("#banner").innerText.includes("events is STALE: stream ended")`);
  await tab.size(1600, 700);
  await tab.shot("stale");
  await tab.size(360, 740);
  await tab.until("narrow", `innerWidth === 360`);
  const width = await tab.run("document.documentElement.scrollWidth");
  assert(width <= 360, `${width} pixels wide`);
  await tab.shot("phone");
  assert.deepEqual(tab.problems, []);
}

try {
  await test();
  console.log("the page: passed");
} finally {
  for (const child of children) child.kill("SIGKILL");
  await pause(200);
  rmSync(directory, { recursive: true, force: true, maxRetries: 5 });
}
process.exit(0);
