// What the programs of the Node peers share: the roles of a peer's program, its clock and its counting.
//
// bench/peers/program.py has the contract. A peer hands over an object with `prepare()`, `fill(payloads)`,
// `publisher(connections)`, `caller(connections)` and `work(handle)`. The packages are those of bench/.envs/node, which is
// no parent of this directory, so they are resolved from there by name.
import { createRequire } from "node:module";
import { setTimeout as pause } from "node:timers/promises";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const packages = createRequire(new URL("../.envs/node/package.json", import.meta.url));

export const installed = (name) => import(pathToFileURL(packages.resolve(name)).href);

export const URL_OF_SERVER = process.env.BENCH_URL;
export const PUBLISHERS = Number(process.env.BENCH_PUBLISHERS ?? 8);
export const HANDLER_MS = Number(process.env.BENCH_HANDLER_MS ?? 0);
export const SLOTS = Number(process.env.BENCH_SLOTS ?? 200); // of this process
const DELAY_SEC = Number(process.env.BENCH_DELAY_SEC ?? 0);
export const ROW = process.env.BENCH_ROW ?? "";
const STAMPS = process.env.BENCH_STAMPS === "1";
const TEXT = "x".repeat(180);
const PACE_MS = 10;

// When the jobs of `fill` are due; undefined: at once.
export const due = () => (DELAY_SEC > 0 ? new Date(Date.now() + DELAY_SEC * 1000) : undefined);

export const payload = (n) => ({ n, text: TEXT });
const say = (document) => process.stdout.write(`${JSON.stringify(document)}\n`);
const now = () => Number(process.hrtime.bigint()) / 1e9; // CLOCK_MONOTONIC, as in every other program of the run

function cpu() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
}

async function timed(what) {
  const [began, used] = [now(), cpu()];
  await what();
  say({ seconds: now() - began, cpu: cpu() - used });
}

async function fill(peer, count) {
  const payloads = Array.from({ length: count }, (_, n) => payload(n));
  await timed(() => peer.fill(payloads));
}

async function publish(send, count) {
  let next = 0;
  const publisher = async () => {
    while (next < count) await send(payload(next++));
  };
  await timed(() => Promise.all(Array.from({ length: PUBLISHERS }, publisher)));
}

// What is to be said is said afterwards, in order not to disturb.
async function paced(peer, count) {
  const send = await peer.publisher(1);
  const returned = [];
  for (let n = 0; n < count; n += 1) {
    await pause((0.5 + Math.random()) * PACE_MS);
    await send(payload(n));
    returned.push(now());
  }
  returned.forEach((at, n) => say({ n, returned: at }));
}

// Counts what the handlers have done, and prints it while it grows.
class Counter {
  done = 0;
  first = null;
  last = null;
  #said = 0;

  start(n) {
    const at = now();
    this.first ??= at;
    this.last = at;
    if (STAMPS) say({ n, start: at });
  }

  tick() {
    if (this.done === this.#said) return;
    this.#said = this.done;
    say({ done: this.done });
  }
}

async function work(peer) {
  const counter = new Counter();
  const handle = ({ n }) => {
    counter.start(n);
    if (HANDLER_MS === 0) {
      counter.done += 1;
      return undefined;
    }
    return pause(HANDLER_MS).then(() => {
      counter.done += 1;
    });
  };
  const start = await peer.work(handle); // connected and warmed
  const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  say({ ready: true });
  let used = 0;
  let stop = async () => {};
  let ticking;
  for await (const line of lines) {
    if (line === "go") {
      used = cpu();
      ticking = setInterval(() => counter.tick(), 20);
      stop = await start();
    }
    if (line === "stop") break;
  }
  clearInterval(ticking);
  const { done, first, last } = counter;
  say({ done, first, last, cpu: cpu() - used, rss: process.resourceUsage().maxRSS * 1024 });
  await Promise.race([stop(), pause(5000)]); // what it has taken is given back, unless it cannot
}

export async function main(peer) {
  const roles = {
    prepare: () => peer.prepare(),
    fill: (count) => fill(peer, count),
    publish: async (count) => publish(await peer.publisher(PUBLISHERS), count),
    caller: async (count) => publish(await peer.caller(PUBLISHERS), count),
    paced: (count) => paced(peer, count),
    work: () => work(peer),
  };
  const [role, count] = process.argv.slice(2);
  if (!(role in roles)) {
    process.stderr.write(`role ${role}: there is ${Object.keys(roles).join(", ")}\n`);
    process.exit(2);
  }
  await roles[role](Number(count));
  process.exit(0); // pools and timers of a peer must not keep the frame waiting
}
