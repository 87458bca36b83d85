// An application that serves workflows with the official SDK for Node, and a client of it.
// Prints {"port": …} first. Then one JSON line each: {"call": "trigger", "args": [{…}]} calls the SDK's Client, and
// {"call": "results"} returns what the workflows came to. {"call": "mend", "args": [name]} lets a flaky one succeed.
// Run as: node workflows.mjs <directory of node_modules>
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const sdk = (file) => import(pathToFileURL(resolve(process.argv[2], "@upstash/workflow", file)).href);
const { Client } = await sdk("index.mjs");
const { createWorkflow, serveMany } = await sdk("cloudflare.mjs");

console.warn = console.error = () => {};

const results = {};
const ran = {};
const failures = {};
const webhooks = {};
const mended = new Set();

function ran_step(name, step, result) {
  ran[`${name} ${step}`] = (ran[`${name} ${step}`] ?? 0) + 1;
  return result;
}

const steps = createWorkflow(async (context) => {
  const { name, amount } = context.requestPayload;
  const reserved = await context.run("reserve", () => ran_step(name, "reserve", { reserved: amount }));
  await context.sleep("a second", 1);
  results[name] = await context.run("charge", () => ran_step(name, "charge", reserved.reserved * 2));
  return { charged: results[name] };
});

const parallel = createWorkflow(async (context) => {
  const { name, url } = await context.run("input", () => context.requestPayload);
  const [a, , b, answer] = await Promise.all([
    context.run("a", () => ran_step(name, "a", "A")),
    context.sleep("nap", 1),
    context.run("b", () => ran_step(name, "b", "B")),
    context.call("ask", { url, method: "POST", body: { question: 7 } }),
  ]);
  results[name] = await context.run("both", () => ran_step(name, "both", [a, b, answer.status, answer.body]));
});

const waits = createWorkflow(async (context) => {
  const { name, event, timeout } = context.requestPayload;
  await context.run("before", () => ran_step(name, "before", null));
  const { eventData, timeout: late } = await context.waitForEvent("wait", event, { timeout });
  results[name] = [eventData ?? null, late];
});

const notifies = createWorkflow(async (context) => {
  const { name, event } = context.requestPayload;
  const { notifyResponse } = await context.notify("tell", event, { from: name });
  results[name] = notifyResponse.length;
});

const hooks = createWorkflow(async (context) => {
  const { name, timeout, times = 1 } = context.requestPayload;
  const webhook = await context.createWebhook("create");
  await context.run("hand out", () => (webhooks[name] = webhook));
  const received = [];
  for (let time = 0; time < times; time++) {
    const { request, timeout: late } = await context.waitForWebhook(`wait ${time}`, webhook, timeout);
    received.push(late ? null : await shown(request));
  }
  results[name] = await context.run("done", () => ran_step(name, "done", received));
});

const parallelHooks = createWorkflow(async (context) => {
  const { name } = context.requestPayload;
  const both = await Promise.all([context.createWebhook("one"), context.createWebhook("two")]);
  await context.run("hand out", () => (webhooks[name] = both));
  const answers = await Promise.all(both.map((each, at) => context.waitForWebhook(`wait ${at}`, each, "1h")));
  results[name] = await Promise.all(answers.map(({ request }) => request.text()));
});

async function shown(request) {
  const { method, url, headers } = request;
  return { method, url, headers: Object.fromEntries(headers), body: await request.text() };
}

const invoked = createWorkflow(async (context) => {
  const { number, fails } = context.requestPayload;
  return await context.run("double", () => {
    if (fails) throw new Error("it cannot be doubled");
    return number * 2;
  });
});

const invokes = createWorkflow(async (context) => {
  const { name, body } = context.requestPayload;
  const answer = await context.invoke("other", { workflow: invoked, body, retries: 0 });
  results[name] = [answer.body ?? null, answer.isFailed ?? false];
});

const cancels = createWorkflow(async (context) => {
  const { name } = context.requestPayload;
  await context.run("first", () => ran_step(name, "first", null));
  await context.cancel();
});

const flaky = createWorkflow(
  async (context) => {
    const { name } = context.requestPayload;
    await context.run("good", () => ran_step(name, "good", null));
    results[name] = await context.run("bad", () => {
      ran_step(name, "bad", null);
      if (!mended.has(name)) throw new Error("out of stock");
      return "came through";
    });
  },
  {
    failureFunction: async ({ context }) => {
      const { name } = context.requestPayload;
      if (!mended.has(`${name} failure`)) throw new Error("nobody can be told");
      failures[name] = context.workflowRunId;
    },
  },
);

const fails = createWorkflow(
  async (context) => {
    const { name } = context.requestPayload;
    await context.run("bad", () => {
      ran_step(name, "bad", null);
      throw new Error("out of stock");
    });
  },
  {
    failureFunction: async ({ context, failStatus, failResponse }) => {
      failures[context.requestPayload.name] = [failStatus, failResponse, context.workflowRunId];
    },
  },
);

const { fetch } = serveMany({ steps, parallel, waits, hooks, parallelHooks, flaky, notifies, invoked, invokes, cancels, fails });

const server = createServer(async (incoming, outgoing) => {
  const parts = [];
  for await (const part of incoming) parts.push(part);
  const url = `http://127.0.0.1:${server.address().port}${incoming.url}`;
  const request = new Request(url, { method: incoming.method, headers: incoming.headers, body: Buffer.concat(parts) });
  const answer = await fetch(request, process.env);
  outgoing.writeHead(answer.status, Object.fromEntries(answer.headers));
  outgoing.end(await answer.text());
});
await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
process.stdout.write(JSON.stringify({ port: server.address().port }) + "\n");

const client = new Client({ baseUrl: process.env.QSTASH_URL, token: process.env.QSTASH_TOKEN, retry: false });
for await (const line of createInterface({ input: process.stdin })) {
  const { call, args = [] } = JSON.parse(line);
  let answer;
  try {
    if (call === "results") answer = { value: { results, ran, failures, webhooks } };
    else if (call === "mend") answer = { value: mended.add(args[0]).size };
    else {
      const path = call.split(".");
      const method = path.pop();
      const object = path.reduce((found, part) => found[part], client);
      answer = { value: (await object[method](...args)) ?? null };
    }
  } catch (error) {
    answer = { error: { name: error.name, message: error.message, status: error.status ?? null } };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
